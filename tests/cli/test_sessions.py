"""`sessions`: every session is listed, whatever became of it, and looking changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.cli.conftest import Prompt
from tests.cli.terminals import terminal
from tests.conftest import ROOT
from tests.trees import make_tree, snapshot
from workbench.protocol.session_reports import SessionsReport
from workbench.sessions import survey
from workbench.state import StateDirectory
from workbench.workspace import Workspace


def workbench(
    *arguments: str, cwd: Path = ROOT, code: int = 0, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """The command line without an engine, over the state directory of the test."""
    nowhere = {"DOCKER_HOST": "unix:///nonexistent/engine.sock"}
    done = subprocess.run(
        [sys.executable, "-m", "workbench", *arguments],
        env={**surroundings(), **nowhere, **environment},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert done.returncode == code, done
    return done


def surroundings() -> dict[str, str]:
    """This process's environment, with this checkout wherever the command is started."""
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def listed(*arguments: str) -> dict[str, dict[str, Any]]:
    """What `sessions --json` tells, by name of the session."""
    found = json.loads(workbench("sessions", "--json", *arguments).stdout)
    assert SessionsReport.model_validate(found).model_dump(mode="json") == found
    return {session["session"]: session for session in found["sessions"]}


def use(root: Path, session: str = "default", files: tuple[str, ...] = ()) -> Path:
    """Have a session that holds files, and a checkpoint of them; its overlay's directory."""

    async def work() -> Path:
        async with Workspace.open(root, session=session) as workspace:
            upper = Path(workspace.overlay_path) / "upper"
            for name in files:
                (upper / name).parent.mkdir(parents=True, exist_ok=True)
                (upper / name).write_text(f"content of {name}")
            await workspace.checkpoint(label="made")
            return Path(workspace.overlay_path)

    return anyio.run(work)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_tree(tmp_path / "root")
    return tmp_path / "root"


def test_checkpoints_that_nobody_asked_for_are_not_counted(state: Path, root: Path) -> None:
    use(root, files=("a",))
    before = listed()["default"]["checkpoints"]
    (state_upper,) = state.glob("workspaces/*/overlays/default/upper")
    (state_upper / "b").write_text("more")
    workbench("status", "-w", str(root))
    assert (
        listed()["default"]["checkpoints"]
        == before
        == len(json.loads(workbench("log", "--json", "-w", str(root)).stdout))
    )


def test_without_any_there_are_none(state: Path) -> None:
    assert listed() == {}
    assert b"workbench exec" in workbench("sessions").stderr


def test_a_session_says_what_runs_and_what_it_holds(fresh_prompt: Prompt) -> None:
    def told(session: str) -> dict[str, Any]:
        (found,) = (
            one
            for one in json.loads(fresh_prompt("sessions", "--json").stdout)["sessions"]
            if one["session"] == session
        )
        return found  # type: ignore[no-any-return]

    fresh_prompt.sh("rm run.sh; echo new >new; mkdir -p a/b; head -c 100000 /dev/zero >a/b/c; chmod +x README.md")
    fresh_prompt("exec", "--session", "idle", "--", "true")
    running = told("default")
    assert running["sandbox"] == {"backend": "docker", "state": "running", "jobs": 0}
    assert (running["changes"], running["entries"], running["standing"]) == (4, 4, "here")
    assert 100_000 < running["upper_size"] < 1_000_000
    assert running["checkpoints"] >= 1
    assert running["checkpoint_size"] > 0
    assert told("idle")["changes"] == 0
    fresh_prompt("stop")
    assert told("default")["sandbox"]["state"] == "stopped"
    assert told("idle")["sandbox"]["state"] == "running"
    changed = told("default")
    assert (changed["changes"], changed["problem"]) == (4, None)
    fresh_prompt("discard", "--yes")
    assert (told("default")["changes"], told("default")["entries"]) == (0, 0)


def test_what_nobody_has_counted_is_not_made_up(state: Path, root: Path) -> None:
    use(root, files=("one", "d/two"))
    found = listed()["default"]
    assert (found["changes"], found["entries"]) == (None, 2)
    assert b"? (2 files)" in workbench("sessions").stdout


def test_one_workspace_can_be_asked_for(state: Path, root: Path, tmp_path: Path) -> None:
    make_tree(tmp_path / "other")
    use(root, "here")
    use(tmp_path / "other", "there")
    assert listed().keys() == {"here", "there"}
    assert listed("-w", str(root)).keys() == {"here"}


def test_the_age_is_that_of_the_last_use(state: Path, root: Path) -> None:
    use(root, "old")
    (before,) = survey(StateDirectory.open())
    use(root, "new", ("f",))
    assert 0 <= listed()["old"]["age_s"] < 3600
    (after,) = survey(StateDirectory.open())
    new, old = after.sessions
    assert old.touched_ns == before.sessions[0].touched_ns < new.touched_ns


def _gone(root: Path) -> None:
    shutil.rmtree(root)


def _moved(root: Path) -> None:
    root.rename(root.with_name("moved"))


def _replaced(root: Path) -> None:
    root.rename(root.with_name("moved"))
    root.mkdir()


def _let_go(root: Path) -> None:
    _replaced(root)
    workbench("discard", "--replaced", "-w", str(root))


