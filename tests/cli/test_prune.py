"""`prune`: what nobody has used for long goes, and nothing that anybody could want goes unasked."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from tests.cli.conftest import Prompt
from tests.cli.terminals import terminal
from tests.cli.test_keeper_life import is_alive, warm
from tests.cli.test_sessions import listed, surroundings, use, workbench
from tests.sandbox.users import ordinary_user
from tests.trees import make_tree, snapshot
from tests.waiting import wait_until
from workbench.checkpoints.store import CheckpointStore
from workbench.protocol.reports import PurgeReport
from workbench.protocol.session_reports import PruneReport
from workbench.pruning import prunable, prune
from workbench.state import StateDirectory
from workbench.vfs.session import OverlayDirectory
from workbench.workspace import Workspace


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_tree(tmp_path / "root")
    return tmp_path / "root"


def pruned(root: Path | None, *arguments: str, code: int = 0) -> PruneReport:
    """What `prune --json` tells of everything that is older than this moment; without `root` of all workspaces."""
    where = ["--all"] if root is None else ["-w", str(root)]
    done = workbench("prune", "--older-than", "0s", "--json", *where, *arguments, code=code)
    found = json.loads(done.stdout)
    assert PruneReport.model_validate(found).model_dump(mode="json") == found
    return PruneReport.model_validate(found)


def land(root: Path, session: str, **files: str) -> str:
    """Land files through a session, without a sandbox; the commit's id."""
    use(root, session, tuple(files))

    async def work() -> str:
        async with Workspace.open(root, session=session) as workspace:
            landed = await workspace.commit(workspace.reviewed(await workspace.changes()))
            return landed.committed.commit_id

    return anyio.run(work)


def audited(root: Path) -> list[tuple[str, str, str, dict[str, int]]]:
    """What the audit log says, newest first, once it's whole."""
    workbench("log", "--audit", "--verify", "-w", str(root))
    lines = json.loads(workbench("log", "--audit", "--json", "-w", str(root)).stdout)
    return [(line["action"], line["session"], line["message"] or line["commit_id"], line["counts"]) for line in lines]


def commits(state: Path) -> set[str]:
    return {path.name for path in state.glob("workspaces/*/commits/*") if not path.name.startswith(".")}


def test_only_sessions_that_hold_nothing_go_unasked(state: Path, root: Path) -> None:
    before = snapshot(root)
    use(root, "empty")
    use(root, "full", ("f",))
    use(root, "notes", ("_notes/plan",))
    (use(root, "directories") / "upper" / "new").mkdir()
    dry = pruned(root, "--dry-run")
    assert [old.session for old in dry.removed] == ["empty"]
    assert listed().keys() == {"empty", "full", "notes", "directories"}
    found = pruned(root)
    assert [old.session for old in found.removed] == ["empty"]
    assert {old.session for old in found.kept} == {"full", "notes", "directories"}
    assert all(old.reason for old in found.kept)
    assert listed().keys() == {"full", "notes", "directories"}
    assert pruned(root).removed == ()
    assert snapshot(root) == before
    assert not list(state.glob(".removed-*"))


def test_what_is_younger_stays(state: Path, root: Path) -> None:
    use(root, "young")
    for age in ("1d", "12h", "90min", "90m", "2w"):
        workbench("prune", "--older-than", age, "-w", str(root))
    assert listed().keys() == {"young"}
    for nonsense in ("", "1", "d", "1y", "-1d"):
        workbench("prune", f"--older-than={nonsense}", "-w", str(root), code=2)
    workbench("prune", "-w", str(root), code=2)
    workbench("prune", "--older-than", "1d", "--all", "-w", str(root), code=2)


def test_a_sessions_age_is_counted_from_its_last_change(state: Path, root: Path) -> None:
    use(root, "old")
    moment = time.time_ns()
    use(root, "new")
    opened = StateDirectory.open()
    plan = prunable(opened, moment)
    assert [old.session.name for old in plan.sessions] == ["old"]
    assert [old.session.name for old in prune(opened, plan, moment).sessions] == ["old"]
    assert listed().keys() == {"new"}


