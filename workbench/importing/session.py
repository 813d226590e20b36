"""Making a session from what another agent's comes to: all of it, or none."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anyio import to_thread

from workbench.agent.history import StoreHistory
from workbench.agent.prompt import title_from_input
from workbench.agent.stores import FileSessionStore
from workbench.agent.travels import Travels
from workbench.errors import OverlayError, TranscriptError
from workbench.importing.parts import Part
from workbench.importing.places import Places
from workbench.importing.planning import Plan, Step, Told, plan
from workbench.protocol.messages import ChatMessage, Usage, now
from workbench.protocol.sessions import SessionDetail
from workbench.pruning import remove_unfinished
from workbench.state import StateDirectory
from workbench.transcripts.importing import ImportedSession
from workbench.unfinished import unfinished
from workbench.vfs import paths
from workbench.vfs.storage import Kind
from workbench.workspace import Workspace

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_CHARACTERS = 58
_ID_CHARACTERS = 8


@dataclass(frozen=True, slots=True)
class Imported:
    """The session that was made: how many messages it has, how many checkpoints were taken, and what became of the edits."""

    session: str
    messages: int
    checkpoints: int
    plan: Plan


def free_name(taken: Sequence[str], agent: str, session_id: str) -> str:
    """A name for the session: the agent's and the beginning of its id, and the first number with which it isn't taken."""
    plain = _NOT_IN_NAMES.sub("-", f"{agent}-{session_id.rpartition('/')[2][:_ID_CHARACTERS]}").strip("-._")
    base = plain[:_NAME_CHARACTERS] or "imported"
    name, number = base, 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    return name


async def import_session(
    root: bytes,
    found: ImportedSession,
    *,
    session: str,
    from_dir: str | None = None,
    only: Part | None = None,
    told: Told | None = None,
    report: Callable[[str], None] | None = None,
) -> Imported:
    """Make a session of a workspace with the messages, and with the edits as checkpoints under the ids of the messages.

    A message's own checkpoint is what was there before it, its steps what each reply after it did. `from_dir` as of `Places`;
    `told` hears how many steps are done; `report` as of `Workspace.open`. The real workspace isn't touched. An error leaves
    no session. Raises TranscriptError where nothing was said, OverlayError (session_exists, overlay_busy), CheckpointError,
    StoreError, OSError, and as `Workspace.open`.
    """
    if not found.messages:
        raise TranscriptError(
            "Nothing was said in that session.",
            code="transcript_empty",
            hint="`workbench transcripts list` shows others.",
        )
    workspace = Workspace.open(root, session=session, report=report or _silent)
    async with workspace:
        if not workspace.is_unused():
            raise OverlayError(
                f"There is a session '{session}' already.", code="session_exists", hint="Choose another name."
            )
        try:
            with unfinished(workspace.overlay_path):
                return await _Import(workspace, found, from_dir, only, told).run()
        except BaseException:
            state = StateDirectory.open()
            remove_unfinished(state, state.workspace(workspace.root), session)
            raise


def _silent(_: str) -> None:
    pass


class _Import:
    """One import under way."""

    def __init__(
        self, workspace: Workspace, found: ImportedSession, from_dir: str | None, only: Part | None, told: Told | None
    ) -> None:
        self._workspace = workspace
        self._found = found
        self._from_dir = from_dir
        self._only = only
        self._told = told

    async def run(self) -> Imported:
        workspace, found = self._workspace, self._found
        edits = found.edits if self._only is not Part.CONVERSATION else ()
        places = Places.of(workspace.root, found.transcript.cwd, self._from_dir)
        planned = await to_thread.run_sync(lambda: plan(edits, places, workspace.view))
        asked = [message for message in found.messages if message.role == "user"]
        taken = await self._take_steps(planned, asked)
        if self._only is not Part.FILES:
            started = tuple(message.id for message in asked)
            await Travels(workspace.directory, workspace.session).change(
                lambda record: record.model_copy(update={"started": started})
            )
            await StoreHistory(FileSessionStore(workspace.directory)).create(self._detail())
        messages = len(found.messages) if self._only is not Part.FILES else 0
        return Imported(workspace.session, messages, taken, planned)

    async def _take_steps(self, planned: Plan, asked: Sequence[ChatMessage]) -> int:
        """Bring the overlay from one state to the next, with a checkpoint of each; how many."""
        await to_thread.run_sync(self._carry_out, planned.before)
        steps: dict[str, list[Step]] = {}
        for step in planned.steps:
            steps.setdefault(step.message_id, []).append(step)
        total, done = len(asked) + len(planned.steps), 0
        for message in asked:
            await self._workspace.checkpoint(message.id, label=title_from_input(message.content))
            done += 1
            for number, step in enumerate(steps.get(message.id, ()), 1):
                await to_thread.run_sync(self._carry_out, step)
                await self._workspace.checkpoint(message.id, label=", ".join(step.tools), step=number)
                done += 1
                if self._told is not None:
                    self._told(done, total)
        return done

    def _carry_out(self, step: Step) -> None:
        """Move files, then give them their contents."""
        view = self._workspace.view
        for source, target in step.moves:
            if view.kind(source) is Kind.FILE and view.kind(target) is None:
                view.makedirs(paths.parent(target), exist_ok=True)
                view.rename(source, target)
        for path, content in step.files.items():
            kind = view.kind(path)
            if content is None:
                if kind is not None:
                    view.unlink(path)
            elif kind is None:
                view.makedirs(paths.parent(path), exist_ok=True)
                view.write_bytes(path, content)
                self._keep_mode(path)
            elif view.read_bytes(path) != content:
                view.write_bytes(path, content)

    def _keep_mode(self, path: bytes) -> None:
        """Give a file that comes again, since it's in the real workspace, the mode that it has there."""
        try:
            there = self._workspace.lower.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        if there.kind is Kind.FILE:
            self._workspace.view.chmod(path, there.mode & 0o777)

    def _detail(self) -> SessionDetail:
        transcript, messages = self._found.transcript, self._found.messages
        moment = now()
        first = next((message.content for message in messages if message.role == "user"), "")
        return SessionDetail(
            id=self._workspace.session,
            title=title_from_input(transcript.title or first),
            workspace=self._workspace.root.decode(errors="backslashreplace"),
            model="",
            is_running=False,
            message_count=len(messages),
            usage=Usage(),
            tenant_id=None,
            created_at=transcript.started_at or moment,
            updated_at=moment,
            system_prompt=None,
            messages=messages,
            pending=(),
        )
