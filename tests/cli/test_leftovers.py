"""`doctor --fix`: what killed processes and vanished directories left goes, and what anybody has or may want stays."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Prompt, leftovers
from tests.cli.test_keeper_life import is_alive, keeper, warm
from tests.cli.test_sessions import listed, surroundings, use, workbench
from tests.conftest import Cli
from tests.trees import make_tree, snapshot
from tests.waiting import wait_until
from workbench.protocol.reports import DoctorReport
from workbench.repair import Leftover, leftovers_of, mend
from workbench.sandbox.leftovers import remove_tree
from workbench.state import StateDirectory


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_tree(tmp_path / "root")
    return tmp_path / "root"


def found(state: Path) -> list[Leftover]:
    return leftovers_of(StateDirectory.open(str(state)))


def kinds(state: Path) -> list[str]:
    return sorted(each.kind for each in found(state))


def fix(state: Path) -> list[str]:
    """Mend everything that can be; the kinds of what was."""
    return sorted(each.kind for each in found(state) if each.mend is not None and mend(each) is None)


def aged(path: Path) -> None:
    """Have it look as if it had been made an hour ago."""
    then = os.stat(path).st_mtime - 3600
    os.utime(path, (then, then))


def test_where_all_is_well_there_is_nothing(state: Path, root: Path) -> None:
    assert kinds(state) == []
    use(root, "one", ("f",))
    use(root, "two")
    before = snapshot(state)
    assert fix(state) == []
    assert snapshot(state) == before


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), "the keeper is gone")


def test_what_a_killed_keeper_left_is_removed_and_what_a_living_one_has_stays(fresh_prompt: Prompt) -> None:
    fresh_prompt.sh("echo new >new")
    fresh_prompt("exec", "--session", "other", "--", "true")
    killed = warm(fresh_prompt)
    socket = os.readlink(fresh_prompt.overlay() / "keeper")
    assert kinds(fresh_prompt.state) == []
    kill(killed.pid)
    assert kinds(fresh_prompt.state) == ["sandbox"]
    assert fix(fresh_prompt.state) == ["sandbox"]
    assert fix(fresh_prompt.state) == []
    assert not os.path.lexists(os.path.dirname(socket))
    assert keeper(fresh_prompt, "other") is not None
    assert len(fresh_prompt.leftovers()) == 2
    assert fresh_prompt.sh("cat new").stdout == b"new\n"


def test_sandboxes_of_overlays_that_are_gone_are_removed_by_the_state_directorys_own_label(
    fresh_prompt: Prompt, tmp_path: Path
) -> None:
    killed = warm(fresh_prompt)
    kill(killed.pid)
    fresh_prompt.overlay().rename(tmp_path / "gone")
    assert len(fresh_prompt.leftovers()) == 2
    other = tmp_path / "other-state"
    other.mkdir(mode=0o700)
    assert fix(other) == []
    assert len(fresh_prompt.leftovers()) == 2
    assert fix(fresh_prompt.state) == ["sandbox"]
    assert fresh_prompt.leftovers() == []
    remove_tree(str(tmp_path / "gone"))


def test_a_keeper_whose_overlay_is_gone_is_ended_with_its_sandbox(fresh_prompt: Prompt, tmp_path: Path) -> None:
    fresh_prompt("exec", "--session", "other", "--", "true")
    lost = warm(fresh_prompt)
    fresh_prompt.overlay().rename(tmp_path / "gone")
    assert "process" in kinds(fresh_prompt.state)
    assert "process" in fix(fresh_prompt.state)
    wait_until(lambda: not is_alive(lost.pid), "the keeper has ended")
    remove_tree(str(tmp_path / "gone"))
    assert keeper(fresh_prompt, "other") is not None
    assert fix(fresh_prompt.state) == []
    assert len(fresh_prompt.leftovers()) == 2


def test_a_process_that_only_looks_like_a_keeper_of_ours_is_let_be(state: Path, tmp_path: Path) -> None:
    gone = tmp_path / "elsewhere" / "overlays" / "s"
    command = [
        sys.executable,
        "-c",
        "import sys; sys.stdin.read()",
        "-m",
        "workbench.sandbox.keeper_process",
        str(gone),
        "3",
        "4",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert fix(state) == []
        assert process.poll() is None
        process.stdin.close()


KILLED_IN_THE_MIDDLE = """
import functools, os, signal, sys
import anyio
import workbench.landing
from workbench.workspace import Workspace
def on_step(name):
    if name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
workbench.landing.commit = functools.partial(workbench.landing.commit, on_step=on_step)
async def main():
    async with Workspace.open(sys.argv[1]) as workspace:
        await workspace.commit(workspace.reviewed(await workspace.changes()))
