"""A commit lands whole or not at all: killed at any moment, on a full disk, or where a permission is missing."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import workbench.landing as landing_module
from tests.bench import Bench
from tests.conftest import make_tree
from tests.needed import unavailable
from tests.review.landing import calls, in_child, kill_at
from tests.sandbox.users import OrdinaryUser, ordinary_user
from tests.trees import snapshot
from tests.vfs.test_overlay_kernel import _tree as python_tree
from tests.waiting import unmount
from workbench.errors import CommitError
from workbench.landing import Landing
from workbench.protocol.commands import Command
from workbench.review.hunks import named_hunks
from workbench.review.landed import Committed
from workbench.vfs.local import LocalStorage
from workbench.vfs.overlay import Overlay
from workbench.vfs.upper import LocalUpper
from workbench.workspace import Workspace

SHOWN = """
rm -r docs; mkdir docs; echo shown > docs/new
echo shown > README.md; chmod 755 run.sh; rm empty; mkdir empty; echo shown > empty/file
rm link; ln -s run.sh link; mv src moved; echo shown > moved/main.py; mkdir -p fresh/tree; echo shown > fresh/tree/file
"""
LATER = """
echo later > README.md; rm fresh/tree/file; echo later > later; echo later > docs/later; mkdir link-to; mkfifo fifo
mkdir _notes; echo note > _notes/note; chmod 644 run.sh
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "w"
    make_tree(path)
    return path


@pytest.fixture
def bench(engine: None, state: Path, workspace: Path) -> Bench:
    return Bench(workspace)


def merged(bench: Bench) -> dict[str, dict[str, object]]:
    """The merged view as Python computes it; without times, and what is there is told of directories only by name."""
    with (
        LocalStorage(bench.workspace) as lower,
        LocalUpper(os.fsencode(os.path.join(bench.overlay, "upper"))) as upper,
    ):
        tree = python_tree(Overlay(lower, upper, scratch=b"no-scratch-here"))
    return {path: {name: told for name, told in facts.items() if name != "mtime"} for path, facts in tree.items()}


class Crash:
    """A commit in a process of its own, which is killed on the way."""

    def __init__(self, bench: Bench, workspace: Path) -> None:
        self.bench, self.workspace = bench, workspace
        self.old = snapshot(workspace, times=False)
        bench.sh(SHOWN)
        self.new = bench.inside()
        self.digest = bench.review()
        bench.sh(LATER)
        bench.changes()
        bench.stop()
        self.view = merged(bench)

    def commit(self, hook: Callable[[str], None]) -> None:
        with calls(hook):
            self.bench.commit(self.digest, allow_risky=True)

    def killed_at(self, number: int) -> bool:
        """Whether it was killed before its end."""
        return in_child(lambda: self.commit(kill_at(number))) != 0

    def tree(self) -> dict[bytes, object]:
        return dict(snapshot(self.workspace, times=False))

    def outcome(self) -> str:
        """What the next command finds, or makes of it: `old` or `new`, whole; the merged view is what it was."""
        self.bench.told()
        self.assert_tidy()
        tree = self.tree()
        assert tree in (self.old, self.new)
        assert merged(self.bench) == self.view
        return "old" if tree == self.old else "new"

    def outcome_in(self, new: dict[bytes, object]) -> str:
        """As `outcome`, where what lands is `new`."""
        self.new = new  # type: ignore[assignment]
        return self.outcome()

    def assert_tidy(self) -> None:
        assert not [path for path in snapshot(self.workspace, times=False) if b".workbench-" in path]


def test_killed_at_any_moment_a_commit_is_whole_after_the_next_command(
    engine: None, state: Path, tmp_path: Path
) -> None:
    number, outcomes = 0, []
    while True:
        workspace = tmp_path / f"w{number}"
        make_tree(workspace)
        crash = Crash(Bench(workspace), workspace)
        # One that was undone can be done again, with the digest that was shown.
        while killed := crash.killed_at(number):
            outcomes.append(crash.outcome())
            number += 3 if outcomes[-1] == "old" else 14
            if outcomes[-1] == "new":
                break
        if not killed:
            break
        # What landed is landed: what came later is all that is left, and lands as well.
        assert crash.bench.told()[b"README.md"] == "modified"
        assert crash.bench.told()[b"fresh/tree/file"] == "deleted"
        crash.bench.commit()
        assert crash.bench.told() == {}
    assert crash.outcome() == "new"
    assert outcomes == sorted(outcomes, key=["old", "new"].index)
    assert outcomes.count("old") > 10
    assert outcomes.count("new") > 3


