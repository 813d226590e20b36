from __future__ import annotations

import errno
import multiprocessing
import os
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import git
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoints.layers import Layers, fill
from tests.checkpoints.test_names import DISGUISES
from tests.waiting import wait_until
from workbench.checkpoints import files, manifest_format, names, objects
from workbench.checkpoints.manifest import Base, Certainty, Entry, Manifest
from workbench.checkpoints.restore import restore
from workbench.checkpoints.scan import TRUST_AFTER_NS
from workbench.checkpoints.store import CheckpointStore
from workbench.errors import CheckpointError, OptionsError
from workbench.vfs import syscalls
from workbench.vfs.storage import Kind
from workbench.vfs.upper import LocalUpper


def run_git(store: CheckpointStore, *arguments: str) -> bytes:
    environment = {
        "PATH": os.environ["PATH"],
        "GIT_DIR": store.directory,
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "LC_ALL": "C",
    }
    return subprocess.run(["git", *arguments], env=environment, check=True, capture_output=True, cwd="/").stdout


def check(store: CheckpointStore) -> None:
    """git finds nothing wrong."""
    environment = {"PATH": os.environ["PATH"], "GIT_DIR": store.directory, "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}
    result = subprocess.run(
        ["git", "fsck", "--strict", "--full", "--no-dangling"],
        env=environment,
        capture_output=True,
        cwd="/",
        check=False,
    )
    said = [line for line in result.stderr.splitlines() if not line.startswith(b"notice: HEAD points to an unborn")]
    assert (result.returncode, result.stdout, said) == (0, b"", [])


def test_a_checkpoint_comes_back_whole(layers: Layers) -> None:
    fill(layers.lower)
    (layers.upper / "README").write_text("changed")
    taken = layers.take(label="before", tool_call="call-1", message_id="m")
    with CheckpointStore(layers.store.directory) as store:
        found = store.get(taken.commit)
        assert found == taken
        assert found.manifest == taken.manifest
        assert store.latest("default") == store.find("default", "m") == taken
        assert store.list("default") == [taken]
        assert (found.label, found.tool_call, found.number, found.parent) == ("before", "call-1", 1, "")
        blob = found.manifest.entries[b"README"].blob
        assert store.read(blob) == b"changed"
        assert store.open(blob).read() == b"changed"
        assert store.size(blob) == 7


def test_a_session_without_checkpoints_has_none(layers: Layers) -> None:
    assert layers.store.latest("none") is None
    assert layers.store.list("none") == []


def test_checkpoints_are_a_chain_newest_first(layers: Layers) -> None:
    taken = []
    for number in range(4):
        (layers.upper / "f").write_text(str(number))
        taken.append(layers.take())
    assert layers.store.list("default") == taken[::-1]
    assert [checkpoint.number for checkpoint in taken] == [1, 2, 3, 4]
    assert [checkpoint.parent for checkpoint in taken] == ["", *(checkpoint.commit for checkpoint in taken[:-1])]
    assert run_git(layers.store, "rev-list", "refs/workbench/default/tip").split() == [
        checkpoint.commit.encode() for checkpoint in taken[::-1]
    ]
    check(layers.store)


def test_the_same_tree_is_no_new_commit_and_the_new_id_finds_it(layers: Layers) -> None:
    (layers.upper / "f").write_text("x")
    first = layers.take(message_id="one")
    second = layers.take(message_id="two", label="again")
    assert second.commit == first.commit
    assert (second.number, second.message_id, second.label) == (2, "two", "again")
    assert [checkpoint.message_id for checkpoint in layers.store.list("default")] == ["two", "one"]
    assert layers.store.find("default", "one").commit == layers.store.find("default", "two").commit
    assert run_git(layers.store, "rev-list", "--count", "--all") == b"1\n"


def test_a_lost_index_is_made_anew_from_the_commits(layers: Layers) -> None:
    for number, text in enumerate(["a", "a", "b", "b", "b", "c"]):
        (layers.upper / "f").write_text(text) if number in (0, 2, 5) else None
        layers.take(message_id=f"m{number}\nü\udcff", label=f"label {number}")
    before = layers.store.list("default")
    (index,) = Path(layers.store.directory, "sessions").iterdir()
    whole = index.read_bytes()
    for damaged in (
        None,
        b"",
        whole[:-5],
        whole[: len(whole) // 2],
        b"garbage\n" + whole,
        whole.replace(b'"number":3', b'"number":"3"'),
    ):
        if damaged is None:
            index.unlink()
        else:
            index.write_bytes(damaged)
        with CheckpointStore(layers.store.directory) as store:
            assert store.list("default") == before
    layers.take(message_id="after")
    assert [checkpoint.number for checkpoint in layers.store.list("default")] == [7, 6, 5, 4, 3, 2, 1]
    assert index.read_bytes().startswith(whole)


def test_a_crash_between_reference_and_index_loses_nothing(layers: Layers) -> None:
    (layers.upper / "f").write_text("1")
    layers.take()
    (index,) = Path(layers.store.directory, "sessions").iterdir()
    before = index.read_bytes()
    (layers.upper / "f").write_text("2")
    second = layers.take()
    index.write_bytes(before)
    with CheckpointStore(layers.store.directory) as store:
        assert store.latest("default") == second


def test_a_second_checkpoint_under_one_id_is_refused_unless_it_replaces(layers: Layers) -> None:
    (layers.upper / "f").write_text("1")
    first = layers.take(message_id="m")
    (layers.upper / "f").write_text("2")
    with pytest.raises(CheckpointError) as caught:
        layers.take(message_id="m")
    assert caught.value.code == "checkpoint_exists"
    assert layers.store.list("default") == [first]
    second = layers.take(message_id="m", replace=True)
    assert layers.store.list("default") == [second]
    assert layers.store.find("default", "m") == second
    assert layers.store.get(first.commit).manifest == first.manifest


@pytest.mark.parametrize("message_id", ["", "x" * 257])
def test_a_message_id_has_1_to_256_characters(layers: Layers, message_id: str) -> None:
    with pytest.raises(OptionsError):
        layers.take(message_id=message_id)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(
    message_id=st.text(st.characters(), min_size=1, max_size=256),
    session=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=15),
    label=st.text(st.characters(), max_size=50),
)
def test_ids_sessions_and_labels_may_be_any_text(layers: Layers, message_id: str, session: str, label: str) -> None:
    layers.number += 1
    (layers.upper / "f").write_text(str(layers.number))
    with LocalUpper(bytes(layers.upper)) as upper, LocalUpper(bytes(layers.lower)) as lower:
        taken = layers.store.take(
            session, upper, lower, message_id=message_id, label=label, epoch_ns=None, replace=True
        )
    with CheckpointStore(layers.store.directory) as store:
        found = store.get(taken.commit)
        assert (found.session, found.message_id, found.label) == (session, message_id, label)
        assert store.find(session, message_id).commit == taken.commit
    # No message id is ever part of a reference, and each reference is one git accepts.
    reference = f"refs/workbench/{names.escape_reference(os.fsencode(session))}/tip"
    assert run_git(layers.store, "rev-parse", reference).strip().decode() == taken.commit


@pytest.mark.parametrize("commit", ["HEAD", "refs/workbench/default/tip", "0" * 39, "A" * 40, "0" * 40, "../../x", ""])
def test_only_a_commits_full_id_is_a_commit(layers: Layers, commit: str) -> None:
    layers.take()
    with pytest.raises(CheckpointError) as caught:
        layers.store.get(commit)
    assert caught.value.code == "checkpoint_not_found"


def test_an_object_that_is_no_checkpoint_is_none(layers: Layers) -> None:
    (layers.upper / "f").write_text("x")
    taken = layers.take()
    with pytest.raises(CheckpointError) as caught:
        layers.store.get(taken.manifest.entries[b"f"].blob)
    assert caught.value.code == "checkpoint_not_found"
    with pytest.raises(CheckpointError, match="no checkpoint 'other'"):
        layers.store.find("default", "other")


def test_git_itself_reads_a_checkpoint(layers: Layers) -> None:
    fill(layers.lower)
    (layers.upper / "src").mkdir()
    (layers.upper / "src/a.py").write_text("one\n")
    (layers.upper / "tool").write_text("#!/bin/sh\n")
    (layers.upper / "tool").chmod(0o750)
    (layers.upper / "link").symlink_to("tool")
    layers.take(message_id="m-1", label="two\nlines")
    (layers.upper / "src/a.py").write_text("one\ntwo\n")
    layers.take(message_id="m-2")
    tip = "refs/workbench/default/tip"
    assert run_git(layers.store, "log", "--format=%s", tip) == b"m-2\nm-1: two lines\n"
    assert run_git(layers.store, "show", f"{tip}:f/src/a.py") == b"one\ntwo\n"
    assert run_git(layers.store, "show", f"{tip}:b/src/a.py") == b"lower src/a.py\n"
    assert b"+two" in run_git(layers.store, "diff", f"{tip}~1", tip, "--", "f")
    modes = {line.split(b"\t")[1]: line[:6] for line in run_git(layers.store, "ls-tree", "-r", tip).splitlines()}
    assert (modes[b"f/tool"], modes[b"f/link"], modes[b"f/src/a.py"]) == (b"100755", b"120000", b"100644")
    trailers = run_git(layers.store, "log", "-1", "--format=%(trailers:only,unfold)", tip).decode()
    assert 'Workbench-Message: "m-2"' in trailers
    assert 'Workbench-Parent-Message: "m-1"' in trailers
    check(layers.store)


def test_gitpython_reads_a_checkpoint(layers: Layers) -> None:
    for name in [*DISGUISES[:4], b"caf\xe9", b"new\nline"]:
        with open(os.path.join(bytes(layers.upper), name), "wb") as file:
            file.write(name)
    first = layers.take()
    (layers.upper / "f").write_text("x")
    layers.take()
    with git.Repo(layers.store.directory) as repository:
        commits = list(repository.iter_commits("refs/workbench/default/tip"))
        assert len(commits) == 2
        assert commits[1].hexsha == first.commit
        blobs = {blob.name: blob.data_stream.read() for blob in commits[1].tree["f"].blobs}
        assert {names.unescape(name.encode()) for name in blobs} == set(blobs.values())
        assert [change.b_path for change in commits[1].diff(commits[0]) if change.new_file] == ["f/f"]


def test_the_strictest_check_finds_nothing_whatever_the_names_and_contents(layers: Layers) -> None:
    upper = bytes(layers.upper)
    nasty = [
        *DISGUISES,
        b".mailmap",
        b".gitignore",
        b"caf\xe9",
        b"new\nline",
        b"tab\t",
        b"%41",
        b" lead",
        b"trail ",
        b"back\\.git",
        b"x" * 255,
    ]
    nasty += ["é".encode(), "e\u0301".encode(), b"CON", b"nul", b"-rf", b"a:b", b"Case", b"case", b"..x", b"..."]
    for name in dict.fromkeys(nasty):
        os.mkdir(os.path.join(upper, b"d" + name[:250]))
        os.makedirs(os.path.join(upper, b"dirs", name))
        with open(os.path.join(upper, b"dirs", name, name), "wb") as file:
            file.write(b'[submodule "x"]\n path = ../../x\n url = -u./payload\n' + b"x" * 3000)
        os.symlink(b".git/config", os.path.join(upper, b"s" + name[:250]))
    for name in (b".gitmodules", b".gitattributes", b".gitignore", b".mailmap", b".git"):
        os.symlink(b"/etc/passwd", os.path.join(upper, name))
    taken = layers.take()
    check(layers.store)
    listed = run_git(layers.store, "ls-tree", "-r", "-z", "--name-only", f"{taken.commit}:f").split(b"\0")[:-1]
    expected = {path for path, entry in taken.manifest.entries.items() if entry.blob}
    assert {b"/".join(map(names.unescape, path.split(b"/"))) for path in listed} == expected


def test_a_tree_too_deep_for_git_is_kept_beside(layers: Layers) -> None:
    deep = layers.upper / "/".join(["x"] * 600)
    deep.mkdir(parents=True)
    (deep / "f").write_text("deep")
    taken = layers.take()
    check(layers.store)
    run_git(layers.store, "diff", "--stat", f"{taken.commit}", "4b825dc642cb6eb9a060e54bf8d69288fbee4904")
    run_git(layers.store, "repack", "-adq")
    with CheckpointStore(layers.store.directory) as store:
        entry = store.get(taken.commit).manifest.entries[b"x/" * 600 + b"f"]
        assert store.read(entry.blob) == b"deep"


def test_no_git_is_ever_run(layers: Layers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "ran"
    trap = tmp_path / "bin"
    trap.mkdir()
    (trap / "git").write_text(f"#!/bin/sh\ntouch {marker}\n")
    (trap / "git").chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        f"[core]\nhooksPath={trap}\nfsmonitor={trap}/git\n[commit]\ngpgSign=true\n[gpg]\nprogram={trap}/git\n"
    )
    for name, value in {
        "PATH": str(trap),
        "HOME": str(home),
        "GIT_DIR": str(home),
        "GIT_OBJECT_DIRECTORY": str(home),
    }.items():
        monkeypatch.setenv(name, value)
    (layers.upper / ".gitattributes").write_text("* filter=evil text eol=crlf\n")
    (layers.upper / "f").write_bytes(b"a\r\nb\n")
    taken = layers.take()
    with LocalUpper(bytes(layers.upper)) as upper:
        restore(str(layers.upper), upper, Manifest({b"": taken.manifest.entries[b""]}), layers.store)
        restore(str(layers.upper), upper, taken.manifest, layers.store)
    assert (layers.upper / "f").read_bytes() == b"a\r\nb\n"
    assert not marker.exists()
    assert sorted(path.name for path in home.iterdir()) == [".gitconfig"]


def test_a_nested_repository_is_kept_file_by_file(layers: Layers) -> None:
    (layers.upper / "nested").mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "init", "-q"], cwd=layers.upper / "nested", env=environment, check=True)
    taken = layers.take()
    assert b"nested/.git/HEAD" in taken.manifest.entries
    assert run_git(layers.store, "show", f"{taken.commit}:f/nested/%2Egit/HEAD").startswith(b"ref: ")
    check(layers.store)


