"""Rewind, redo, fork, discard: the overlay shows again what it showed, and what was there can be had back."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.checkpoints.layers import fill
from tests.trees import snapshot
from tests.waiting import wait_until
from tests.worked import Worked
from workbench.checkpoints import upkeep
from workbench.checkpoints.upkeep import Retention
from workbench.errors import CheckpointError, OptionsError, OverlayError
from workbench.workspace import Workspace


@pytest.fixture
def worked(state: Path, tmp_path: Path) -> Worked:
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    workspace = tmp_path / "w"
    workspace.mkdir()
    fill(workspace)
    return Worked(workspace, tmp_path / "merged")


def test_a_rewind_shows_what_was_there_and_redo_what_was_there_before_it(worked: Worked) -> None:
    before = snapshot(worked.workspace)
    worked.checkpoint("start")
    start = worked.view()
    views = {}
    for number in range(3):
        with worked.mounted() as merged:
            (merged / "README").write_text(f"message {number}")
            (merged / f"new{number}").mkdir()
            shutil.rmtree(merged / "docs", ignore_errors=True)
        worked.checkpoint(f"m{number}")
        views[f"m{number}"] = worked.view()
    for message in ("m0", "m1", "start"):
        worked.rewind(message)
        assert worked.view() == views.get(message, start)
    for expected in ("m1", "m0", "m2"):
        worked.redo()
        assert worked.view() == views[expected]
    with pytest.raises(CheckpointError) as caught:
        worked.redo()
    assert caught.value.code == "nothing_to_redo"
    assert snapshot(worked.workspace) == before


def test_what_was_done_since_a_rewind_is_kept_by_redo(worked: Worked) -> None:
    worked.checkpoint("start")
    with worked.mounted() as merged:
        (merged / "one").write_text("1")
    worked.rewind("start")
    with worked.mounted() as merged:
        (merged / "two").write_text("2")
    said = worked.redo().journey
    assert (said.removed, said.restored) == ((b"two",), (b"one",))
    worked.rewind(said.before)
    assert {b"two"} == worked.told().keys()


def test_a_discard_is_taken_back_by_redo(worked: Worked) -> None:
    with worked.mounted() as merged:
        (merged / "README").write_text("mine")
        merged.chmod(0o700)
    view = worked.view()
    worked.discard()
    assert worked.told() == {}
    worked.redo()
    assert worked.view() == view
    assert worked.told() == {b"": "mode", b"README": "modified"}


def test_of_some_paths_a_discard_leaves_all_else_as_it_is(worked: Worked) -> None:
    def discard(*only: bytes) -> tuple[int, int]:
        done = worked.do(lambda workspace: workspace.discard(only=only))
        return done.changes, len(done.left.shown)

    with worked.mounted() as merged:
        (merged / "README").write_text("mine")
        shutil.rmtree(merged / "docs")
        (merged / "new" / "deep").mkdir(parents=True)
        (merged / "new" / "deep" / "file").write_text("new")
        (merged / "new" / "other").write_text("other")
        (merged / "_notes").mkdir()
        (merged / "_notes" / "a").write_text("a note")
        merged.chmod(0o700)
    view = worked.view()
    everything = worked.told()
    assert discard(b"docs/x2", b"new/deep") == (2, len(everything) - 2)
    rest = {path: kind for path, kind in everything.items() if path not in (b"docs/x2", b"new/deep/file")}
    assert worked.told() == rest
    shown = worked.view()
    assert shown[b"README"].content == b"mine"
    assert shown[b"docs/x2"].content == b"lower docs/x\n"
    assert b"new/deep" not in shown
    # What no listing shows goes where it's named, too.
    assert discard(b"_notes") == (0, len(rest))
    assert b"_notes/a" not in worked.view()
    # The root's mode stays what it was made, as all that isn't named.
    assert discard(*rest.keys() - {b""})[1] == 1
    assert worked.told() == {b"": "mode"}
    for _ in range(3):
        worked.redo()
    assert without_directory_times(worked.view()) == without_directory_times(view)


def test_a_rewind_across_commits_shows_what_was_there_and_touches_nothing(worked: Worked) -> None:
    worked.checkpoint("start")
    start = worked.view()
    with worked.mounted() as merged:
        (merged / "README").write_text("first")
        (merged / "run").chmod(0o700)
        shutil.rmtree(merged / "docs")
        (merged / "docs").write_text("a file now")
        (merged / "link").unlink()
        (merged / "fresh" / "deep").mkdir(parents=True)
        (merged / "fresh" / "deep" / "file").write_text("fresh")
    worked.checkpoint("first")
    first = worked.view()
    worked.commit(allow_risky=True)
    assert worked.told() == {}
    with worked.mounted() as merged:
        (merged / "README").write_text("second")
        (merged / "fresh" / "deep" / "file").unlink()
        (merged / "fresh" / "deep" / "other").write_text("other")
    worked.commit(allow_risky=True)
    landed = snapshot(worked.workspace)
    latest = worked.view()
    for message, expected in (("first", first), ("start", start)):
        worked.rewind(message)
        assert without_directory_times(worked.view()) == without_directory_times(expected)
    assert snapshot(worked.workspace) == landed
    # What it would land is the inverse of both, and it lands.
    worked.commit(allow_risky=True)
    assert without_directory_times(worked.view()) == without_directory_times(start)
    worked.redo()
    assert without_directory_times(worked.view()) == without_directory_times(first)
    worked.redo()
    assert without_directory_times(worked.view()) == without_directory_times(latest)


def test_what_commits_added_is_not_listed_in_a_directory_that_a_later_one_removed(worked: Worked) -> None:
    """The kernel lists a whiteout where the lower has no directory under its own."""
    worked.checkpoint("start")
    start = worked.view()
    with worked.mounted() as merged:
        (merged / "docs" / "old" / "added").write_text("x")
        (merged / "src" / "deep" / "more").mkdir()
    worked.commit()
    with worked.mounted() as merged:
        shutil.rmtree(merged / "docs")
        shutil.rmtree(merged / "src" / "deep")
    worked.commit()
    for only in ([], [b"docs/old"], [b"src"], [b"docs/old/added", b"docs/old/y"]):
        worked.rewind("start", only=only)
        view = without_directory_times(worked.view())
        expected = without_directory_times(start)
        assert {path: view[path] for path in view if path in expected} == {path: expected[path] for path in view}
        assert only or view == expected
        worked.redo()


def test_what_a_person_changed_after_a_commit_stays_and_is_said(worked: Worked, tmp_path: Path) -> None:
    worked.checkpoint("start")
    with worked.mounted() as merged:
        (merged / "README").write_text("landed")
        (merged / "run").write_text("landed")
        (merged / "fresh").mkdir()
        (merged / "fresh" / "ours").write_text("ours")
    worked.commit(allow_risky=True)
    workspace = tmp_path / "w"
    (workspace / "README").write_text("a person's")
    (workspace / "fresh" / "theirs").write_text("theirs")
    said = worked.rewind("start").journey
    assert said.left == (b"README", b"fresh")
    view = worked.view()
    assert view[b"README"].content == b"a person's"
    assert view[b"run"].content == b"#!/bin/sh\n"
    assert b"fresh/theirs" in view
    assert b"fresh/ours" not in view


def test_what_a_revert_took_back_is_not_said_to_stay_and_lands_again(worked: Worked, tmp_path: Path) -> None:
    worked.checkpoint("start")
    start = worked.view()
    with worked.mounted() as merged:
        (merged / "README").write_text("landed")
        (merged / "run").chmod(0o700)
        shutil.rmtree(merged / "docs")
        (merged / "fresh").mkdir()
        (merged / "fresh" / "ours").write_text("ours")
    worked.checkpoint("changed")
    changed = worked.view()
    landed = worked.commit(allow_risky=True)
    worked.do(lambda workspace: workspace.revert(landed.committed.commit_id))
    assert worked.rewind("start").journey.left == ()
    assert without_directory_times(worked.view()) == without_directory_times(start)
    assert worked.told() == {}
    assert worked.rewind("changed").journey.left == ()
    assert without_directory_times(worked.view()) == without_directory_times(changed)
    worked.commit(allow_risky=True)
    assert (tmp_path / "w" / "README").read_text() == "landed"
    # Of what a person has put back by hand, too, nothing is left to be taken back.
    (tmp_path / "w" / "fresh" / "ours").unlink()
    (tmp_path / "w" / "fresh").rmdir()
    assert worked.rewind("start").journey.left == ()
    assert without_directory_times(worked.view()) == without_directory_times(start)


def test_another_sessions_commit_is_not_taken_back(worked: Worked, tmp_path: Path) -> None:
    worked.checkpoint("start")
    other = Worked(tmp_path / "w", tmp_path / "merged", "other")
    with other.mounted() as merged:
        (merged / "README").write_text("other's")
    other.commit()
    with worked.mounted() as merged:
        (merged / "run").write_text("ours")
    worked.rewind("start")
    assert worked.told() == {}


@pytest.mark.parametrize(
    "make",
    [
        "rm README",
        "rm -r docs",
        "rm -r docs; mkdir docs; echo x > docs/new",
        "rm -r docs; mkdir docs; echo x > docs/new; mkdir docs/old; echo x > docs/old/y; echo x > docs/old/q",
        "rm src/a.py; echo x > src/b.py; chmod 700 src/deep",
        "mv docs elsewhere; mkdir -p docs/old/y",
    ],
)
@pytest.mark.parametrize("path", [b"README", b"docs", b"docs/x", b"docs/old/y", b"docs/old", b"src/a.py", b"not/there"])
@pytest.mark.parametrize("is_older", [True, False])
def test_one_path_comes_back_alone(worked: Worked, make: str, path: bytes, is_older: bool) -> None:
    """Both ways: to before a script, and from before it to after it."""
    worked.checkpoint("start")
    old = worked.view()
    with worked.mounted() as merged:
        assert os.system(f"cd {merged} && {make}") == 0
    worked.checkpoint("after")
    new = worked.view()
    if not is_older:
        worked.rewind("start")
        old, new = new, old
    target = "start" if is_older else "after"
    parent = path.rpartition(b"/")[0]
    if parent and path in old and stat.S_ISREG(new[parent].mode if parent in new else 0):
        with pytest.raises(CheckpointError, match="is no directory any more"):
            worked.rewind(target, only=[path])
        return
    worked.rewind(target, only=[path])
    view = worked.view()

    def at(tree: dict[bytes, object], inside: bool) -> dict[bytes, object]:
        above = {path.rsplit(b"/", count)[0] for count in range(1, 4)} | {b""}
        return {
            each: told
            for each, told in tree.items()
            if (each == path or each.startswith(path + b"/")) is inside and (inside or each not in above)
        }

    assert plain(at(view, True)) == plain(at(old, True))
    assert plain(at(view, False)) == plain(at(new, False))


def plain(tree: dict[bytes, object]) -> dict[bytes, object]:
    """Without what else shares an inode: that may lie outside."""
    return {path: told._replace(link=b"") for path, told in without_directory_times(tree).items()}  # type: ignore[attr-defined]


def test_what_was_made_where_a_file_was_goes_alone(worked: Worked) -> None:
    worked.checkpoint("start")
    with worked.mounted() as merged:
        (merged / "README").unlink()
        (merged / "README" / "in").mkdir(parents=True)
        (merged / "README" / "in" / "gone").write_text("x")
        (merged / "README" / "stays").write_text("x")
    worked.rewind("start", only=[b"README/in/gone"])
    assert {path for path in worked.view() if path.startswith(b"README")} == {
        b"README",
        b"README/in",
        b"README/stays",
    }


def test_a_path_is_a_name_and_no_pattern(worked: Worked) -> None:
    names = [b"*", b"a*", b"ab", b"[ab]", b"a", b":(glob)**", b"?", b"!a", b"a\\b", b" a"]

    def write(content: bytes) -> None:
        with worked.mounted() as merged:
            for name in names:
                Path(os.fsdecode(os.path.join(bytes(merged), name))).write_bytes(content)

    write(b"old")
    worked.checkpoint("old")
    write(b"new")
    worked.checkpoint("new")
    for name in names:
        worked.rewind("old", only=[name])
        view = worked.view()
        assert [each for each in names if view[each].content == b"old"] == [name]
        worked.redo()


def test_a_rewind_that_cannot_keep_what_is_there_touches_nothing(
    worked: Worked, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked.checkpoint("start")
    with worked.mounted() as merged:
        (merged / "README").write_text("nowhere else")
    before, levels = worked.view(), worked.redo_levels()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for go in (lambda: worked.rewind("start"), worked.discard):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(CheckpointError) as caught:
                go()
        assert caught.value.code == "checkpoint_failed"
        assert (worked.view(), worked.redo_levels()) == (before, levels)


def test_a_path_that_leads_out_is_refused(worked: Worked) -> None:
    worked.checkpoint("start")
    with pytest.raises(OptionsError):
        worked.rewind("start", only=[b"src/../../x"])


def test_a_fork_goes_on_by_itself_and_reaches_back_beyond_its_beginning(worked: Worked) -> None:
    worked.checkpoint("m0")
    with worked.mounted() as merged:
        (merged / "README").write_text("one")
    worked.checkpoint("m1")
    one = worked.view()
    with worked.mounted() as merged:
        (merged / "README").write_text("two")
    worked.commit()
    fork = worked.fork("m1", "side")
    assert plain(fork.view()) == plain(one)
    with fork.mounted() as merged:
        (merged / "only-here").write_text("x")
    assert b"only-here" not in worked.view()
    fork.checkpoint("f1")
    fork.rewind("m0")
    assert fork.view()[b"README"].content == b"lower README\n"
    fork.redo()
    assert fork.view()[b"only-here"].content == b"x"
    fork.commit()
    assert worked.view()[b"README"].content == b"one"
    fork.rewind("m0")
    assert fork.view()[b"README"].content == b"lower README\n"
    with pytest.raises(OverlayError) as caught:
        worked.fork("m1", "side")
    assert caught.value.code == "session_exists"


def test_a_checkpoint_id_stands_once_unless_replaced(worked: Worked) -> None:
    worked.checkpoint("m")
    with pytest.raises(CheckpointError) as caught:
        worked.checkpoint("m")
    assert caught.value.code == "checkpoint_exists"
    worked.checkpoint("m", replace=True)
    worked.checkpoint("m", step=1)
    with pytest.raises(CheckpointError) as caught:
        worked.rewind("m", step=2)
    assert caught.value.code == "checkpoint_not_found"


def test_many_checkpoints_are_put_together_without_anybody_asking_and_what_is_needed_stays(worked: Worked) -> None:
    with worked.mounted() as merged:
        (merged / "kept").write_text("kept for redo")
    worked.discard()
    upper = Path(worked.overlay, "upper")
    packs = Path(worked.overlay).parent.parent / "checkpoints.git" / "objects" / "pack"
    for number in range(upkeep.MANY_PACKS):
        (upper / "file").write_text(f"{number}")
        worked.checkpoint(f"m{number}")
    digest = worked.review()
    (upper / "file").write_text("later")
    worked.checkpoint("last")
    wait_until(lambda: len(list(packs.glob("*.pack"))) < upkeep.MANY_PACKS // 2, "the packs are put together")

    async def tidy(workspace: Workspace) -> None:
        workspace.keep_small(Retention(count=3))

    worked.do(tidy)
    worked.commit(digest)
    assert Path(os.fsdecode(worked.workspace), "file").read_text() == str(upkeep.MANY_PACKS - 1)
    worked.redo()
    assert worked.view()[b"kept"].content == b"kept for redo"


@pytest.mark.parametrize("removed", ["the session", "the workspace", "the state directory"])
def test_what_was_removed_meanwhile_is_not_made_anew_by_putting_checkpoints_together(
    worked: Worked, state: Path, removed: str
) -> None:
    Path(worked.overlay, "upper", "file").write_text("x")
    worked.checkpoint("m1")
    session = Path(worked.overlay)
    workspace = session.parent.parent
    gone = {"the session": session, "the workspace": workspace, "the state directory": state}[removed]
    shutil.rmtree(gone)
    # As `collector.start` has it, which waits for nobody.
    command = [sys.executable, "-P", "-m", "workbench.collecting", str(workspace), session.name, str(state)]
    subprocess.run(command, cwd="/", capture_output=True, timeout=120)
    assert not gone.exists()


def test_many_who_look_at_once_do_not_fail(worked: Worked) -> None:
    """Whoever takes a checkpoint while another one of the session is taken, takes it again."""
    upper = Path(worked.overlay, "upper")
    (upper / "file").write_text("x")
    with ThreadPoolExecutor(4) as threads:
        told = [threads.submit(worked.told) for _ in range(8)]
    assert [each.result() for each in told] == 8 * [{b"file": "added"}]


def without_directory_times(view: dict[bytes, object]) -> dict[bytes, object]:
    """A commit changes the times of the real directories that it works in."""
    return {
        path: told._replace(mtime_ns=0) if told.mode & 0o170000 == 0o040000 else told  # type: ignore[attr-defined]
        for path, told in view.items()
    }


def test_taking_back_what_changed_nothing_touches_nothing(worked: Worked) -> None:
    with worked.mounted() as merged:
        (merged / "new").write_text("new")
        (merged / "README").write_text("changed")
    worked.checkpoint("before")
    with worked.mounted() as merged:
        (merged / "README").read_text()
    worked.checkpoint("after")
    upper = Path(worked.do(_overlay_path), "upper")
    standing = {name: (upper / name).stat() for name in ("new", "README")}
    travelled = worked.rewind("before")
    assert (travelled.journey.removed, travelled.journey.restored) == ((), ())
    assert {name: (upper / name).stat() for name in standing} == standing
    assert worked.redo_levels() == 0


async def _overlay_path(workspace: Workspace) -> str:
    return workspace.overlay_path