class PartialCrash(Crash):
    """As `Crash`, of a commit of part of the changes, a hunk among them."""

    def __init__(self, bench: Bench, workspace: Path) -> None:
        (workspace / "long.txt").write_text("".join(f"line {number}\n" for number in range(30)))
        super().__init__(bench, workspace)
        bench.sh("sed -i -e 's/^line 1$/first/' -e 's/^line 28$/second/' long.txt")
        self.digest = bench.do(self.accept)
        bench.stop()
        self.view = merged(bench)

    async def accept(self, workspace: Workspace) -> str:
        review = await workspace.review()
        for path in (b"docs", b"moved/main.py", b"link"):
            review.decide(path, True)
        (change,) = (change for change in review.changes.shown if change.path == b"long.txt")
        review.decide_hunk(named_hunks(change, workspace.lower, workspace.store)[1].id, True)
        return workspace.reviewing.keep(review).digest


def test_killed_at_any_moment_a_commit_of_part_is_whole_after_the_next_command(
    engine: None, state: Path, tmp_path: Path
) -> None:
    def crashed(name: str) -> PartialCrash:
        make_tree(tmp_path / name)
        return PartialCrash(Bench(tmp_path / name), tmp_path / name)

    whole = crashed("whole")
    whole.commit(lambda _: None)
    new = whole.tree()
    assert (tmp_path / "whole/long.txt").read_text().splitlines()[28] == "second"
    assert whole.outcome_in(new) == "new"
    number, outcomes = 0, []
    while True:
        crash = crashed(f"w{number}")
        while killed := crash.killed_at(number):
            outcomes.append(crash.outcome_in(new))
            number += 9 if outcomes[-1] == "old" else 23
            if outcomes[-1] == "new":
                break
        if not killed:
            break
    assert outcomes == sorted(outcomes, key=["old", "new"].index)
    assert outcomes.count("old") > 3
    assert outcomes.count("new") > 1


@pytest.mark.parametrize("part", [0.1, 0.4, 0.7, 0.95])
def test_what_a_person_typed_after_a_kill_stays_and_is_told(bench: Bench, workspace: Path, part: float) -> None:
    crash = Crash(bench, workspace)
    steps = _steps(crash)
    apply = [number for number, step in enumerate(steps) if step.startswith(("apply", "applied", "renamed"))]
    with _stepping(kill_at(apply[int(len(apply) * part)])):
        assert in_child(lambda: bench.commit(crash.digest)) != 0
    # As an editor saves, in place, and new, in what may be the agent's directory or the person's own.
    readme = workspace / "README.md"
    readme.with_suffix(".tmp").write_text("typed\n")
    readme.with_suffix(".tmp").rename(readme)
    leaf = next(path for name in ("src", "moved") if (path := workspace / name / "deep" / "leaf.txt").exists())
    with open(leaf, "a") as file:
        file.write("typed\n")
    for name in ("docs/typed", "typed"):
        (workspace / name).write_text("typed\n")
    bench.told()
    said = " ".join(bench.recovered)
    assert "had been cut short" in said
    crash.assert_tidy()
    assert readme.read_text() == "typed\n"
    assert (workspace / "docs" / "typed").read_text() == (workspace / "typed").read_text() == "typed\n"
    found = [path for name in ("src", "moved") if (path := workspace / name / "deep" / "leaf.txt").exists()]
    assert any(path.read_text() == "leaf\ntyped\n" for path in found), (found, said)
    # Nothing of what stood there before, or was to stand there, is lost either.
    everything = b"".join(path.read_bytes() for path in (*workspace.rglob("*"), *_kept(bench)) if path.is_file())
    for content in (b"guide\n", b"index\n", b"echo hello", b"print('one')"):
        assert content in everything
    # The person's own files are as if nothing had been; only what both touched is theirs alone.
    tree = snapshot(workspace, times=False)
    typed = {
        b"README.md",
        b"docs",
        b"docs/typed",
        b"typed",
        *(os.fsencode(path.relative_to(workspace)) for path in found),
    }
    others = {
        path for path in (crash.old.keys() | crash.new.keys()) if not any(_is_at_or_above(path, one) for one in typed)
    }
    assert all(tree.get(path) == crash.old.get(path) for path in others) or all(
        tree.get(path) == crash.new.get(path) for path in others
    ), said


def _is_at_or_above(path: bytes, one: bytes) -> bool:
    return one == path or one.startswith(path + b"/" if path else b"")


def _kept(bench: Bench) -> list[Path]:
    return list((Path(bench.overlay).parents[1] / "commits").rglob("*"))


@contextmanager
def _stepping(hook: Callable[[str], None]) -> Iterator[None]:
    """Let a hook hear of every step of a commit itself."""
    real = landing_module.commit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(landing_module, "commit", functools.partial(real, on_step=hook))
        yield