def test_a_big_file_is_kept_beside_with_a_pointer_in_the_tree(layers: Layers) -> None:
    content = os.urandom(9 << 20)
    (layers.upper / "big").write_bytes(content)
    (layers.upper / "copy").write_bytes(content)
    with (layers.upper / "sparse").open("wb") as file:
        file.truncate(64 << 20)
    taken = layers.take()
    blob = taken.manifest.entries[b"big"].blob
    assert blob.startswith("big:")
    assert taken.manifest.entries[b"copy"].blob == blob
    assert layers.store.has(blob)
    assert layers.store.size(blob) == 9 << 20
    with layers.store.open(blob) as stream:
        assert stream.read() == content == layers.store.read(blob)
    pointer = run_git(layers.store, "show", f"{taken.commit}:f/big").decode()
    assert blob.removeprefix("big:") in pointer
    assert "size 9437184" in pointer
    sparse = taken.manifest.entries[b"sparse"].blob.removeprefix("big:")
    assert Path(layers.store.directory, "big", sparse).stat().st_blocks == 0
    check(layers.store)


def test_what_the_store_has_is_not_written_again(layers: Layers) -> None:
    for number in range(400):
        (layers.upper / f"f{number}").write_bytes(os.urandom(500))
    layers.take()
    packs = Path(layers.store.directory, "objects/pack")
    before = set(packs.glob("*.pack"))
    for number in range(400):
        (layers.upper / f"f{number}").rename(layers.upper / f"g{number}")
    layers.take()
    (new,) = set(packs.glob("*.pack")) - before
    assert new.stat().st_size < 60_000
    assert {path.name.split("-")[0] for path in packs.iterdir()} == {"pack"}
    assert {path.name for path in packs.parent.iterdir()} == {"pack", "info"}


