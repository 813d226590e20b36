"""`rewind`, `redo` and `fork` of a session in which an agent was spoken with."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.conftest import Cli
from workbench.agent.workspace_session import WorkspaceSession
from workbench.errors import RunFailedError
from workbench.testing import ScriptedModel, Turn
from workbench.workspace import Workspace

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


@pytest.fixture
def cli(state: Path, tmp_path: Path) -> Cli:
    """The command on a directory of its own; nothing here needs an engine."""
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "a").write_text("0")
    return Cli(directory)


@asynccontextmanager
async def opened(cli: Cli, *turns: Any, session: str = "default") -> AsyncIterator[WorkspaceSession]:
    model = ScriptedModel(*turns)
    async with (
        Workspace.open(cli.workspace, session=session) as workspace,
        WorkspaceSession.open(workspace, model=model) as found,
    ):
        yield found


def writes(content: str) -> Turn:
    return Turn(tool_calls=[Turn.call("write_file", {"path": "a", "content": content})])


async def talked(cli: Cli) -> None:
    """Two messages, each of which changed a file."""
    async with opened(cli, writes("1"), Turn(text="ok"), writes("2"), Turn(text="ok")) as session:
        for number in (1, 2):
            await (await session.start(f"write {number}", message_id=f"m{number}")).result()


async def state_of(cli: Cli, session: str = "default") -> tuple[bytes, list[str]]:
    async with opened(cli, session=session) as found:
        said = [message.content for message in found.agent.detail().messages if message.role == "user"]
        return await found.workspace.files.read(b"a"), said


async def told(cli: Cli, *arguments: str, code: int = 0) -> Any:
    found = await anyio.to_thread.run_sync(lambda: cli(*arguments, "--json", code=code))
    return json.loads(found.stdout)


async def test_files_and_conversation_go_back_and_forth_together(cli: Cli) -> None:
    await talked(cli)
    assert (await told(cli, "rewind", "m2"))["messages"] == 4
    assert await state_of(cli) == (b"1", ["write 1"])
    assert (await told(cli, "rewind", "m1"))["messages"] == 4
    assert await state_of(cli) == (b"0", [])
    for expected in ((b"1", ["write 1"]), (b"2", ["write 1", "write 2"])):
        assert (await told(cli, "redo"))["messages"] == 4
        assert await state_of(cli) == expected
    assert (await told(cli, "redo", code=1))["error"]["code"] == "nothing_to_redo"
    said = await anyio.to_thread.run_sync(lambda: cli("rewind", "m2"))
    assert b"4 messages taken back" in said.stderr
    assert b"1 path restored" in said.stderr


async def test_a_path_a_step_and_what_is_no_message_are_of_files_alone(cli: Cli) -> None:
    await told(cli, "checkpoint", "mine")
    await talked(cli)
    for arguments in (("m1", "--path", "a"), ("m1", "--step", "1"), ("mine",)):
        assert (await told(cli, "rewind", *arguments))["messages"] == 0
        assert (await state_of(cli))[1] == ["write 1", "write 2"]
        assert (await told(cli, "redo"))["messages"] == 0
    assert await state_of(cli) == (b"2", ["write 1", "write 2"])


async def test_a_difference_can_be_of_some_paths(cli: Cli) -> None:
    async with Workspace.open(cli.workspace) as workspace:
        await workspace.checkpoint("start")
        await workspace.files.mkdir(b"d")
        for name in (b"d/one", b"d/two", b"e"):
            await workspace.files.write(name, b"x")
        await workspace.checkpoint("end")
        assert [change.path for change in (await workspace.difference("start", only=[b"d/one"])).changes] == [b"d/one"]

    def shown(*arguments: str) -> list[bytes]:
        return cli("diff", "--from", "start", "--name-status", *arguments).stdout.splitlines()

    assert await anyio.to_thread.run_sync(lambda: shown("--to", "end", "d")) == [b"A\td/one", b"A\td/two"]
    assert await anyio.to_thread.run_sync(lambda: shown("e", "d/two")) == [b"A\td/two", b"A\te"]
    assert await anyio.to_thread.run_sync(lambda: shown("elsewhere")) == []


async def test_the_files_of_a_failed_run_go_back(cli: Cli) -> None:
    async with opened(cli, writes("half"), Turn(error=RuntimeError("gone"))) as session:
        with pytest.raises(RunFailedError):
            await (await session.start("write", message_id="m1")).result()
    assert (await told(cli, "rewind", "m1"))["messages"] == 0
    assert await state_of(cli) == (b"0", [])
    await told(cli, "redo")
    assert await state_of(cli) == (b"half", [])


async def test_the_log_tells_how_each_run_ended_and_folds_its_steps(cli: Cli) -> None:
    await talked(cli)
    await told(cli, "checkpoint", "mine")
    async with opened(cli, writes("half"), Turn(error=RuntimeError("gone"))) as session:
        with pytest.raises(RunFailedError):
            await (await session.start("fail", message_id="m3")).result()
    entries = await told(cli, "log")
    assert [(entry["message_id"], entry["result"], len(entry["steps"])) for entry in entries] == [
        ("m3", "error", 1),
        ("mine", None, 0),
        ("m2", "stop", 1),
        ("m1", "stop", 1),
    ]
    folded = (await anyio.to_thread.run_sync(lambda: cli("log"))).stdout.decode().splitlines()
    assert [line.partition("fail")[2] for line in folded[:1]] == [" (1 step)  run: error"]
    assert "run:" not in folded[1]
    unfolded = (await anyio.to_thread.run_sync(lambda: cli("log", "--steps"))).stdout.decode().splitlines()
    assert len(unfolded) == len(folded) + 3
    assert unfolded[1].split()[:2] == ["step", "1"]
    assert unfolded[1].endswith("write_file")
    # What was forked from there tells it of what lies before its beginning.
    await told(cli, "fork", "m2", "--name", "other")
    assert [entry["result"] for entry in await told(cli, "log", "--session", "other")][-1] == "stop"


async def test_a_fork_takes_the_conversation_along(cli: Cli) -> None:
    await talked(cli)
    assert (await told(cli, "fork", "m2", "--name", "other"))["session"] == "other"
    assert await state_of(cli, "other") == (b"1", ["write 1"])
    assert await state_of(cli) == (b"2", ["write 1", "write 2"])
    assert (cli.workspace / "a").read_text() == "0"


async def test_a_session_without_a_conversation_gets_none(cli: Cli) -> None:
    await told(cli, "checkpoint", "mine")
    await told(cli, "rewind", "mine")
    async with Workspace.open(cli.workspace) as workspace:
        assert not os.path.exists(workspace.conversation_path)


async def test_a_session_that_is_pruned_takes_its_conversation_along(cli: Cli) -> None:
    """One name, one life: another session of that name begins with nothing said."""
    await talked(cli)
    async with Workspace.open(cli.workspace) as workspace:
        assert os.path.exists(workspace.conversation_path)
    await told(cli, "prune", "--older-than", "0s", "--with-changes", "--yes")
    async with Workspace.open(cli.workspace) as workspace:
        assert not os.path.exists(workspace.conversation_path)
    assert await state_of(cli) == (b"0", [])
