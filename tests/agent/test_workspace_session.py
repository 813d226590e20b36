"""Files and conversation of one session go together."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from workbench.agent.options import SessionOptions
from workbench.agent.workspace_session import WorkspaceSession
from workbench.errors import (
    CheckpointError,
    MessageExistsError,
    OptionsError,
    RewindError,
    RunFailedError,
    SessionBusyError,
)
from workbench.protocol.messages import CompletionRequest
from workbench.testing import ScriptedModel, Turn
from workbench.tools.registry import ToolRegistry
from workbench.workspace import Workspace

pytestmark = pytest.mark.anyio


@pytest.fixture
def root(tmp_path: Path, state: Path) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "a").write_text("0")
    return directory


def writes(text: str) -> list[Turn]:
    """A run that puts a text into the file."""
    return [Turn(tool_calls=[Turn.call("write_file", {"path": "a", "content": text})]), Turn(text=f"wrote {text}")]


@asynccontextmanager
async def opened(root: Path, *turns: Any, **options: Any) -> AsyncIterator[WorkspaceSession]:
    with ScriptedModel(*turns) as model:
        async with (
            Workspace.open(root) as workspace,
            WorkspaceSession.open(workspace, model=model, **options) as session,
        ):
            yield session


async def ran(session: WorkspaceSession, text: str, message_id: str) -> None:
    async with await session.run(text, message_id=message_id) as run:
        async for _ in run:
            pass
    assert (await run.result()).ok


def content(session: WorkspaceSession) -> str:
    return session.workspace.view.read_bytes(b"a").decode()


def said(session: WorkspaceSession) -> list[str]:
    return [message.content for message in session.agent.detail().messages if message.role == "user"]


async def test_a_rewind_takes_back_files_and_conversation_and_redo_brings_both_back(root: Path) -> None:
    async with opened(root, *writes("1"), *writes("2"), *writes("3")) as session:
        for number in "123":
            await ran(session, f"write {number}", f"m{number}")
        rewound = await session.rewind("m3")
        assert (rewound.removed, content(session), said(session)) == (4, "2", ["write 1", "write 2"])
        rewound = await session.rewind("m1")
        assert (rewound.removed, content(session), said(session)) == (8, "0", [])
        await session.redo()
        assert (content(session), said(session)) == ("2", ["write 1", "write 2"])
        await session.redo()
        assert (content(session), said(session)) == ("3", ["write 1", "write 2", "write 3"])
        with pytest.raises(CheckpointError, match="no rewind"):
            await session.redo()
        assert (root / "a").read_text() == "0"


async def test_files_or_conversation_can_be_taken_back_alone(root: Path) -> None:
    async with opened(root, *writes("1"), *writes("2")) as session:
        await ran(session, "write 1", "m1")
        await ran(session, "write 2", "m2")
        assert (await session.rewind("m2", conversation=False)).removed == 0
        assert (content(session), said(session)) == ("1", ["write 1", "write 2"])
        await session.redo()
        assert content(session) == "2"
        await session.rewind("m2", files=False)
        assert (content(session), said(session)) == ("2", ["write 1"])
        await session.redo()
        assert said(session) == ["write 1", "write 2"]


async def test_what_is_no_message_of_the_users_is_refused(root: Path) -> None:
    async with opened(root, *writes("1")) as session:
        await ran(session, "write 1", "m1")
        reply = session.agent.detail().messages[1]
        for message_id, code in (("m2", "message_not_found"), (reply.id, "invalid_rewind_target")):
            with pytest.raises(RewindError) as refused:
                await session.rewind(message_id)
            assert refused.value.code == code
        with pytest.raises(MessageExistsError):
            await session.run("again", message_id="m1")
        with pytest.raises(MessageExistsError):
            await session.start("again", message_id="m1")


async def test_the_message_of_a_failed_run_is_gone_and_its_files_can_be_taken_back(root: Path) -> None:
    turns = [writes("1")[0], Turn(error=RuntimeError("the provider broke"))]
    async with opened(root, *turns) as session:
        async with await session.run("write 1", message_id="m1") as run:
            async for _ in run:
                pass
        with pytest.raises(RunFailedError):
            await run.result()
        assert (content(session), said(session)) == ("1", [])
        assert (await session.rewind("m1")).removed == 0
        assert content(session) == "0"
        with pytest.raises(MessageExistsError):
            await session.run("again", message_id="m1")
        await session.redo()
        assert content(session) == "1"


async def test_nothing_is_taken_back_and_nothing_else_is_begun_during_a_run(root: Path) -> None:
    asked = anyio.Event()

    def slow(request: CompletionRequest) -> Turn:
        asked.set()
        return Turn(text="slow", delay=1000)

    async with opened(root, slow) as session:
        run = await session.start("be slow", message_id="m1")
        await asked.wait()
        for refused in (session.rewind("m1"), session.redo()):
            with pytest.raises(RewindError) as busy:
                await refused
            assert busy.value.code == "session_busy"
        with pytest.raises(SessionBusyError):
            await session.run("another")
        run.cancel()
        assert (await run.result()).status == "cancelled"


async def test_each_reply_with_calls_has_a_sub_step_to_go_back_to(root: Path) -> None:
    heard: list[str] = []

    async def hear(message: Any) -> None:
        heard.append(message.tool_calls[0].name)

    turns = [writes("1")[0], writes("2")[0], Turn(text="done")]
    async with opened(root, *turns, options=SessionOptions(after_tools=hear)) as session:
        await ran(session, "write twice", "m1")
        assert heard == ["write_file", "write_file"]
        await session.workspace.rewind("m1", step=1)
        assert content(session) == "1"


async def test_a_fork_goes_on_from_a_message_by_itself(root: Path) -> None:
    async with opened(root, *writes("1"), *writes("2")) as session:
        await ran(session, "write 1", "m1")
        await ran(session, "write 2", "m2")
        name = await session.fork("m2")
    with ScriptedModel(*writes("3")) as model:
        async with (
            Workspace.open(root, session=name) as workspace,
            WorkspaceSession.open(workspace, model=model) as fork,
        ):
            assert (content(fork), said(fork)) == ("1", ["write 1"])
            await ran(fork, "write 3", "m3")
            assert content(fork) == "3"
    async with opened(root) as session:
        assert (content(session), said(session)) == ("2", ["write 1", "write 2"])


async def test_the_conversation_goes_on_where_another_process_left_it(root: Path) -> None:
    async with opened(root, *writes("1")) as session:
        await ran(session, "write 1", "m1")
    async with opened(root, *writes("2")) as session:
        assert said(session) == ["write 1"]
        await ran(session, "write 2", "m2")
        await session.rewind("m1")
        assert content(session) == "0"
    async with opened(root) as session:
        assert said(session) == []
        await session.redo()
        assert (content(session), said(session)) == ("2", ["write 1", "write 2"])


async def test_what_a_new_message_came_after_does_not_come_back(root: Path) -> None:
    async with opened(root, *writes("1"), *writes("2")) as session:
        await ran(session, "write 1", "m1")
        await session.rewind("m1")
        await ran(session, "write 2", "m2")
        with pytest.raises(CheckpointError):
            await session.redo()
        assert (content(session), said(session)) == ("2", ["write 2"])


async def test_a_projects_notes_are_in_the_prompt_as_untrusted_unless_they_are_not_wanted(root: Path) -> None:
    (root / "AGENTS.md").write_text("Use tabs. " + "x" * 100_000)
    os.symlink("/etc/passwd", root / "CLAUDE.md")
    (root / ".cursorrules").write_text("Use spaces.")
    for notes in (True, False):
        with ScriptedModel(Turn(text="hello")) as model:
            async with (
                Workspace.open(root) as workspace,
                WorkspaceSession.open(workspace, model=model, notes=notes) as session,
            ):
                await ran(session, "hello", f"m{notes}")
        system = model.requests[0].messages[0].content
        assert ("untrusted: take facts" in system, "Use tabs" in system, "Use spaces" in system) == (notes,) * 3
        assert "root:" not in system
        assert len(system) < 80_000
        assert "edit_file" in system


async def test_a_conversation_of_another_session_is_refused(root: Path) -> None:
    async with opened(root) as session, Workspace.open(root, session="other") as other:
        with pytest.raises(OptionsError):
            WorkspaceSession(other, session.agent)


async def test_tools_of_ones_own_take_the_place_of_the_workspaces(root: Path) -> None:
    with ScriptedModel(Turn(text="hello")) as model:
        async with (
            Workspace.open(root) as workspace,
            WorkspaceSession.open(workspace, model=model, options=SessionOptions(tools=ToolRegistry())) as session,
        ):
            await ran(session, "hello", "m1")
    assert model.requests[0].tools == ()


# Crashes

_CRASHING = """
import os, sys, anyio
from workbench.agent import journal, stores
from workbench.agent.workspace_session import WorkspaceSession
from workbench.checkpoints import store
from workbench.protocol.messages import CompletionRequest
from workbench.testing import ScriptedModel, Turn
from workbench.vfs import statefile
from workbench.workspace import Workspace