def test_changes_are_lost_only_by_who_says_so(state: Path, root: Path) -> None:
    use(root, "full", ("one", "two"))
    done = workbench("prune", "--older-than", "0s", "--with-changes", "-w", str(root), code=4)
    assert b"[confirmation_required]" in done.stderr
    failed = json.loads(
        workbench("prune", "--older-than", "0s", "--with-changes", "--json", "-w", str(root), code=4).stdout
    )
    assert failed["error"]["code"] == "confirmation_required"
    assert listed().keys() == {"full"}
    told = workbench("prune", "--older-than", "0s", "--with-changes", "--dry-run", "-w", str(root)).stderr
    assert b"2 files" in told
    assert listed().keys() == {"full"}
    found = pruned(root, "--with-changes", "--yes")
    assert [(old.session, old.entries) for old in found.removed] == [("full", 2)]
    assert found.freed > 0
    assert listed() == {}


@pytest.mark.parametrize(("answer", "left"), [(b"y\n", set[str]()), (b"n\n", {"full"})])
def test_on_a_terminal_it_is_said_and_asked(state: Path, root: Path, answer: bytes, left: set[str]) -> None:
    use(root, "full", ("one", "two"))
    argv = [sys.executable, "-m", "workbench", "prune", "--older-than", "0s", "--with-changes", "-w", str(root)]
    with terminal(argv, cwd=root, environment=surroundings()) as shown:
        shown.expect(rb"full.*2 files.*would be lost.*\[y/N\]")
        shown.type(answer)
        assert shown.wait() == (0 if not left else 1)
    assert listed().keys() == left


def test_only_the_workspace_in_question_unless_all(state: Path, root: Path, tmp_path: Path) -> None:
    make_tree(tmp_path / "other")
    use(root, "here")
    use(tmp_path / "other", "there")
    pruned(root)
    assert listed().keys() == {"there"}
    pruned(None)
    assert listed() == {}


def test_a_running_sandbox_keeps_its_session_and_a_stopped_one_leaves_nothing(fresh_prompt: Prompt) -> None:
    def run(*arguments: str) -> PruneReport:
        return PruneReport.model_validate_json(fresh_prompt("prune", "--older-than", "0s", "--json", *arguments).stdout)

    fresh_prompt.sh("echo new >new")
    overlay = fresh_prompt.overlay()
    (kept,) = run("--with-changes", "--yes").kept
    assert (kept.session, kept.sandbox.state) == ("default", "running")
    assert fresh_prompt.sh("cat new").stdout == b"new\n"
    fresh_prompt("stop")
    (removed,) = run("--with-changes", "--yes").removed
    assert (removed.session, removed.changes) == ("default", 1)
    assert not overlay.exists()
    assert fresh_prompt.leftovers() == []
    assert fresh_prompt.sh("ls new 2>/dev/null; echo anew").stdout == b"anew\n"


def test_what_a_killed_keeper_left_is_unmounted_first(fresh_prompt: Prompt) -> None:
    found = warm(fresh_prompt)
    socket = os.readlink(fresh_prompt.overlay() / "keeper")
    os.kill(found.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(found.pid), "the keeper is gone")
    (removed,) = json.loads(fresh_prompt("prune", "--older-than", "0s", "--json").stdout)["removed"]
    assert removed["session"] == "default"
    assert fresh_prompt.leftovers() == []
    assert not os.path.lexists(os.path.dirname(socket))


def test_the_other_sessions_checkpoints_stay_whole(state: Path, root: Path) -> None:
    use(root, "gone")
    overlay = use(root, "kept", ("shared",))
    pruned(root)
    with CheckpointStore(overlay.parent.parent / "checkpoints.git") as store:
        assert store.sessions() == ["kept"]
        (checkpoint,) = store.list("kept")
        assert store.read(checkpoint.manifest.entries[b"shared"].blob) == b"content of shared"
    use(root, "gone")
    assert listed()["gone"]["checkpoints"] == 1


def _busy(root: Path, overlay: Path) -> Callable[[], None]:
    lock = OverlayDirectory.open(str(overlay)).take_lock()
    return lock.close