@pytest.mark.parametrize(
    ("what", "standing", "words"),
    [
        (_gone, "missing", b"missing"),
        (_moved, "missing", b"moved"),
        (_replaced, "replaced", b"another directory"),
        (_let_go, "let_go", b"let go"),
    ],
)
def test_what_became_of_the_directory_is_said(state: Path, root: Path, what: Any, standing: str, words: bytes) -> None:
    use(root, files=("kept",))
    what(root)
    found = listed()["default"]
    assert (found["standing"], found["entries"], found["problem"]) == (standing, 1, None)
    assert words in workbench("sessions").stdout


def test_a_directory_that_came_back_from_its_move_is_one_workspace(state: Path, root: Path) -> None:
    use(root)
    _moved(root)
    use(root.with_name("moved"), "second")
    found = listed()
    assert found.keys() == {"default", "second"}
    assert {session["standing"] for session in found.values()} == {"here"}


def _no_record(overlay: Path) -> None:
    (overlay / "overlay.json").unlink()


def _bad_record(overlay: Path) -> None:
    (overlay / "overlay.json").write_bytes(b'{"version": 1, "sess\xff')


def _no_upper(overlay: Path) -> None:
    shutil.rmtree(overlay / "upper")


def _no_directory(overlay: Path) -> None:
    shutil.rmtree(overlay)
    overlay.write_text("a file")


def _bad_reference(overlay: Path) -> None:
    (overlay.parent.parent / "checkpoints.git" / "refs" / "workbench" / "bad" / "tip").write_bytes(b"\xffnothing\n")


@pytest.mark.parametrize("damage", [_no_record, _bad_record, _no_upper, _no_directory, _bad_reference])
def test_a_session_that_is_damaged_is_listed_with_its_problem_beside_the_others(
    state: Path, root: Path, damage: Any
) -> None:
    use(root, "good", ("f",))
    damage(use(root, "bad", ("g",)))
    for _ in range(2):
        found = listed()
        assert found["bad"]["problem"].endswith(".")
        assert (found["good"]["problem"], found["good"]["entries"]) == (None, 1)
        assert found["good"]["checkpoints"] == 1
    assert b"good" in workbench("sessions").stdout


def test_a_workspace_that_is_damaged_is_listed_with_its_problem(state: Path, root: Path, tmp_path: Path) -> None:
    make_tree(tmp_path / "other")
    use(tmp_path / "other", "good")
    overlay = use(root, "bad", ("g",))
    (overlay.parent.parent / "workspace.json").write_text("{")
    (state / "workspaces" / "a file").touch()
    os.mkdir(os.fsencode(overlay.parent) + b"/odd\xff\n")
    for _ in range(2):
        found = json.loads(workbench("sessions", "--json").stdout)
        by_name = {session["session"]: session for session in found["sessions"]}
        assert by_name.keys() == {"good", "bad", "odd\\xff\\n"}
        assert (by_name["bad"]["workspace"]["path"], by_name["bad"]["standing"]) == (str(root), None)
        assert by_name["bad"]["entries"] == 1
        (problem,) = (each["problem"] for each in found["workspaces"] if each["standing"] is None)
        assert problem.endswith(".")
        assert by_name["good"]["standing"] == "here"


def test_looking_makes_nothing_and_follows_no_symlink(state: Path, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "big").write_bytes(b"x" * 1_000_000)
    overlay = use(root, files=("f",))
    (overlay / "upper" / "link").symlink_to(outside)
    shutil.rmtree(overlay.parent.parent / "checkpoints.git")
    before = snapshot(state)
    found = listed()["default"]
    assert found["upper_size"] < 100_000
    assert snapshot(state) == before


def test_a_shell_completes_the_sessions_of_the_workspace(state: Path, root: Path, tmp_path: Path) -> None:
    make_tree(tmp_path / "other")
    for name in ("fix-one", "fix-two", "else"):
        use(root, name)
    use(tmp_path / "other", "fix-three")

    def offered(words: str, cwd: Path) -> set[str]:
        words_before = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
        done = workbench(cwd=cwd, _WORKBENCH_COMPLETE="complete_bash", **words_before)
        assert done.stderr == b""
        return set(done.stdout.decode().split())

    assert offered("workbench diff --session fix", root) == {"fix-one", "fix-two"}
    assert offered("workbench diff --session ", root) == {"fix-one", "fix-two", "else"}
    assert offered(f"workbench diff -w {tmp_path / 'other'} --session ", root) == {"fix-three"}
    assert offered("workbench diff --session ", tmp_path) == set()
    shutil.rmtree(state)
    assert offered("workbench diff --session ", root) == set()
    assert not state.exists()


def test_a_terminal_shows_a_table_that_nothing_deceives(state: Path, root: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd\x1b[31m\n[bold]name"
    root.rename(odd)
    use(odd, "first")
    argv = [sys.executable, "-m", "workbench", "sessions"]
    with terminal(argv, cwd=tmp_path, environment={**surroundings(), "NO_COLOR": "1", "COLUMNS": "300"}) as shown:
        assert shown.wait() == 0
        screen = shown.screen.decode()
    assert "[bold]name" in screen.replace("\r\n", "")
    assert "\x1b[31m" not in screen
    assert "SESSION" in screen
