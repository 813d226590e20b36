"""Forks of a session that work on one task, and the session that takes one of them over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import git_in
from workbench.agent.workspace_session import WorkspaceSession
from workbench.attempts import Attempts, measured
from workbench.deletion import collect, delete
from workbench.errors import CheckpointError, SessionBusyError, SessionChangedError, SessionNotFoundError
from workbench.mounting import SandboxOptions
from workbench.protocol.attempts import AttemptRecord, AttemptsGroup
from workbench.protocol.commands import Command
from workbench.sessions import survey_workspace
from workbench.state import StateDirectory
from workbench.testing import ScriptedModel, Turn
from workbench.workspace import Workspace

pytestmark = pytest.mark.anyio


@pytest.fixture
def root(tmp_path: Path, state: Path) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "a").write_text("0\n")
    return directory


async def work(root: Path, attempts: Attempts, group: AttemptsGroup, text: str) -> list[AttemptRecord]:
    """Each writes its number; what became of them."""
    ended = []
    for attempt in group.attempts:
        call = Turn.call("write_file", {"path": "a", "content": f"{attempt.number}\n"})
        model = ScriptedModel(Turn(tool_calls=[call]), Turn(text="done"))
        async with Workspace.open(root, session=attempt.session) as workspace:
            async with WorkspaceSession.open(workspace, model=model) as session:
                result = await (await session.start(text, message_id=group.message_id)).result()
                last = session.agent.detail().messages[-1].id
            attempt = attempt.model_copy(update={"end_reason": result.end_reason, "ok": True, "last_message": last})
            attempt, _ = await measured(workspace, attempt)
        await attempts.note(attempt)
        ended.append(attempt)
    return ended


async def test_what_a_person_said_in_a_review_is_told_to_all_and_forgotten_once_one_is_taken(root: Path) -> None:
    async with Workspace.open(root) as workspace, WorkspaceSession.open_to_travel(workspace) as session:
        await workspace.files.write(b"b", b"1\n")
        comments = workspace.reviewing.comments
        comments.add("Call it c.", (await workspace.changes()).shown[0])
        attempts = Attempts(workspace)
        group, text = await attempts.begin(session, "Go on.", 2, model="m", checks=False)
        await attempts.fork(session, group)
        await work(root, attempts, group, text)
        assert [comment.text for comment in comments.all()] == ["Call it c."]
        comments.add("Said since.", (await workspace.changes()).shown[0])
        await attempts.take(session, 2)
        assert [comment.text for comment in comments.all()] == ["Said since."]
        told = session.agent.detail().messages[0].content
        assert "Call it c." in told
        assert told.endswith("Go on.")
        assert (await workspace.read(b"a"), await workspace.read(b"b")) == (b"2\n", b"1\n")


async def test_a_take_that_was_killed_between_files_and_conversation_is_done_again(root: Path) -> None:
    async with Workspace.open(root) as workspace, WorkspaceSession.open_to_travel(workspace) as session:
        attempts = Attempts(workspace)
        group, text = await attempts.begin(session, "Go on.", 2, model="m", checks=False)
        await attempts.fork(session, group)
        first, _ = await work(root, attempts, group, text)
        await workspace.adopt(first.session, first.checkpoint, instead_of=[group.base])
    async with Workspace.open(root) as workspace, WorkspaceSession.open_to_travel(workspace) as session:
        for number in (1, 2):
            await Attempts(workspace).take(session, number)
            assert await workspace.read(b"a") == b"%d\n" % number
            assert session.agent.detail().messages[-1].content == "done"
            assert Attempts(workspace).groups()[0].offered == number


@pytest.mark.parametrize("is_collected", [False, True])
async def test_one_whose_session_was_deleted_leaves_the_others_to_be_taken(root: Path, is_collected: bool) -> None:
    async with Workspace.open(root) as workspace, WorkspaceSession.open_to_travel(workspace) as session:
        attempts = Attempts(workspace)
        group, text = await attempts.begin(session, "Go on.", 3, model="m", checks=False)
        await attempts.fork(session, group)
        first, second, third = await work(root, attempts, group, text)
        await attempts.take(session, first.number)
        found = survey_workspace(workspace.directory)
        for each in found.sessions:
            if each.name in (first.session, second.session):
                await delete(StateDirectory.open(), found, each, with_changes=True)
        if is_collected:
            collect(found)
        await attempts.take(session, third.number)
        assert await workspace.read(b"a") == b"3\n"
        for gone in (first, second):
            with pytest.raises((SessionNotFoundError, CheckpointError)):
                await attempts.take(session, gone.number)
        await workspace.files.write(b"a", b"mine\n")
        with pytest.raises(SessionChangedError):
            await attempts.take(session, third.number)
        assert await workspace.read(b"a") == b"mine\n"


async def test_a_conversation_or_files_that_went_on_are_not_replaced(root: Path) -> None:
    async with Workspace.open(root) as workspace:
        attempts = Attempts(workspace)
        async with WorkspaceSession.open_to_travel(workspace) as session:
            group, text = await attempts.begin(session, "Go on.", 1, model="m", checks=False)
            await attempts.fork(session, group)
        await work(root, attempts, group, text)
        async with WorkspaceSession.open(workspace, model=ScriptedModel(Turn(text="It's zero."))) as session:
            await (await session.start("What is in a?")).result()
            with pytest.raises(SessionChangedError):
                await attempts.take(session, 1)
            assert session.agent.detail().messages[-1].content == "It's zero."
            await session.agent.reset()
            await workspace.files.write(b"a", b"mine\n")
            with pytest.raises(SessionChangedError):
                await attempts.take(session, 1)
            assert session.agent.detail().messages == ()
        assert await workspace.read(b"a") == b"mine\n"
        assert attempts.groups()[0].offered is None


async def test_what_somebody_else_committed_meanwhile_stays_a_conflict_of_the_one_that_is_taken(root: Path) -> None:
    async with Workspace.open(root) as workspace, WorkspaceSession.open_to_travel(workspace) as session:
        attempts = Attempts(workspace)
        group, text = await attempts.begin(session, "Go on.", 1, model="m", checks=False)
        await attempts.fork(session, group)
        await work(root, attempts, group, text)
        (root / "a").write_text("somebody's\n")
        await attempts.take(session, 1)
        assert await workspace.conflicts(await workspace.changes()) == [b"a"]
    assert (root / "a").read_text() == "somebody's\n"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_commits_that_a_fork_made_in_a_linked_worktree_come_along(tmp_path: Path, state: Path) -> None:
    main, linked = tmp_path / "main", tmp_path / "linked"
    main.mkdir()
    git = git_in(main)
    git("init", "-q", "-b", "main")
    git("commit", "-q", "--allow-empty", "-m", "first")
    git("worktree", "add", "-q", str(linked), "-b", "side")
    options = SandboxOptions(backend="namespace")

    async def sh(workspace: Workspace, script: str) -> bytes:
        done = await workspace.exec(Command(("sh", "-c", script), output_limit=10_000))
        await workspace.stop()
        assert done.exit_code == 0
        return done.stdout

    async with Workspace.open(linked, options=options) as workspace:
        known = [(await workspace.checkpoint("m")).commit]
        for name in ("one", "two"):
            await workspace.fork("m", name)
            async with Workspace.open(linked, session=name, options=options) as fork:
                as_somebody = "git -c user.name=x -c user.email=x@example.com"
                await sh(fork, f"echo {name} >a; git add a; {as_somebody} commit -qm {name}")
                made = (await fork.changes()).checkpoint
            await workspace.adopt(name, made, instead_of=known)
            known.append(made)
            assert (
                await sh(workspace, "cat a; git log --format=%s; git status --short")
                == f"{name}\n{name}\nfirst\n".encode()
            )
        await workspace.rewind("m")
        assert await sh(workspace, "git log --format=%s; git status --short") == b"first\n"
    assert git("log", "--format=%s", "side") == "first\n"


async def test_two_never_work_on_them_at_once(root: Path) -> None:
    async with Workspace.open(root) as workspace:
        attempts = Attempts(workspace)
        with attempts.alone():
            assert attempts.are_running()
            with pytest.raises(SessionBusyError), Attempts(workspace).alone():
                pass
        assert not attempts.are_running()


async def test_a_session_that_only_has_the_name_of_a_deleted_attempts_is_not_dropped(root: Path) -> None:
    async with Workspace.open(root) as workspace, WorkspaceSession.open_to_travel(workspace) as session:
        attempts = Attempts(workspace)
        group, text = await attempts.begin(session, "Go on.", 2, model="m", checks=False)
        await attempts.fork(session, group)
        await work(root, attempts, group, text)
        mine, other = (attempt.session for attempt in group.attempts)
        state = StateDirectory.open()
        found = survey_workspace(workspace.directory, limit=None)
        (gone,) = (each for each in found.sessions if each.name == mine)
        await delete(state, found, gone, with_changes=True)
        async with Workspace.open(root, session=mine) as own:
            await own.files.write(b"b", b"mine\n")
            assert (await attempts.drop()).removed == [other]
            assert await own.read(b"b") == b"mine\n"
    assert attempts.groups() == ()
