"""A session of another agent as what one can go on from: its messages, and in order what it did to files."""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.protocol.messages import ChatMessage, ImageAttachment
from workbench.transcripts.changes import (
    Deed,
    FileChange,
    Replace,
    Replacement,
    Unrecorded,
    changes_of_call,
    recorded_changes,
    search_blocks,
)
from workbench.transcripts.conversing import Enclosed, Reply, conversation
from workbench.transcripts.files import FileAdapter, Reading
from workbench.transcripts.listing import find_adapter
from workbench.transcripts.models import (
    MAIN_LANE,
    DocumentPointer,
    EditAction,
    FileEdit,
    LinePointer,
    Original,
    SessionReadError,
    SessionRef,
    SourcePointer,
    Transcript,
    TranscriptEvent,
)
from workbench.transcripts.original import read_original, resolve
from workbench.transcripts.platform import SessionPlatform
from workbench.transcripts.recorder import Recorder
from workbench.transcripts.values import items, mapping, string

_SHELL = re.compile(r"bash|shell|exec|terminal|run_?command|powershell|^command$", re.IGNORECASE)
_DATA_URL = re.compile(r"data:(image/[a-z+.-]+);base64,", re.IGNORECASE)
_TYPES = ("media_type", "mimeType", "mime_type", "mediaType", "mime")
_SIGNS = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}
_IMAGE_BYTES = 5 << 20
_IMAGES = 20
_DEPTH = 8

Told = Callable[[int, int], None]
"""Called with how many records of those to be read have been, and how many those are."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One change to a file, as recorded.

    `message_id` is the user's message that it was made after, `reply_id` the agent's that made it, `tool` what made it. A
    relative `path` starts at `directory`, empty where that is the session's own. `path` is empty where a patch names its
    files; then `named` are those that the records name.
    """

    message_id: str
    reply_id: str
    tool: str
    path: str
    deed: Deed
    action: EditAction
    directory: str = ""
    named: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImportedSession:
    """What a session comes to. `commands` counts calls of shells, of whose effects the records say nothing."""

    transcript: Transcript
    messages: tuple[ChatMessage, ...]
    edits: tuple[Edit, ...]
    commands: int


async def load_to_import(
    platform: SessionPlatform, ref: SessionRef, *, told: Told | None = None
) -> ImportedSession | SessionReadError:
    """Load a session with its texts whole, and with what only its records hold: images, summaries, contents of files."""
    adapter = find_adapter(ref.agent)
    if isinstance(adapter, FileAdapter):
        recorder = Recorder(ref, keep=True, longest=None)
        failure = await adapter.tell(Reading(platform, recorder), ref)
        if failure is not None:
            return failure
        transcript = recorder.transcript()
    else:
        loaded = await adapter.load(platform, ref)
        if not isinstance(loaded, Transcript):
            return loaded
        transcript = loaded
    return imported(transcript, await _originals(platform, transcript, told))


def imported(transcript: Transcript, originals: dict[SourcePointer, Any]) -> ImportedSession:
    """What a transcript comes to, with the records that were read back by their pointers."""
    enclosed = Enclosed(
        images={source: found for source, value in originals.items() if (found := tuple(_images(value)))},
        summaries={
            compaction.source: summary
            for compaction in transcript.compactions
            if (summary := _summary(originals.get(compaction.source), 0))
        },
    )
    talk = conversation(transcript, enclosed)
    edits = tuple(_edits(transcript, talk.replies, originals)) if talk.replies else ()
    commands = sum(bool(_SHELL.search(call.name)) for call in transcript.tool_calls)
    return ImportedSession(transcript, talk.messages, edits, commands)


async def _originals(platform: SessionPlatform, transcript: Transcript, told: Told | None) -> dict[SourcePointer, Any]:
    """The records of prompts, compactions and results, and of edits that no call tells of; documents are read once."""
    found: dict[SourcePointer, Any] = {}
    documents: dict[str, Any] = {}
    wanted = list(dict.fromkeys(_wanted(transcript)))
    for number, source in enumerate(wanted):
        if told is not None:
            told(number, len(wanted))
        if isinstance(source, DocumentPointer):
            if source.path not in documents:
                whole = await read_original(platform, DocumentPointer(path=source.path, pointer=""))
                documents[source.path] = whole.value if isinstance(whole, Original) else None
            with contextlib.suppress(LookupError, ValueError):
                found[source] = resolve(documents[source.path], source.pointer)
            continue
        original = await read_original(platform, source)
        if isinstance(original, Original):
            found[source] = original.value
    return found


def _wanted(transcript: Transcript) -> Iterator[SourcePointer]:
    for event in transcript.events:
        if event.lane == MAIN_LANE and event.kind in ("prompt", "compaction") and not event.abandoned:
            yield event.source
    for call in transcript.tool_calls:
        source = call.result_source
        # In a compressed file each would be read from its beginning.
        if (
            call.lane == MAIN_LANE
            and source is not None
            and not (isinstance(source, LinePointer) and source.compressed)
        ):
            yield source
    calls = {call.id: call for call in transcript.tool_calls}
    for edit in transcript.edits:
        made_by = calls.get(edit.call_id or "")
        if made_by is None or not _say_all(changes_of_call(made_by.name, made_by.arguments)):
            yield edit.source


def _say_all(changes: Sequence[FileChange]) -> bool:
    """Whether a call's arguments hold what it wrote."""
    return bool(changes) and not all(isinstance(change.deed, Unrecorded) for change in changes)


# What the records say of files