def _cut_short(root: Path, overlay: Path) -> Callable[[], None]:
    mark = overlay.parent.parent / "commits" / ".pending"
    mark.symlink_to("some-commit")
    return mark.unlink


def _damaged(root: Path, overlay: Path) -> Callable[[], None]:
    content = (overlay / "overlay.json").read_bytes()
    (overlay / "overlay.json").unlink()

    def undo() -> None:
        (overlay / "overlay.json").write_bytes(content)

    return undo


@pytest.mark.parametrize("how", [_busy, _cut_short, _damaged])
def test_what_somebody_is_at_or_is_in_between_stays(
    state: Path, root: Path, how: Callable[[Path, Path], Callable[[], None]]
) -> None:
    overlay = use(root, "s")
    undo = how(root, overlay)
    found = pruned(root)
    assert found.removed == ()
    assert [bool(old.reason) for old in found.kept] == [True]
    undo()
    assert [old.session for old in pruned(root).removed] == ["s"]


def test_what_changes_between_the_look_and_the_removal_stays(state: Path, root: Path) -> None:
    overlay = use(root, "s")
    opened, moment = StateDirectory.open(), time.time_ns()
    plan = prunable(opened, moment)
    assert [old.session.name for old in plan.sessions] == ["s"]
    late = overlay / "upper" / "just now"
    # The clock of files goes in steps.
    wait_until(lambda: late.touch() or late.stat().st_ctime_ns > moment, "a later file")
    found = prune(opened, plan, moment)
    assert found.sessions == ()
    assert [old.session.name for old in found.kept] == ["s"]
    assert (overlay / "upper" / "just now").exists()


# What commits keep


def test_a_commit_keeps_what_it_replaced_for_as_long_as_something_earlier_can_be_rewound_to(
    state: Path, root: Path
) -> None:
    first = land(root, "early", one="1")
    use(root, "between", ("held",))
    second = land(root, "late", two="2")
    assert commits(state) == {first, second}
    found = pruned(root)
    # `between` holds something, and its checkpoint is from after the first commit and before the second.
    assert {old.session for old in found.removed} == {"early", "late"}
    assert [commit.commit_id for commit in found.commits] == [first]
    assert commits(state) == {second}
    assert sorted(audited(root)[:3]) == [
        ("prune", "", first, {}),
        ("prune", "early", "", {"checkpoint": 2}),
        ("prune", "late", "", {"checkpoint": 2}),
    ]
    found = pruned(root, "--with-changes", "--yes")
    assert [commit.commit_id for commit in found.commits] == [second]
    assert commits(state) == set()
    assert {name: (root / name).read_text() for name in ("one", "two")} == {
        "one": "content of one",
        "two": "content of two",
    }


def test_a_young_commit_and_what_a_person_wrote_stay(state: Path, root: Path) -> None:
    commit = land(root, "s", one="1")
    workbench("prune", "--older-than", "1d", "-w", str(root))
    assert commits(state) == {commit}
    (record,) = state.glob(f"workspaces/*/commits/{commit}/landed.json")
    content = json.loads(record.read_text())
    record.write_text(json.dumps({**content, "kept": [["one", "kept/0"]]}))
    assert pruned(root).commits == ()
    assert commits(state) == {commit}
    record.write_text(json.dumps(content))
    (state / "workspaces" / record.parts[-4] / "commits" / ".unsettled").mkdir(exist_ok=True)
    (state / "workspaces" / record.parts[-4] / "commits" / ".unsettled" / commit).touch()
    assert pruned(root).commits == ()


def test_a_damaged_store_loses_no_pre_image(state: Path, root: Path) -> None:
    commit = land(root, "s", one="1")
    use(root, "bad")
    (reference,) = state.glob("workspaces/*/checkpoints.git/refs/workbench/bad/tip")
    reference.write_text("nonsense\n")
    found = pruned(root, code=1)
    assert [error["code"] for error in found.failed] == ["store_corrupt"]
    assert commits(state) == {commit}


# Workspaces whose directory is gone