def test_what_gits_own_repacking_left_is_read(layers: Layers) -> None:
    text = "".join(f"line {number}\n" for number in range(2000))
    taken = []
    for number in range(6):
        (layers.upper / "f").write_text(text + f"version {number}\n")
        taken.append(layers.take())
    manifests = [checkpoint.manifest for checkpoint in taken]
    run_git(layers.store, "repack", "-adfq", "--depth=50")
    run_git(layers.store, "pack-refs", "--all")
    assert b"chain length" in run_git(layers.store, "verify-pack", "-v", *_indexes(layers))
    # The store that was open all along, and a fresh one.
    with CheckpointStore(layers.store.directory) as fresh:
        for store in (layers.store, fresh):
            for number, checkpoint in enumerate(taken):
                found = store.get(checkpoint.commit).manifest
                assert found == manifests[number]
                assert store.read(found.entries[b"f"].blob).endswith(f"version {number}\n".encode())
            assert store.latest("default") == taken[-1]
    (layers.upper / "f").write_text("on top")
    assert layers.take().parent == taken[-1].commit
    check(layers.store)


def _indexes(layers: Layers) -> list[str]:
    return [str(path) for path in Path(layers.store.directory, "objects/pack").glob("*.idx")]


@pytest.mark.parametrize(
    "damage", ["cut pack", "flipped byte", "no pack", "cut index", "flipped index", "no packs at all"]
)
def test_a_damaged_store_says_so_and_reads_what_is_whole(layers: Layers, damage: str) -> None:
    (layers.upper / "f").write_text("first" * 200)
    first = layers.take()
    (layers.upper / "f").write_text("second" * 200)
    packs = Path(layers.store.directory, "objects/pack")
    old = set(packs.iterdir())
    second = layers.take()
    pack, index = sorted(set(packs.iterdir()) - old, key=lambda path: path.suffix, reverse=True)
    for path in packs.iterdir():
        path.chmod(0o600)
    if damage == "cut pack":
        os.truncate(pack, pack.stat().st_size - 30)
    elif damage == "flipped byte":
        pack.write_bytes(bytes(byte ^ 0x55 if 20 < at < 60 else byte for at, byte in enumerate(pack.read_bytes())))
    elif damage == "no pack":
        pack.unlink()
    elif damage == "cut index":
        os.truncate(index, 100)
    elif damage == "flipped index":
        content = bytearray(index.read_bytes())
        content[1100] ^= 1
        index.write_bytes(content)
    else:
        for path in packs.iterdir():
            path.unlink()
    with CheckpointStore(layers.store.directory) as store:
        with pytest.raises(CheckpointError) as caught:
            store.read(second.manifest.entries[b"f"].blob)
        assert caught.value.code == "store_corrupt"
        if damage != "flipped byte":
            with pytest.raises(CheckpointError) as caught:
                store.find("default", "m2").manifest  # noqa: B018
            assert caught.value.code == "store_corrupt"
            with pytest.raises(CheckpointError) as caught:
                replace(layers, store=store).take()
            assert caught.value.code == "store_corrupt"
        if damage != "no packs at all":
            assert store.get(first.commit).manifest.entries.keys() == {b"", b"f"}
            assert store.read(first.manifest.entries[b"f"].blob) == b"first" * 200