def _edits(transcript: Transcript, replies: Sequence[Reply], originals: dict[SourcePointer, Any]) -> Iterator[Edit]:
    """All lanes', in the order of the replies that led to them."""
    calls = {call.id: call for call in transcript.tool_calls}
    anchor = _anchors(transcript, replies)
    abandoned = {event.call_id for event in transcript.events if event.abandoned and event.call_id is not None}
    said = _replies_before(transcript, transcript.edits)
    groups: dict[object, list[FileEdit]] = {}
    for number, edit in enumerate(transcript.edits):
        if edit.call_id is None:
            # Who has no calls may tell of one reply's passages one by one.
            reply = said.get(edit.source)
            groups.setdefault(number if reply is None else (edit.path, reply.source), []).append(edit)
        elif edit.call_id not in abandoned:
            groups.setdefault(edit.call_id, []).append(edit)
    found: list[tuple[int, float, int, list[Edit]]] = []
    for number, group in enumerate(groups.values()):
        first = group[0]
        call = calls.get(first.call_id or "")
        changes = changes_of_call(call.name, call.arguments) if call is not None else ()
        if not _say_all(changes):
            changes = recorded_changes(originals.get(first.source)) or changes
        if not changes:
            told = {edit.path: _told_in(said.get(edit.source), edit.path) for edit in group}
            changes = tuple(FileChange(path, deed) for path, deed in told.items())
        index = anchor(first)
        anchored = replies[index]
        at = first.at.timestamp() if first.at is not None else 0.0
        named = tuple(edit.path for edit in group)
        made = [
            Edit(
                message_id=anchored.message_id,
                reply_id=anchored.id,
                tool=call.name if call is not None else transcript.ref.agent,
                path=change.path,
                deed=change.deed,
                action=next((edit.action for edit in group if edit.path == change.path), first.action),
                directory=change.directory,
                named=named,
            )
            for change in changes
        ]
        found.append((index, at, number, made))
    for _, _, _, made in sorted(found, key=lambda each: each[:3]):
        yield from made


def _anchors(transcript: Transcript, replies: Sequence[Reply]) -> Callable[[FileEdit], int]:
    """Which of the replies led to an edit: that of its call, or of the call that started its lane, else the last one then."""
    by_call = {id: number for number, reply in enumerate(replies) for id in reply.calls}
    by_lane = {lane.id: lane for lane in transcript.lanes}
    lane_of_call = {call.id: call.lane for call in transcript.tool_calls}

    def find(edit: FileEdit) -> int:
        lane, call_id = edit.lane, edit.call_id
        for _ in range(_DEPTH):
            if call_id in by_call:
                return by_call[call_id]
            started = by_lane.get(lane)
            if started is None or started.call_id is None:
                break
            call_id = started.call_id
            lane = lane_of_call.get(call_id, MAIN_LANE)
        if edit.at is None:
            return len(replies) - 1
        before = [n for n, reply in enumerate(replies) if reply.at is not None and reply.at <= edit.at]
        return before[-1] if before else 0

    return find


def _replies_before(transcript: Transcript, edits: Sequence[FileEdit]) -> dict[SourcePointer, TranscriptEvent]:
    """Of edits that no call made, the reply that stands before each in the same file of lines."""
    said = [event for event in transcript.events if event.kind == "reply" and isinstance(event.source, LinePointer)]
    found: dict[SourcePointer, TranscriptEvent] = {}
    for edit in edits:
        if edit.call_id is None and isinstance(edit.source, LinePointer):
            before = [event for event in said if _stands_before(event.source, edit.source)]
            if before:
                found[edit.source] = before[-1]
    return found


def _stands_before(reply: SourcePointer, edit: LinePointer) -> bool:
    return isinstance(reply, LinePointer) and reply.path == edit.path and reply.offset < edit.offset


def _told_in(reply: TranscriptEvent | None, path: str) -> Deed:
    """What an agent without tools said that it changes: the passages in its reply below the file's name."""
    blocks = tuple(_blocks_of(reply.text, path)) if reply is not None else ()
    return Replace(blocks) if blocks else Unrecorded()


def _blocks_of(text: str, path: str) -> Iterator[Replacement]:
    """The passages of a text that stand below a line with a file's name."""
    lines = text.split("\n")
    starts = [number for number, line in enumerate(lines) if line.strip().strip("`*# ") == path]
    for start in starts:
        end = next((n for n in range(start + 1, len(lines)) if lines[n].strip() == "```" and n > start + 1), len(lines))
        yield from search_blocks("\n".join(lines[start:end]))


# Images and summaries


def _images(value: object, depth: int = 0) -> Iterator[ImageAttachment]:
    """The images in a record, in whatever form an agent keeps them, each once."""
    seen: set[bytes] = set()
    for data in _image_data(value, depth):
        try:
            content = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            continue
        kind = next((kind for sign, kind in _SIGNS.items() if content.startswith(sign)), None)
        if kind is not None and len(content) <= _IMAGE_BYTES and content not in seen and len(seen) < _IMAGES:
            seen.add(content)
            yield ImageAttachment(media_type=kind, data=content)


def _image_data(value: object, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        if found := _DATA_URL.match(value):
            yield value[found.end() :]
    elif depth < _DEPTH:
        fields = mapping(value)
        if any(string(fields.get(name)).startswith("image/") for name in _TYPES) and string(fields.get("data")):
            # URL-safe, as our own sessions have it.
            yield string(fields["data"]).replace("-", "+").replace("_", "/")
        for below in (*items(value), *fields.values()):
            yield from _image_data(below, depth + 1)


def _summary(record: object, depth: int) -> str:
    """The text that stands for what was compacted, where the record of that has one."""
    fields = mapping(record)
    for name in ("summary", "conversationSummary", "summaryContent", "message"):
        if text := string(fields.get(name)).strip():
            return text
    below = (fields.get(name) for name in ("payload", "data", "systemPayload", "summary")) if depth < 3 else ()
    return next((text for one in below if (text := _summary(one, depth + 1))), "")
