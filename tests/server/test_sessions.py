"""`/v1/sessions`: workbench's own, as `workbench sessions --json` tells them, and their conversations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from typer.testing import CliRunner

from tests.server.served import Served, serving
from tests.trees import make_tree
from workbench.agent.workspace_session import WorkspaceSession
from workbench.cli.app import app
from workbench.protocol.session_reports import SessionsReport
from workbench.protocol.sessions import SessionDetail
from workbench.testing import ScriptedModel, Turn
from workbench.transcripts import LocalPlatform
from workbench.workspace import Workspace


@pytest.fixture
def own(state: Path, tmp_path: Path) -> Iterator[Served]:
    """A server over this test's own state directory."""
    with serving(LocalPlatform(home=str(tmp_path))) as served:
        yield served


def talk(root: Path, session: str, prompt: str) -> Path:
    """Have a session with a conversation; the conversation's file."""
    make_tree(root)

    async def work() -> Path:
        async with (
            Workspace.open(root, session=session) as workspace,
            WorkspaceSession.open(workspace, model=ScriptedModel(Turn(text="It's <done>."))) as conversation,
        ):
            await (await conversation.start(prompt)).result()
            return Path(workspace.conversation_path, "session.json")

    return anyio.run(work)


def without_age(report: Any) -> Any:
    """All of a list but what grows while one looks."""
    for session in report["sessions"]:
        del session["age_s"]
    return report


def test_sessions_are_listed_as_the_command_line_lists_them(own: Served, tmp_path: Path) -> None:
    assert own.told("/v1/sessions") == {"version": 1, "sessions": [], "workspaces": []}
    talk(tmp_path / "one", "default", "fix it")
    talk(tmp_path / "two", "other", "fix that")
    found: Any = own.told("/v1/sessions")
    assert SessionsReport.model_validate(found).model_dump(mode="json") == found
    printed = json.loads(CliRunner().invoke(app, ["sessions", "--json"]).stdout)
    assert without_age(found) == without_age(printed)
    only: Any = own.told("/v1/sessions", workspace=str(tmp_path / "two"))
    assert [session["session"] for session in only["sessions"]] == ["other"]
    for path in ("/v1/sessions", "/v1/sessions/other"):
        assert own.refused(path, 422, workspace="/\0")["message"].startswith("workspace: ")


def test_a_stored_conversation_is_told_whole(own: Served, tmp_path: Path) -> None:
    talk(tmp_path / "one", "default", "fix it")
    detail = SessionDetail.model_validate(own.told("/v1/sessions/default"))
    assert [message.content for message in detail.messages] == ["fix it", "It's <done>."]
    assert own.refused("/v1/sessions/nobody", 404)["code"] == "session_not_found"
    talk(tmp_path / "two", "default", "fix that")
    error = own.refused("/v1/sessions/default", 409)
    assert (error["code"], str(tmp_path / "two") in error["hint"]) == ("session_ambiguous", True)
    told = own.told("/v1/sessions/default", workspace=str(tmp_path / "two"))
    assert SessionDetail.model_validate(told).messages[0].content == "fix that"


def test_a_session_without_a_conversation_says_so(own: Served, tmp_path: Path) -> None:
    make_tree(tmp_path / "one")

    async def use() -> None:
        async with Workspace.open(tmp_path / "one", session="silent"):
            pass

    anyio.run(use)
    assert own.refused("/v1/sessions/silent", 404)["code"] == "no_conversation"


def test_a_damaged_conversation_is_a_problem_of_that_one_alone(own: Served, tmp_path: Path) -> None:
    talk(tmp_path / "one", "good", "fix it")
    path = talk(tmp_path / "two", "bad", "fix that")
    path.write_text("{")
    found: Any = own.told("/v1/sessions")
    problems = {session["session"]: session["conversation"]["problem"] for session in found["sessions"]}
    assert problems["good"] is None
    assert "can't be read" in problems["bad"]
    error = own.refused("/v1/sessions/bad", 500)
    assert error["code"] == "state_corrupt"
