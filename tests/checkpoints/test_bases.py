"""Bases on the kernel's own overlay, with a person who saves in between."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.checkpoints.layers import Layers, fill
from workbench.checkpoints.manifest import Base, Certainty, Manifest
from workbench.checkpoints.restore import restore
from workbench.vfs import syscalls
from workbench.vfs.storage import Kind
from workbench.vfs.upper import LocalUpper

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("root")]

KNOWN, ABSENT, UNKNOWN = Certainty.KNOWN, Certainty.ABSENT, Certainty.UNKNOWN


def save_by_rename(path: Path, text: str) -> None:
    """As editors do."""
    temporary = path.with_name(path.name + "~")
    temporary.write_text(text)
    temporary.rename(path)


def certainties(bases: dict[bytes, Base]) -> dict[bytes, Certainty]:
    return {path: base.certainty for path, base in bases.items()}


def test_a_changed_file_has_the_lowers_stat_handle_and_content(layers: Layers) -> None:
    fill(layers.lower)
    with layers.mounted() as merged:
        with (merged / "src/a.py").open("a") as file:
            file.write("more")
        checkpoint = layers.take()
    base = checkpoint.manifest.bases[b"src/a.py"]
    status = (layers.lower / "src/a.py").stat()
    assert base.certainty is KNOWN
    assert (base.inode, base.mtime_ns, base.ctime_ns) == (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
    assert base.handle == syscalls.file_handle(os.open(layers.lower / "src/a.py", os.O_RDONLY))
    assert layers.store.read(base.blob) == b"lower src/a.py\n"
    assert certainties(checkpoint.manifest.bases) == {b"": KNOWN, b"src": KNOWN, b"src/a.py": KNOWN}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("how", ["rename", "in place"])
def test_a_file_that_was_saved_around_the_copy_up_is_unknown(layers: Layers, when: str, how: str) -> None:
    fill(layers.lower)

    def save() -> None:
        if how == "rename":
            save_by_rename(layers.lower / "src/a.py", "the person's")
        else:
            with (layers.lower / "src/a.py").open("a") as file:
                file.write("the person's")

    with layers.mounted() as merged:
        if when == "before":
            save()
        with (merged / "src/a.py").open("a") as file:
            file.write("the agent's")
        if when == "after":
            save()
        bases = layers.take().manifest.bases
    assert bases[b"src/a.py"] == Base(b"src/a.py", UNKNOWN)


def test_a_save_next_door_leaves_a_changed_file_known(layers: Layers) -> None:
    fill(layers.lower)
    with layers.mounted() as merged:
        (merged / "src/a.py").write_text("the agent's")
        save_by_rename(layers.lower / "src/b.py", "the person's")
        bases = layers.take().manifest.bases
    assert bases[b"src/a.py"].certainty is KNOWN
    assert bases[b"src"].certainty is UNKNOWN


def test_a_swapped_directory_makes_what_is_below_it_unknown_though_all_ctimes_are_old(layers: Layers) -> None:
    fill(layers.lower)
    shutil.copytree(layers.lower / "src", layers.lower / "other")
    with layers.mounted() as merged:
        (merged / "src/a.py").write_text("the agent's")
        (layers.lower / "src").rename(layers.lower / "moved")
        (layers.lower / "other").rename(layers.lower / "src")
        # Only what was renamed has a new ctime, not what is in it.
        assert (layers.lower / "src/a.py").stat().st_ctime_ns < (layers.epoch_ns or 0)
        bases = layers.take().manifest.bases
    assert bases[b"src/a.py"].certainty is UNKNOWN


def test_a_swap_further_up_is_seen_by_the_ancestors_origin(layers: Layers) -> None:
    fill(layers.lower)
    shutil.copytree(layers.lower / "src", layers.lower / "other")
    with layers.mounted() as merged:
        (merged / "src/deep/c.py").write_text("the agent's")
        (layers.lower / "src").rename(layers.lower / "moved")
        (layers.lower / "other").rename(layers.lower / "src")
        assert (layers.lower / "src/deep").stat().st_ctime_ns < (layers.epoch_ns or 0)
        bases = layers.take().manifest.bases
    assert bases[b"src/deep/c.py"].certainty is UNKNOWN


def test_a_new_file_was_absent_where_its_directory_is_older_than_the_mount(layers: Layers) -> None:
    fill(layers.lower)
    with layers.mounted() as merged:
        (merged / "src/new").write_text("x")
        (merged / "fresh/deep").mkdir(parents=True)
        (merged / "fresh/deep/file").write_text("x")
        bases = layers.take().manifest.bases
    assert bases[b"src/new"] == Base(b"src/new", ABSENT)
    assert {bases[path].certainty for path in (b"fresh", b"fresh/deep", b"fresh/deep/file")} == {ABSENT}


def test_what_was_made_in_the_overlay_was_absent_whatever_came_or_went_next_to_it(layers: Layers) -> None:
    fill(layers.lower)
    with layers.mounted() as merged:
        (merged / "src/new").write_text("x")
        (merged / "src/link").symlink_to("new")
        (merged / "src/fresh/deep").mkdir(parents=True)
        (merged / "src/fresh/deep/file").write_text("x")
        (layers.lower / "src/person").write_text("next door")
        bases = layers.take().manifest.bases
    made = (b"src/new", b"src/link", b"src/fresh", b"src/fresh/deep", b"src/fresh/deep/file")
    assert {bases[path].certainty for path in made} == {ABSENT}


def test_what_was_copied_up_is_unknown_where_a_person_removed_it_since(layers: Layers) -> None:
    fill(layers.lower)
    with layers.mounted() as merged:
        (merged / "src/a.py").write_text("the agent's")
        (merged / "src/deep/new").write_text("x")
        (layers.lower / "src/a.py").unlink()
        shutil.rmtree(layers.lower / "src/deep")
        bases = layers.take().manifest.bases
    assert bases[b"src/a.py"].certainty is UNKNOWN
    assert bases[b"src/deep"].certainty is UNKNOWN
    assert bases[b"src/deep/new"].certainty is UNKNOWN


def test_a_deleted_directory_has_the_bases_of_all_that_it_held(layers: Layers) -> None:
    fill(layers.lower)
    with layers.mounted() as merged:
        shutil.rmtree(merged / "docs")
        checkpoint = layers.take()
    bases = checkpoint.manifest.bases
    below = {path: base for path, base in bases.items() if path.startswith(b"docs")}
    assert set(below) == {b"docs", b"docs/x", b"docs/x2", b"docs/old", b"docs/old/y", b"docs/old/z"}
    assert {base.certainty for base in below.values()} == {KNOWN}
    assert all(base.handle and not base.blob for base in below.values())


@pytest.mark.parametrize("kind", ["directory", "file", "symlink"])
def test_whatever_takes_a_directorys_place_hides_what_it_held(layers: Layers, kind: str) -> None:
    fill(layers.lower)
    with layers.mounted() as merged:
        shutil.rmtree(merged / "docs")
        if kind == "directory":
            (merged / "docs").mkdir()
            (merged / "docs/x").write_text("again")
        elif kind == "file":
            (merged / "docs").write_text("a file")
        else:
            (merged / "docs").symlink_to("src")
        bases = layers.take().manifest.bases
    assert {bases[b"docs/old"].certainty, bases[b"docs/old/y"].certainty, bases[b"docs/x2"].certainty} == {KNOWN}
    if kind == "directory":
        assert layers.store.read(bases[b"docs/x"].blob) == b"lower docs/x\n"


def test_what_a_person_adds_to_a_hidden_directory_never_gets_a_base_that_would_delete_it(layers: Layers) -> None:
    fill(layers.lower)
    with layers.mounted() as merged:
        shutil.rmtree(merged / "docs")
        layers.take()
    (layers.lower / "docs/added").write_text("the person's")
    with layers.mounted() as merged:
        bases = layers.take().manifest.bases
        assert b"docs/added" not in bases
        assert bases[b"docs/x"].certainty is KNOWN
        (merged / "docs").mkdir()
        (merged / "docs/added").write_text("the agent's")
        bases = layers.take().manifest.bases
    # The overlay never saw the person's file: to it there was none.
    assert bases[b"docs/added"] == Base(b"docs/added", ABSENT)
    assert bases[b"docs/x"].certainty is KNOWN


def test_what_a_person_adds_to_a_directory_while_it_is_deleted_is_unknown(layers: Layers) -> None:
    fill(layers.lower)
    with layers.mounted() as merged:
        shutil.rmtree(merged / "docs")
        (layers.lower / "docs/added").write_text("the person's")
        bases = layers.take().manifest.bases
    assert bases[b"docs"].certainty is UNKNOWN
    assert KNOWN not in {base.certainty for path, base in bases.items() if path.startswith(b"docs/")}


def test_bases_stay_while_the_path_is_in_the_upper_and_go_with_it(layers: Layers) -> None:
    fill(layers.lower)
    with layers.mounted() as merged:
        (merged / "src/a.py").write_text("the agent's")
        (merged / "gone").write_text("x")
        first = layers.take().manifest.bases
        (merged / "gone").unlink()
        save_by_rename(layers.lower / "src/a.py", "the person's")
        second = layers.take().manifest.bases
    assert second[b"src/a.py"] == first[b"src/a.py"]
    assert b"gone" in first
    assert b"gone" not in second


def test_a_deleted_files_base_gets_its_content_when_the_file_comes_back(layers: Layers) -> None:
    fill(layers.lower)
    with layers.mounted() as merged:
        (merged / "README").unlink()
        first = layers.take().manifest.bases[b"README"]
        (merged / "README").write_text("again")
        second = layers.take().manifest.bases[b"README"]
    assert not first.blob
    assert layers.store.read(second.blob) == b"lower README\n"


def test_without_a_mount_the_lower_is_taken_as_it_is(layers: Layers) -> None:
    fill(layers.lower)
    (layers.upper / "README").write_text("x")
    (layers.upper / "new").write_text("x")
    bases = layers.take(epoch_ns=None, offline=True).manifest.bases
    assert certainties(bases) == {b"": KNOWN, b"README": KNOWN, b"new": ABSENT}


def test_without_an_epoch_nothing_new_is_known(layers: Layers) -> None:
    fill(layers.lower)
    (layers.upper / "README").write_text("x")
    layers.take(epoch_ns=None)
    (layers.upper / "run").write_text("x")
    (layers.upper / "new").write_text("x")
    bases = layers.take(epoch_ns=0).manifest.bases
    assert certainties(bases) == {b"": KNOWN, b"README": KNOWN, b"new": UNKNOWN, b"run": UNKNOWN}


def test_a_ctime_equal_to_the_epoch_is_not_older(layers: Layers) -> None:
    fill(layers.lower)
    (layers.upper / "README").write_text("x")
    ctime = (layers.lower / "README").stat().st_ctime_ns
    assert layers.take(epoch_ns=ctime).manifest.bases[b"README"].certainty is UNKNOWN
    shutil.rmtree(layers.upper)
    layers.upper.mkdir()
    layers.take(epoch_ns=None)
    (layers.upper / "README").write_text("x")
    assert layers.take(epoch_ns=ctime + 1).manifest.bases[b"README"].certainty is KNOWN


def test_a_directory_below_a_mount_point_is_unknown(layers: Layers) -> None:
    fill(layers.lower)
    (layers.upper / "empty").mkdir()
    (layers.upper / "empty/new").write_text("x")
    subprocess.run(["mount", "-t", "tmpfs", "none", str(layers.lower / "empty")], check=True)
    try:
        bases = layers.take(epoch_ns=None).manifest.bases
    finally:
        subprocess.run(["umount", str(layers.lower / "empty")], check=True)
    assert bases[b"empty"].certainty is UNKNOWN
    assert bases[b"empty/new"].certainty is UNKNOWN


def test_a_restored_layer_has_no_origins_and_goes_by_the_bases_it_kept(layers: Layers) -> None:
    fill(layers.lower)
    with layers.mounted() as merged:
        (merged / "src/a.py").write_text("the agent's")
        kept = layers.take()
    with LocalUpper(bytes(layers.upper)) as upper:
        restore(str(layers.upper), upper, Manifest({b"": kept.manifest.entries[b""]}), layers.store)
        restored = restore(str(layers.upper), upper, kept.manifest, layers.store)
    with layers.mounted() as merged:
        (merged / "src/b.py").write_text("the agent's")
        # A person's save next door renews the directory's ctime, but it's the same directory.
        save_by_rename(layers.lower / "src/a.py", "the person's")
        bases = layers.take(previous=restored).manifest.bases
    assert bases[b"src/a.py"] == kept.manifest.bases[b"src/a.py"]
    assert bases[b"src/b.py"].certainty is KNOWN


def test_a_symlink_in_the_lower_is_never_followed(layers: Layers, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    (layers.lower / "d").symlink_to(tmp_path / "outside")
    (layers.upper / "d").mkdir()
    (layers.upper / "d/secret").write_text("x")
    bases = layers.take(epoch_ns=None).manifest.bases
    assert bases[b"d"].kind is Kind.SYMLINK
    assert bases[b"d/secret"] == Base(b"d/secret", ABSENT)