def test_a_damaged_reference_is_said(layers: Layers) -> None:
    layers.take()
    Path(layers.store.directory, "refs/workbench/default/tip").write_bytes(b"\0" * 41)
    with pytest.raises(CheckpointError) as caught:
        layers.store.latest("default")
    assert caught.value.code == "store_corrupt"


def test_a_full_disk_half_way_leaves_everything_as_it_was(layers: Layers, monkeypatch: pytest.MonkeyPatch) -> None:
    (layers.upper / "f").write_text("first")
    first = layers.take()
    for number in range(300):
        (layers.upper / f"f{number}").write_bytes(os.urandom(9000))
    listing = sorted(str(path) for path in Path(layers.store.directory).rglob("*"))
    steps = {"pwrite": 4, "fsync": 4, "rename": 3}
    real = {name: getattr(os, name) for name in steps}
    for name, count in steps.items():
        for at in range(count):
            left = [at]

            def fail(
                *arguments: object, real_call: object = real[name], left: list[int] = left, **options: object
            ) -> object:
                if left[0] == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                left[0] -= 1
                return real_call(*arguments, **options)  # type: ignore[operator]

            with monkeypatch.context() as patch:
                patch.setattr(os, name, fail)
                with pytest.raises(CheckpointError) as caught:
                    layers.take()
            assert caught.value.code == "checkpoint_failed"
            assert "disk space" in str(caught.value.hint)
            assert layers.store.latest("default") == first
            now = sorted(str(path) for path in Path(layers.store.directory).rglob("*"))
            # A finished pack without a reference may stay; nothing half-written does.
            assert not [path for path in set(now) - set(listing) if os.path.basename(path).startswith(("tmp", "."))]
    assert len(layers.take().manifest.entries) == 302
    check(layers.store)