def test_nothing_is_left_of_a_directory_that_is_gone(state: Path, root: Path) -> None:
    land(root, "s", one="1")
    use(root, "full", ("f",))
    shutil.rmtree(root)
    found = pruned(None)
    assert found.workspaces == ()
    assert listed().keys() == {"full"}
    found = pruned(None, "--with-changes", "--yes")
    assert [each.path for each in found.workspaces] == [str(root)]
    assert os.listdir(state / "workspaces") == os.listdir(state / "paths") == []
    make_tree(root)
    use(root, "anew")
    assert listed()["anew"]["standing"] == "here"


def test_a_directory_that_is_there_keeps_its_workspace(state: Path, root: Path) -> None:
    use(root)
    assert pruned(None).workspaces == ()
    assert len(os.listdir(state / "workspaces")) == 1


def test_a_directory_that_comes_back_at_the_last_moment_keeps_its_workspace(state: Path, root: Path) -> None:
    use(root)
    root.rename(root.with_name("away"))
    opened, moment = StateDirectory.open(), time.time_ns()
    plan = prunable(opened, moment)
    assert len(plan.emptied) == 1
    root.with_name("away").rename(root)
    assert prune(opened, plan, moment).emptied == ()
    assert len(os.listdir(state / "workspaces")) == 1


AS_USER = """
import json, os, subprocess, sys
def workbench(*arguments):
    done = subprocess.run([sys.executable, "-m", "workbench", *arguments], capture_output=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done
    return done.stdout
os.mkdir("w")
workbench("exec", "-w", "w", "--", "sh", "-c", "mkdir closed; echo x >closed/f; chmod 0 closed; rm -f gone")
workbench("stop", "-w", "w")
found = json.loads(workbench("prune", "-w", "w", "--older-than", "0s", "--with-changes", "--yes", "--json"))
assert [old["session"] for old in found["removed"]] == ["default"], found
state = os.path.expanduser("~/.local/state/workbench")
assert not [name for name in os.listdir(state) if name.startswith(".removed-")]
"""


@pytest.mark.root
def test_an_ordinary_user_prunes_what_the_engine_made_as_root(engine: None) -> None:
    with ordinary_user("docker") as user:
        user.run(AS_USER)


def test_a_purged_secret_leaves_every_session_and_nothing_else_goes(state: Path, root: Path) -> None:
    overlays = [use(root, session, ("keys/token", "keys/public")) for session in ("one", "two")]
    (store,) = state.glob("workspaces/*/checkpoints.git")

    def holding(content: bytes) -> list[bool]:
        with CheckpointStore(store) as opened:
            manifests = [opened.list(session)[0].manifest for session in ("one", "two")]
            blobs = [[entry.blob for entry in manifest.entries.values() if entry.blob] for manifest in manifests]
            return [any(opened.read(blob) == content for blob in each) for each in blobs]

    assert holding(b"content of keys/token") == [True, True]
    done = workbench("prune", "--purge", "keys/token", "--purge", "never", "-w", str(root), "--json")
    report = PurgeReport.model_validate_json(done.stdout)
    assert [(each.path, each.checkpoints) for each in report.purged] == [("keys/token", 2), ("never", 0)]
    assert holding(b"content of keys/token") == [False, False]
    assert holding(b"content of keys/public") == [True, True]
    assert all((overlay / "upper/keys/token").exists() for overlay in overlays)
    assert b"0 checkpoints held keys/token" in workbench("prune", "--purge", "keys/token", "-w", str(root)).stderr
    assert audited(root) == [
        ("purge", "", "keys/token", {"checkpoint": 0}),
        ("purge", "", "never", {"checkpoint": 0}),
        ("purge", "", "keys/token", {"checkpoint": 2}),
    ]
    assert listed().keys() >= {"one", "two"}


@pytest.mark.parametrize(
    "arguments", [(), ("--purge", "a", "--older-than", "1d"), ("--purge", "a", "--all"), ("--purge", "a", "--dry-run")]
)
def test_a_prune_says_what_it_is_to_remove(state: Path, root: Path, arguments: tuple[str, ...]) -> None:
    use(root)
    workbench("prune", "-w", str(root), *arguments, code=2)
    assert listed().keys() == {"default"}