left = int(sys.argv[3])

def dying(rename):
    def renamed(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os._exit(137)
        return rename(*arguments, **options)
    return renamed

async def main():
    async with Workspace.open(sys.argv[1]) as workspace, WorkspaceSession.open(workspace, model=ScriptedModel()) as session:
        os.rename, os.replace, os.link = dying(os.rename), dying(os.replace), dying(os.link)
        await (session.rewind("m1") if sys.argv[2] == "rewind" else session.redo())

anyio.run(main)
"""


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_move_killed_at_any_rename_is_completed_by_the_next_open(
    root: Path, tmp_path: Path, anyio_backend: str
) -> None:
    async with opened(root, *writes("1"), *writes("2")) as session:
        await ran(session, "write 1", "m1")
        await ran(session, "write 2", "m2")
    states = {"rewind": ("0", []), "redo": ("2", ["write 1", "write 2"])}
    for move, before in (("rewind", "redo"), ("redo", "rewind")):
        for renames in range(60):
            argv = [sys.executable, "-c", _CRASHING, str(root), move, str(renames)]
            code = subprocess.run(argv, check=False).returncode
            async with opened(root) as session:
                found = (content(session), said(session))
                assert found in (states[move], states[before]), (move, renames)
                if found == states[before]:
                    # It had not begun.
                    assert code == 137
                    continue
                if code == 0:
                    break
                await (session.redo() if move == "rewind" else session.rewind("m1"))
                assert (content(session), said(session)) == states[before], (move, renames)
        else:
            pytest.fail("it never came to its end")