@pytest.mark.root
@pytest.mark.usefixtures("root")
def test_a_really_full_disk_is_an_error_and_not_more(layers: Layers) -> None:
    small = layers.path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(small)], check=True)
    try:
        with CheckpointStore(small / "s") as store, LocalUpper(bytes(layers.upper)) as upper:
            store.take("s", upper, upper, message_id="1", epoch_ns=0)
            (layers.upper / "f").write_bytes(os.urandom(3 << 20))
            (layers.upper / "big").write_bytes(os.urandom(9 << 20))
            for _ in range(2):
                with pytest.raises(CheckpointError, match="space"):
                    store.take("s", upper, upper, message_id="2", epoch_ns=0)
            (layers.upper / "f").unlink()
            (layers.upper / "big").unlink()
            assert store.take("s", upper, upper, message_id="2", epoch_ns=0).number == 2
            check(store)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_what_a_killed_writer_left_is_swept_and_a_living_ones_is_not(layers: Layers) -> None:
    packs = Path(layers.store.directory, "objects/pack")
    fd = os.open(packs, os.O_RDONLY)
    try:
        living, living_fd = files.create_temporary(fd, "pack")
        dead, dead_fd = files.create_temporary(fd, "pack")
        os.close(dead_fd)
        Path(layers.store.directory, "big", "tmp_big_1").touch()
        CheckpointStore(layers.store.directory).close()
        assert {path.name for path in packs.iterdir()} == {living}
        assert dead not in os.listdir(packs)
        assert os.listdir(Path(layers.store.directory, "big")) == []
        os.close(living_fd)
    finally:
        os.close(fd)