@contextmanager
def _settling(hook: Callable[[str], None]) -> Iterator[None]:
    """Let a hook hear of every call that changes something while an overlay is brought to what remains of it."""
    real = Landing._settle

    def settle(landing: Landing, committed: Committed, *arguments: Any) -> None:
        with calls(hook):
            real(landing, committed, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Landing, "_settle", settle)
        yield


def _steps(crash: Crash) -> list[str]:
    """The steps of its commit, which is undone at the last one."""
    steps: list[str] = []

    def stop(step: str) -> None:
        steps.append(step)
        if step == "synced":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with _stepping(stop), pytest.raises(CommitError, match="nothing was applied"):
        crash.bench.commit(crash.digest)
    assert crash.outcome() == "old"
    return steps


def test_killed_between_the_commit_and_the_overlays_part_of_it_nothing_is_landed_or_deleted_twice(
    engine: None, state: Path, tmp_path: Path
) -> None:
    for number in (0, 2, 5, 9, 14, 20):
        workspace = tmp_path / f"w{number}"
        make_tree(workspace)
        crash = Crash(Bench(workspace), workspace)
        with _settling(kill_at(number)):
            assert in_child(lambda: crash.bench.commit(crash.digest)) != 0  # noqa: B023
            # Perhaps once more while the next command completes it, which has less to do.
            in_child(crash.bench.told)
        assert crash.outcome() == "new"
        crash.bench.commit()
        assert snapshot(workspace, times=False)[b"later"].content
        assert not (workspace / "fresh/tree/file").exists()
        assert crash.bench.told() == {}


