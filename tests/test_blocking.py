"""The public API without an event loop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.waiting import wait_until
from workbench import Command
from workbench.blocking import Workspace, WorkspaceSession
from workbench.errors import CheckpointError, CommitError, OptionsError, RunFailedError
from workbench.testing import ScriptedModel, Turn


@pytest.fixture
def root(tmp_path: Path, state: Path) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "a").write_text("0")
    return directory


def writing(text: str) -> list[Turn]:
    return [Turn(tool_calls=[Turn.call("write_file", {"path": "a", "content": text})]), Turn(deltas=["wrote ", text])]


def test_a_command_is_run_looked_at_and_landed(engine: None, root: Path) -> None:
    with Workspace.open(str(root)) as workspace:
        result = workspace.exec(Command(("sh", "-c", "cat a; echo 1 >a; exit 3"), output_limit=100))
        assert (result.exit_code, result.stdout) == (3, b"0")
        assert workspace.read(b"a") == b"1\n"
        changes = workspace.changes()
        assert [change.path for change in changes.shown] == [b"a"]
        assert (root / "a").read_text() == "0"
        assert workspace.status().changes.digest == changes.digest
        workspace.commit(workspace.reviewed(changes))
        workspace.stop()
    assert (root / "a").read_text() == "1\n"


def test_what_was_done_is_taken_back_and_brought_back(root: Path) -> None:
    with Workspace.open(str(root)) as workspace:
        workspace.checkpoint("m1", label="before")
        workspace.view.write_bytes(b"a", b"1")
        workspace.rewind("m1")
        assert workspace.view.read_bytes(b"a") == b"0"
        workspace.redo()
        assert workspace.view.read_bytes(b"a") == b"1"
        workspace.discard()
        assert workspace.changes().shown == ()
        with pytest.raises(CheckpointError):
            workspace.rewind("m2")
        with pytest.raises(CommitError):
            workspace.commit("0" * 64)


def test_a_conversation_is_read_event_by_event_and_rewound(root: Path) -> None:
    with (
        ScriptedModel(*writing("1"), *writing("2"), Turn(error=RuntimeError("broken"))) as model,
        Workspace.open(str(root)) as workspace,
        WorkspaceSession.open(workspace, model=model) as session,
    ):
        with pytest.raises(OptionsError):
            session.result()
        texts = [event.text for event in session.run("Write 1.", message_id="m1") if event.type == "text"]
        assert texts == ["wrote ", "1"]
        assert session.result().ok
        for _ in session.run("Write 2.", message_id="m2"):
            pass
        assert session.rewind("m2").removed == 4
        assert workspace.view.read_bytes(b"a") == b"1"
        session.redo()
        assert workspace.view.read_bytes(b"a") == b"2"
        assert session.fork("m2")
        assert [event.type for event in session.run("Fail.")][-1] == "end"
        with pytest.raises(RunFailedError, match="broken"):
            session.result()


def test_leaving_the_events_early_cancels_the_run(root: Path) -> None:
    with (
        ScriptedModel(Turn(deltas=["a"], tool_calls=[Turn.call("list_files")]), Turn(delay=1000)) as model,
        Workspace.open(str(root)) as workspace,
        WorkspaceSession.open(workspace, model=model) as session,
    ):
        for event in session.run("Be slow."):
            if event.type == "tool_result":
                while len(model.requests) < 2:
                    workspace.call(_checkpoint)
                break
        assert session.result().status == "cancelled"


async def _checkpoint() -> None:
    import anyio.lowlevel

    await anyio.lowlevel.checkpoint()


def test_outside_of_its_block_it_says_so_and_its_thread_has_ended(root: Path) -> None:
    before = threading.active_count()
    workspace = Workspace.open(str(root))
    with pytest.raises(OptionsError, match="isn't open"):
        workspace.changes()
    with workspace, WorkspaceSession.open(workspace, model=ScriptedModel()) as session:
        workspace.changes()
    for late in (workspace.changes, session.redo):
        with pytest.raises(OptionsError, match="isn't open"):
            late()
    # Threads that worked for it end by themselves a moment later.
    wait_until(lambda: threading.active_count() <= before, "no thread of it is left")


def test_an_interrupt_ends_the_command_and_the_program_goes_on(engine: None, state: Path, root: Path) -> None:
    program = (
        "import sys\n"
        "from workbench import Command\n"
        "from workbench.blocking import Workspace\n"
        "with Workspace.open(sys.argv[1]) as workspace:\n"
        "    workspace.exec(Command(('true',)))\n"
        "    print('ready', flush=True)\n"
        "    try:\n"
        "        workspace.exec(Command(('sh', '-c', 'echo >started; exec sleep 1000')))\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted', flush=True)\n"
        "    print(workspace.exec(Command(('echo', 'well'), output_limit=9)).stdout.decode())\n"
        "    workspace.stop()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(root)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    wait_until(lambda: list(state.glob("workspaces/*/overlays/default/upper/started")), "the command runs")
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    assert process.stdout.readline() == "well\n"
    process.communicate(timeout=120)
    assert process.returncode == 0