anyio.run(main)
"""


@pytest.mark.parametrize("step", ["staged", "applied"])
def test_a_commit_that_was_cut_short_is_completed_by_its_journal_alone(state: Path, root: Path, step: str) -> None:
    use(root, files=("one", "two"))
    before = snapshot(root, times=False)
    done = subprocess.run(
        [sys.executable, "-c", KILLED_IN_THE_MIDDLE, str(root), step],
        env=surroundings(),
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert kinds(state) == ["commit"]
    assert fix(state) == ["commit"]
    after = snapshot(root, times=False)
    assert not [name for name in os.listdir(root) if name.startswith(".workbench-")]
    if step == "applied":
        assert (root / "one").read_text() == "content of one"
    else:
        assert after == before
    assert kinds(state) == []


def test_a_staging_directory_that_no_journal_tells_of_is_said_and_left(state: Path, root: Path) -> None:
    use(root)
    staging = root / ".workbench-20200101-000000-abcdef"
    staging.mkdir()
    (staging / "0").write_text("somebody's")
    (root / ".workbench-not-ours").mkdir()
    assert kinds(state) == ["staging"]
    assert fix(state) == []
    assert (staging / "0").read_text() == "somebody's"


def test_a_workspace_that_is_gone_goes_where_it_holds_nothing_and_is_said_where_it_does(
    state: Path, root: Path, tmp_path: Path
) -> None:
    make_tree(tmp_path / "other")
    StateDirectory.open().workspace(os.fsencode(os.path.realpath(tmp_path / "other")))
    use(root, "kept")
    shutil.rmtree(root)
    shutil.rmtree(tmp_path / "other")
    assert kinds(state) == ["workspace", "workspace"]
    assert fix(state) == ["workspace"]
    assert kinds(state) == ["workspace"]
    assert fix(state) == []
    assert listed().keys() == {"kept"}
    (said,) = found(state)
    assert "workbench prune" in said.fix


def test_overlays_and_workspaces_that_were_never_made_complete_go(state: Path, root: Path) -> None:
    overlay = use(root, "whole", ("f",))
    half = overlay.parent / "half"
    (half / "upper").mkdir(parents=True)
    (half / "lock").touch()
    just_now = overlay.parent / "just-now"
    just_now.mkdir()
    (overlay.parent / "lost" / "upper").mkdir(parents=True)
    (overlay.parent / "lost" / "upper" / "work of hours").touch()
    workspace = state / "workspaces" / "half-000000000000"
    (workspace / "commits").mkdir(parents=True)
    for path in (half, overlay.parent / "lost", workspace):
        aged(path)
    assert fix(state) == ["overlay", "workspace"]
    assert sorted(os.listdir(overlay.parent)) == ["just-now", "lost", "whole"]
    assert (overlay.parent / "lost" / "upper" / "work of hours").exists()
    assert not workspace.exists()
    assert fix(state) == []


def test_an_overlay_that_is_being_made_is_let_be(state: Path, root: Path) -> None:
    overlay = use(root, "whole")
    half = overlay.parent / "half"
    (half / "upper").mkdir(parents=True)
    with open(half / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        aged(half)
        assert fix(state) == []
    assert fix(state) == ["overlay"]


def test_temporary_files_of_dead_writers_go_and_of_living_ones_stay(state: Path, root: Path) -> None:
    overlay = use(root)
    pack = overlay.parent.parent / "checkpoints.git" / "objects" / "pack"
    (pack / "tmp_pack_dead").touch()
    for path in (overlay / ".overlay.json.0123456789abcdef.tmp", overlay.parent.parent / ".notes.tmp"):
        path.touch()
        aged(path)
    (overlay / ".overlay.json.fedcba9876543210.tmp").touch()
    with open(pack / "tmp_pack_living", "w") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        assert fix(state) == ["temporary"]
        assert sorted(path.name for path in pack.glob("tmp_*")) == ["tmp_pack_living"]
    assert sorted(path.name for path in overlay.glob(".*.tmp")) == [".overlay.json.fedcba9876543210.tmp"]
    assert (overlay.parent.parent / ".notes.tmp").exists()


def test_what_was_half_removed_is_removed(state: Path, root: Path) -> None:
    overlay = use(root, "s", ("closed/f",))
    outside = root / "outside"
    outside.mkdir()
    (overlay / "upper" / "link").symlink_to(outside)
    (overlay / "upper" / "closed").chmod(0)
    StateDirectory.open().set_aside(str(overlay))
    assert fix(state) == ["removal"]
    assert outside.exists()
    assert fix(state) == []
    assert not list(state.glob(".removed-*"))


def test_what_is_damaged_stops_nobody_from_the_rest(state: Path, root: Path, tmp_path: Path) -> None:
    make_tree(tmp_path / "other")
    overlay = use(tmp_path / "other", "s")
    use(root, "bad")
    (marks,) = (each for each in state.glob("workspaces/root-*/commits"))
    (marks / ".unsettled").mkdir()
    (marks / ".unsettled" / "no-such-commit").touch()
    (overlay.parent / "half" / "upper").mkdir(parents=True)
    aged(overlay.parent / "half")
    assert kinds(state) == ["overlay", "unreadable"]
    assert fix(state) == ["overlay"]


def _doctor(prompt: Callable[..., subprocess.CompletedProcess[bytes]], *arguments: str, code: int = 0) -> DoctorReport:
    return DoctorReport.model_validate_json(prompt("doctor", "--json", *arguments, code=code).stdout)


def test_doctor_says_what_it_would_do_and_does_it_only_when_asked(cli: Cli, state: Path) -> None:
    cli.run("true")
    (session,) = state.glob("workspaces/*/overlays/default")
    (session.parent / "half" / "upper").mkdir(parents=True)
    aged(session.parent / "half")
    for _ in range(2):
        (told,) = _doctor(cli).leftovers
        assert (told.kind, told.mendable, told.fixed, told.error) == ("overlay", True, False, None)
    assert b"--fix would remove it" in cli("doctor").stdout
    assert [each.fixed for each in _doctor(cli, "--fix").leftovers] == [True]
    assert _doctor(cli, "--fix").leftovers == ()
    assert cli.run("true").returncode == 0
    assert len(leftovers(state)) == 2


def test_what_cannot_be_fixed_is_an_error(state: Path, root: Path) -> None:
    use(root, files=("one",))
    (commits,) = state.glob("workspaces/root-*/commits")
    (commits / ".pending").symlink_to("20200101-000000-abcdef")
    (commits / "20200101-000000-abcdef").write_text("no directory")
    done = workbench("doctor", "--fix", "--json", code=1)
    (told,) = json.loads(done.stdout)["leftovers"]
    assert (told["kind"], told["fixed"]) == ("commit", False)
    assert told["error"]["message"]