# Where there's no room, or no permission


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory on an ext4 filesystem of its own, of 12 MB."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("mounting a filesystem takes root and mkfs.ext4")
    image, place = tmp_path / "disk", tmp_path / "mounted"
    place.mkdir()
    with open(image, "wb") as file:
        file.truncate(12 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    mounted = subprocess.run(
        ["mount", "-o", "loop", str(image), str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no loop device here: {mounted.stderr.strip()}")
    yield place
    unmount(place)


def test_on_a_full_disk_nothing_lands_and_with_room_all_of_it(engine: None, state: Path, small_disk: Path) -> None:
    workspace = small_disk / "w"
    make_tree(workspace)
    bench = Bench(workspace)
    bench.sh(
        "for n in 1 2 3 4; do head -c 1500000 /dev/urandom > big$n; done; rm -r docs; echo more >> README.md; mv src moved"
    )
    view, digest = bench.inside(), bench.review()
    bench.stop()
    with open(small_disk / "ballast", "wb") as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    before = snapshot(workspace)
    with pytest.raises(CommitError, match="No space left on device; nothing was applied") as caught:
        bench.commit(digest)
    assert caught.value.code == "commit_failed"
    assert caught.value.hint == "Make room on the disk."
    after = snapshot(workspace)
    assert {path: node._replace(ctime_ns=0) for path, node in after.items()} == {
        path: node._replace(ctime_ns=0) for path, node in before.items()
    }
    assert len(bench.told()) == 9
    (small_disk / "ballast").unlink()
    bench.commit(digest)
    assert snapshot(workspace, times=False) == view
    assert bench.told() == {}


def test_killed_on_another_filesystem_than_the_state_a_commit_is_as_whole(
    engine: None, state: Path, small_disk: Path
) -> None:
    number, outcomes = 0, []
    while True:
        workspace = small_disk / f"w{number}"
        make_tree(workspace)
        crash = Crash(Bench(workspace), workspace)
        while (killed := crash.killed_at(number)) and crash.outcome() == "old":
            outcomes.append("old")
            number += 10
        if not killed:
            break
        outcomes.append("new")
        number += 40
    assert crash.outcome() == "new"
    assert {*outcomes} == {"old", "new"}


@pytest.fixture
def immutable() -> Iterator[Callable[[Path, bool], None]]:
    """A function that makes a path immutable, which stops even root, or mutable again."""
    made: set[Path] = set()

    def change(path: Path, on: bool) -> None:
        done = subprocess.run(["chattr", "+i" if on else "-i", str(path)], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"chattr doesn't work here: {done.stderr.strip()}")
        (made.add if on else made.discard)(path)

    if os.geteuid() != 0 or shutil.which("chattr") is None:
        pytest.skip("making a file immutable takes root and chattr")
    yield change
    for path in tuple(made):
        change(path, False)


@pytest.mark.parametrize("what", ["README.md", "docs", "."])
def test_what_cannot_be_changed_half_way_undoes_the_rest(
    bench: Bench, workspace: Path, immutable: Callable[[Path, bool], None], what: str
) -> None:
    crash = Crash(bench, workspace)
    immutable(workspace / what, True)
    with pytest.raises(CommitError, match="nothing was applied") as caught:
        bench.commit(crash.digest)
    assert caught.value.code == "commit_failed"
    assert crash.outcome() == "old"
    immutable(workspace / what, False)
    bench.commit(crash.digest)
    assert crash.outcome() == "new"


def test_a_workspace_that_was_open_while_a_commit_was_killed_recovers_before_it_starts_a_sandbox(
    bench: Bench, workspace: Path
) -> None:
    crash = Crash(bench, workspace)
    steps = _steps(crash)
    applied = [number for number, step in enumerate(steps) if step.startswith("applied:")]
    with contextlib.closing(Workspace.open(bench.workspace)) as opened:
        with _stepping(kill_at(applied[len(applied) // 2])):
            assert in_child(lambda: bench.commit(crash.digest)) != 0
        assert crash.tree() not in (crash.old, crash.new)
        assert anyio.run(opened.exec, Command(("true",))).exit_code == 0
        crash.assert_tidy()
        assert crash.tree() == crash.old
    assert crash.outcome() == "old"


def test_a_sandbox_that_is_warm_while_another_sessions_commit_is_killed_recovers_before_its_next_command(
    bench: Bench, workspace: Path
) -> None:
    crash = Crash(bench, workspace)
    steps = _steps(crash)
    applied = [number for number, step in enumerate(steps) if step.startswith("applied:")]
    look = Command(("sh", "-c", "cat README.md; ls"), output_limit=1 << 16)

    with contextlib.closing(Workspace.open(bench.workspace, session="other")) as opened:
        before = anyio.run(opened.exec, look)
        # So that it stays mounted whatever changes under it.
        anyio.run(opened.start_job, Command(("sleep", "1000")))
        with _stepping(kill_at(applied[len(applied) // 2])):
            assert in_child(lambda: bench.commit(crash.digest)) != 0
        assert crash.tree() not in (crash.old, crash.new)
        assert anyio.run(opened.exec, look).stdout == before.stdout
        assert len(opened.recovered) == 1
        crash.assert_tidy()
        assert crash.tree() == crash.old
        anyio.run(opened.stop)
    assert crash.outcome() == "old"


def test_an_undo_that_cannot_be_completed_says_so_to_every_command_and_goes_on_when_it_can(
    bench: Bench, workspace: Path, immutable: Callable[[Path, bool], None]
) -> None:
    crash = Crash(bench, workspace)
    steps = _steps(crash)
    applied = [number for number, step in enumerate(steps) if step.startswith("applied:")]
    with _stepping(kill_at(applied[len(applied) // 2])):
        assert in_child(lambda: bench.commit(crash.digest)) != 0
    half = crash.tree()
    assert half not in (crash.old, crash.new)
    immutable(workspace, True)
    for _ in range(2):
        with pytest.raises(CommitError) as caught:
            bench.told()
        assert caught.value.code == "commit_incomplete"
    immutable(workspace, False)
    assert crash.outcome() == "old"
    bench.commit(crash.digest)
    assert crash.outcome() == "new"


def test_a_missing_permission_of_an_ordinary_user_is_found_before_anything_is_touched(engine: None) -> None:
    with ordinary_user("docker") as user:
        _commit_where_a_directory_became_somebody_elses(user)


def _commit_where_a_directory_became_somebody_elses(user: OrdinaryUser) -> None:
    workspace = user.directory / "w"
    make_tree(workspace)
    for path in (workspace, *workspace.rglob("*")):
        os.chown(path, user.uid, user.gid, follow_symlinks=False)
    bench = "from tests.bench import Bench; bench = Bench('w'); "
    shown = user.run(f"{bench}bench.sh({SHOWN!r}); print(bench.review()); bench.stop()", check=False)
    if "engine_unavailable" in shown.stderr:
        unavailable("the docker group may not use this engine")
    assert shown.returncode == 0, shown.stderr
    digest = shown.stdout.strip()
    # The plan's last step is in there.
    os.chown(workspace / "src", 0, 0)
    os.chown(workspace / "docs", 0, 0)
    before = snapshot(workspace)
    refused = user.run(f"{bench}bench.commit({digest!r})", check=False)
    assert "CommitError: The commit failed at 'docs': Permission denied; nothing was applied." in refused.stderr
    assert snapshot(workspace) == before
    os.chown(workspace / "src", user.uid, user.gid)
    os.chown(workspace / "docs", user.uid, user.gid)
    user.run(f"{bench}bench.commit({digest!r}); assert bench.told() == {{}}")
    assert (workspace / "docs" / "new").read_text() == (workspace / "README.md").read_text() == "shown\n"
    assert (workspace / "README.md").stat().st_uid == user.uid
