"""One session, as people and programs are shown it, and its conversation as a document."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator

from rich.filesize import decimal

from workbench.cli import output
from workbench.cli.formats import Format
from workbench.cli.session_list import STANDING, age, changes, size
from workbench.conversations import FILE
from workbench.errors import SessionError, StateError
from workbench.protocol.messages import ChatMessage, Usage
from workbench.protocol.session_reports import ConversationReport, ShownSessionReport
from workbench.session_reports import conversation, detail_of, session_report
from workbench.sessions import Session, WorkspaceSessions
from workbench.state import Standing

_LINES = 12
"""Of a message, where only the last exchange is shown."""


async def document(session: Session, form: Format) -> str:
    """The conversation of a session as a document, whose text shows what a terminal would obey. Raises as `detail_of`."""
    from workbench.transcripts import LocalPlatform, SessionRef, Transcript, find_adapter
    from workbench.transcripts.exporting import to_html, to_markdown

    detail = detail_of(session)
    if form is Format.JSON:
        return detail.model_dump_json(indent=2) + "\n"
    ref = SessionRef(agent="workbench", path=os.path.join(session.conversation, FILE))
    transcript = await find_adapter("workbench").load(LocalPlatform(), ref)
    if not isinstance(transcript, Transcript):
        raise StateError(f"The conversation of session {session.name} was removed meanwhile.")
    # Before it's looked at what is Markdown: what stands for a control character may be.
    events = tuple(event.model_copy(update={"text": _visible(event.text)}) for event in transcript.events)
    transcript = transcript.model_copy(update={"events": events})
    return _visible(to_html(transcript) if form is Format.HTML else to_markdown(transcript))


def _visible(text: str) -> str:
    return output.visible(text.encode("utf-8", "replace"))


def report(workspace: WorkspaceSessions, session: Session) -> ShownSessionReport:
    """What programs get of one session."""
    prompt, reply = _last_exchange(session)
    plain = session_report(workspace, session, time.time_ns())
    return ShownSessionReport(**dict(plain), prompt=prompt, reply=reply)


def print_session(workspace: WorkspaceSessions, session: Session) -> None:
    """One session for people, and what to do next with it."""
    talk = conversation(session)
    for name, value in (*_facts(workspace, session), *_said(talk)):
        print(f"{output.bold(f'{name:<12}')} {value}")
    for message in filter(None, _last_exchange(session)):
        print()
        print(output.bold("you" if message.role == "user" else "agent"))
        for line in _beginning(message):
            print(f"  {line}")
    print()
    steps = list(_next(workspace, session, talks=talk is not None))
    width = max(len(command) for command, _ in steps)
    for number, (command, what) in enumerate(steps):
        print(f"{'' if number else 'Next:':<5} {command:<{width}}  {what}")


def _facts(workspace: WorkspaceSessions, session: Session) -> Iterator[tuple[str, str]]:
    yield "session", output.path(os.fsencode(session.name))
    there = "" if workspace.standing is Standing.HERE else f" ({STANDING[workspace.standing]})"
    yield "workspace", f"{output.path(workspace.root) if workspace.root else '?'}{there}"
    yield "last used", f"{age(time.time_ns() - session.touched_ns)} ago" if session.touched_ns else "?"
    yield "sandbox", _sandbox(session)
    yield "changes", f"{changes(session)}, not landed yet" if session.changes != 0 else "none"
    yield "size", size(session.upper)
    kept = f" ({decimal(session.checkpoint_bytes)})" if session.checkpoints else ""
    yield "checkpoints", f"{session.checkpoints:,}{kept}"
    if session.problem:
        yield "problem", output.text(session.problem)


def _said(talk: ConversationReport | None) -> Iterator[tuple[str, str]]:
    if talk is None:
        yield "conversation", "none"
    elif talk.problem:
        yield "conversation", output.text(talk.problem)
    else:
        yield "title", output.text(talk.title) or "-"
        yield "model", output.text(talk.model) or "-"
        yield "messages", f"{talk.messages:,}"
        yield "used", _spent(talk.usage)


def _sandbox(session: Session) -> str:
    if session.running:
        return f"{session.backend}, running".removeprefix(", ")
    if session.busy:
        return "another process is at the overlay"
    return f"{session.backend}, stopped" if session.backend else "none yet"


def _spent(usage: Usage) -> str:
    if usage.is_empty:
        return "nothing was reported"
    cost = f", {output.dollars(usage.cost_usd)}" if usage.cost_usd is not None else ""
    return f"{output.count(usage.input_tokens, 'token')} in, {usage.output_tokens:,} out{cost}"


def _last_exchange(session: Session) -> tuple[ChatMessage | None, ChatMessage | None]:
    """The last message of the person's, and the last text that answered it."""
    try:
        messages = detail_of(session).messages
    except (SessionError, StateError, OSError):
        # What is wrong with it is among the facts.
        return None, None
    prompt = reply = None
    for message in messages:
        if message.role == "user":
            prompt, reply = message, None
        elif message.role == "assistant" and message.content.strip():
            reply = message
    return prompt, reply


def _beginning(message: ChatMessage) -> Iterator[str]:
    lines = message.content.strip().split("\n")
    yield from map(output.text, lines[:_LINES])
    if len(lines) > _LINES:
        yield f"… {output.count(len(lines) - _LINES, 'more line')}"


def _next(workspace: WorkspaceSessions, session: Session, *, talks: bool) -> Iterator[tuple[str, str]]:
    where = f"-w {shlex.quote(output.path(workspace.root))}"
    if workspace.standing is Standing.HERE:
        if session.holds:
            yield f"workbench review {where} --session {session.name}", "decide which changes may land"
        else:
            yield f"workbench exec {where} --session {session.name} -- COMMAND", "run a command in it"
        if talks:
            yield f"workbench sessions resume {session.name} {where}", "go on with the conversation"
    if talks:
        yield f"workbench sessions export {session.name} {where}", "the conversation as Markdown"
    yield f"workbench sessions delete {session.name} {where}", "remove it with all it has"