def _take_many(path: Path, session: str, count: int) -> None:
    upper_path = path / f"upper-{session}"
    upper_path.mkdir()
    with CheckpointStore(path / "store") as store, LocalUpper(bytes(upper_path)) as upper:
        for number in range(count):
            (upper_path / "f").write_text(f"{session} {number}")
            store.take(session, upper, upper, message_id=str(number), epoch_ns=0)


def test_sessions_share_a_store_at_the_same_time(tmp_path: Path) -> None:
    sessions = ["a", "A", "with/slash", "é"]
    context = multiprocessing.get_context("spawn")
    arguments = [(tmp_path, session.replace("/", "-"), 12) for session in sessions]
    processes = [context.Process(target=_take_many, args=each) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        assert process.exitcode == 0
    with CheckpointStore(tmp_path / "store") as store:
        for _, session, count in arguments:
            assert [checkpoint.number for checkpoint in store.list(session)] == list(range(count, 0, -1))
        check(store)


def test_two_takers_of_one_session_do_not_mix(layers: Layers, monkeypatch: pytest.MonkeyPatch) -> None:
    (layers.upper / "f").write_text("1")
    layers.take()
    (layers.upper / "f").write_text("2")
    other = CheckpointStore(layers.store.directory)
    real = files.probe

    def meddle(directory: str) -> os.stat_result:
        monkeypatch.setattr(files, "probe", real)
        with LocalUpper(bytes(layers.upper)) as upper:
            other.take("default", upper, upper, message_id="theirs", epoch_ns=0)
        return real(directory)

    monkeypatch.setattr(files, "probe", meddle)
    with pytest.raises(CheckpointError, match="Another process"):
        layers.take()
    other.close()
    assert [checkpoint.message_id for checkpoint in layers.store.list("default")] == ["theirs", "m1"]


def test_nobody_waits_for_a_session_that_is_being_read(layers: Layers, monkeypatch: pytest.MonkeyPatch) -> None:
    real = files.probe
    taken: list[int] = []

    def theirs() -> None:
        with CheckpointStore(layers.store.directory) as store, LocalUpper(bytes(layers.upper)) as upper:
            taken.append(store.take("other", upper, upper, message_id="theirs", epoch_ns=0).number)

    def meanwhile(directory: str) -> os.stat_result:
        monkeypatch.setattr(files, "probe", real)
        thread = threading.Thread(target=theirs, daemon=True)
        thread.start()
        thread.join(300)
        assert taken == [1], "the other session waits"
        return real(directory)

    (layers.upper / "f").write_text("1")
    monkeypatch.setattr(files, "probe", meanwhile)
    assert layers.take().number == 1
    assert taken == [1]


def test_reading_goes_on_while_another_thread_takes(layers: Layers) -> None:
    (layers.upper / "f").write_text("x")
    first = layers.take()
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            with CheckpointStore(layers.store.directory) as store:
                while not stop.is_set():
                    assert store.get(first.commit).manifest == first.manifest
                    latest = store.latest("default")
                    assert latest is not None
                    assert b"f" in latest.manifest.entries
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(30):
        (layers.upper / "f").write_text(str(number))
        layers.take()
    stop.set()
    thread.join()
    assert not failures


def test_the_store_is_private(layers: Layers) -> None:
    assert Path(layers.store.directory).stat().st_mode & 0o777 == 0o700


small = st.integers(0, 2**63 - 1)
name = st.binary(max_size=30).filter(lambda value: b"\0" not in value)


@given(
    st.lists(
        st.builds(
            Entry,
            name,
            st.sampled_from(Kind),
            st.integers(0, 0o7777),
            small,
            small,
            small,
            st.integers(-(2**62), 2**62),
            small,
            small,
            small,
            st.lists(st.tuples(st.binary(min_size=1, max_size=9), st.binary(max_size=9)), max_size=3).map(tuple),
            st.lists(st.tuples(small, small), max_size=3).map(tuple),
            st.sampled_from(["", "a" * 40, "big:" + "0" * 64]),
            st.booleans(),
            st.sampled_from(["", "unreadable"]),
        )
    ),
    st.lists(
        st.builds(
            Base,
            name,
            st.sampled_from(Certainty),
            st.sampled_from(Kind),
            st.integers(0, 0o7777),
            small,
            small,
            small,
            st.integers(-(2**62), 2**62),
            small,
            small,
            st.binary(max_size=20),
            st.sampled_from(["", "b" * 40]),
        )
    ),
)
def test_a_manifest_survives_its_file(entries: list[Entry], bases: list[Base]) -> None:
    manifest = Manifest({e.path: e for e in entries}, {b.path: b for b in bases}, "boot", 5)
    data = manifest_format.to_bytes(manifest)
    assert manifest_format.from_bytes(data, boot_id="boot", scanned_ns=5) == manifest
    assert manifest_format.to_bytes(manifest_format.from_bytes(data)) == data


@given(st.data())
def test_a_manifest_cut_anywhere_never_reads_as_another(data: st.DataObject) -> None:
    entry = Entry(b"a", Kind.FILE, 0o644, 0, 0, 1, 2, 3, 4, blob="a" * 40)
    whole = manifest_format.to_bytes(Manifest({b"": entry, b"a": entry}, {b"a": Base(b"a", Certainty.KNOWN)}))
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(CheckpointError) as caught:
        manifest_format.from_bytes(cut)
    assert caught.value.code == "store_corrupt"


def test_trailers_that_cannot_be_read_are_damage() -> None:
    commit = objects.encode_commit(b"\1" * 20, None, 0, "s", {"Schema": 1}).replace(b": 1", b": {")
    with pytest.raises(CheckpointError) as caught:
        objects.decode_commit(commit)
    assert caught.value.code == "store_corrupt"


def test_nothing_is_read_that_the_last_checkpoint_knows(layers: Layers, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        (layers.upper / f"f{number}").write_text(f"content {number}")
    (layers.upper / "big").write_bytes(b"x" * (9 << 20))
    layers.take()
    # What was changed in the last seconds before a scan isn't trusted yet.
    aged = layers.store.latest("default")
    assert aged is not None
    wait_until(
        lambda: layers.tick() - max(e.ctime_ns for e in aged.manifest.entries.values()) > TRUST_AFTER_NS,
        "the changes are old enough to be trusted",
    )
    layers.take(message_id="again")
    read: list[int] = []
    real_read, real_copy = os.read, syscalls.copy_data
    monkeypatch.setattr(os, "read", lambda fd, size: read.append(fd) or real_read(fd, size))
    monkeypatch.setattr(syscalls, "copy_data", lambda source, target: read.append(source) or real_copy(source, target))
    (layers.upper / "f7").write_text("changed")
    read.clear()
    taken = layers.take(message_id="one changed")
    assert len(read) == 1
    assert layers.store.read(taken.manifest.entries[b"f7"].blob) == b"changed"


@pytest.mark.parametrize("packed", [False, True])
def test_a_session_that_is_dropped_leaves_the_others_whole(layers: Layers, packed: bool) -> None:
    kept = []
    for number in range(3):
        (layers.upper / "shared").write_text(f"in both {number}")
        kept.append(layers.take(session="kept.one"))
        layers.take(session="gone.one")
    layers.take(session="gone.one/git")
    if packed:
        run_git(layers.store, "pack-refs", "--all")
    assert layers.store.sessions() == ["gone.one", "gone.one/git", "kept.one"]
    layers.store.drop_session("gone.one")
    for store in (layers.store, CheckpointStore(layers.store.directory)):
        with store:
            assert store.sessions() == ["gone.one/git", "kept.one"]
            assert store.latest("gone.one") is None
            assert store.list("kept.one") == kept[::-1]
            assert [store.read(each.manifest.entries[b"shared"].blob) for each in kept][-1] == b"in both 2"
    check(layers.store)
    with CheckpointStore(layers.store.directory) as store:
        store.drop_session("gone.one")
        store.drop_session("never was")
        assert store.sessions() == ["gone.one/git", "kept.one"]


def test_a_session_half_dropped_is_gone_and_its_name_can_be_used_again(layers: Layers) -> None:
    (layers.upper / "f").write_text("old")
    layers.take(session="s")
    os.unlink(os.path.join(layers.store.directory, "refs", "workbench", "s", "tip"))
    with CheckpointStore(layers.store.directory) as store:
        assert store.sessions() == []
        assert store.list("s") == []
    (layers.upper / "f").write_text("new")
    anew = layers.take(session="s")
    assert layers.store.list("s") == [anew]
    assert anew.number == 1


def test_each_pack_is_known_by_whose_checkpoints_it_holds(layers: Layers) -> None:
    for number in range(2):
        (layers.upper / "f").write_text(str(number))
        layers.take(session="one")
    (layers.upper / "f").write_text("another")
    layers.take(session="two")
    layers.take(session="two", message_id="the same tree")
    one, two = layers.store.packs("one"), layers.store.packs("two")
    assert (sorted(one.values()), sorted(two.values())) == ([1, 1], [1])
    assert not one.keys() & two.keys()
    assert all(os.path.isfile(path) for path in (*one, *two))
    assert layers.store.packs("none") == {}
    run_git(layers.store, "repack", "-adq")
    with CheckpointStore(layers.store.directory) as store:
        (pack,) = store.packs("one")
        assert (store.packs("one"), store.packs("two")) == ({pack: 2}, {pack: 1})
