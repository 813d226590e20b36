"""What reading other agents' sessions gives: references, heads, transcripts, summaries, and failures as values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AliasChoices,
    AwareDatetime,
    Field,
    InstanceOf,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from workbench.protocol.messages import Usage
from workbench.protocol.records import Frozen


def _printable(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


# As of `os.fsdecode`: a name that isn't UTF-8 carries surrogates, which pydantic's own `str` refuses.
PathText = Annotated[InstanceOf[str], PlainSerializer(_printable, return_type=str, when_used="json")]

Capability = Literal[
    "prompts", "replies", "reasoning", "tool_calls", "edits", "usage", "costs", "times", "lanes", "compactions"
]
CAPABILITIES: tuple[Capability, ...] = (
    "prompts",
    "replies",
    "reasoning",
    "tool_calls",
    "edits",
    "usage",
    "costs",
    "times",
    "lanes",
    "compactions",
)
EventKind = Literal["prompt", "context", "reply", "reasoning", "tool_call", "tool_result", "compaction", "notice"]
EditAction = Literal["add", "update", "delete", "move"]
MAIN_LANE = "main"


class SessionRef(Frozen):
    """Where a session is: its agent ("" where unknown), its main file (`<db>#<id>` in a database), its id if known."""

    agent: str
    path: PathText
    session_id: str | None = None


class SessionHead(Frozen):
    """What a session's first and last 64 KB tell.

    `last_active_at` is the last record time at either end, else the file's modification time. `first_prompt` is the first
    real user prompt, cut to 500 characters; `title` the agent's own, else that prompt, cut to 80.
    """

    ref: SessionRef
    size_bytes: int
    last_active_at: AwareDatetime
    started_at: AwareDatetime | None = None
    cwd: str | None = None
    first_prompt: str | None = None
    title: str | None = None


class _Failure(Frozen):
    path: PathText

    @model_serializer(mode="wrap")
    def _with_its_tag(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        return {"_tag": fields.pop("tag"), **fields}


_TAG = AliasChoices("_tag", "tag")


class RootMissing(_Failure):
    """A directory that would hold an agent's sessions isn't there."""

    tag: Literal["RootMissing"] = Field(default="RootMissing", validation_alias=_TAG)


class ReadFailed(_Failure):
    """A file or directory is there and couldn't be read."""

    message: str
    errno: int | None = None
    tag: Literal["ReadFailed"] = Field(default="ReadFailed", validation_alias=_TAG)


class SessionNotFound(_Failure):
    """The session's file isn't there, or not any more."""

    tag: Literal["SessionNotFound"] = Field(default="SessionNotFound", validation_alias=_TAG)


class SourceChanged(_Failure):
    """The bytes of a source pointer are no longer one JSON value: the file changed since it was loaded."""

    tag: Literal["SourceChanged"] = Field(default="SourceChanged", validation_alias=_TAG)


class UnknownFormat(_Failure):
    """The session is of a generation of its agent's format that the adapter doesn't read."""

    agent: str
    generation: str
    tag: Literal["UnknownFormat"] = Field(default="UnknownFormat", validation_alias=_TAG)


SessionListError = RootMissing | ReadFailed
SessionReadError = SessionNotFound | ReadFailed | UnknownFormat
ReadOriginalError = SourceChanged | SessionNotFound | ReadFailed


class SessionListFailure(Frozen):
    """What of an agent's sessions couldn't be listed."""

    agent: str
    error: SessionListError


class LinePointer(Frozen):
    """One JSON value of a file of lines; in a compressed file the place is one of the decompressed bytes."""

    path: PathText
    offset: int
    length: int
    compressed: bool = False


class DocumentPointer(Frozen):
    """A value inside a file that is one JSON document; `pointer` as in RFC 6901, "" for the whole."""

    path: PathText
    pointer: str


class RowPointer(Frozen):
    """One row of a database's table."""

    path: PathText
    table: str
    key: str


SourcePointer = LinePointer | DocumentPointer | RowPointer


@dataclass(slots=True)
class Place:
    """Where in a file of lines a record is: what a `LinePointer` is made from once somebody keeps it."""

    path: str
    offset: int
    length: int
    compressed: bool = False

    def pointer(self) -> LinePointer:
        """The pointer."""
        return LinePointer(path=self.path, offset=self.offset, length=self.length, compressed=self.compressed)


Source = SourcePointer | Place


class Original(Frozen):
    """A record as its agent wrote it, parsed."""

    value: Any


class Lane(Frozen):
    """One line of work of a session: `main`, or a subagent's, started by a tool call of `parent` where that is known."""

    id: str
    parent: str | None = None
    call_id: str | None = None
    name: str | None = None
    path: PathText | None = None


class TranscriptEvent(Frozen):
    """One thing that happened, in the order of the records; `source` reads its record back whole.

    `text` is cut to 32,768 characters. `context` is text that the agent put before the model in the user's name.
    `abandoned` says that the conversation was taken back to before it.
    """

    lane: str
    kind: EventKind
    source: SourcePointer
    at: AwareDatetime | None = None
    text: str = ""
    call_id: str | None = None
    abandoned: bool = False


class ModelRequest(Frozen):
    """What one response of a model used. Two with one id, in whatever files of an agent, are the same response."""

    id: str
    lane: str
    source: SourcePointer
    usage: Usage
    model: str | None = None
    at: AwareDatetime | None = None


class CallRecord(Frozen):
    """A tool call and its result. `ok` is None where no result is recorded; texts are cut to 32,768 characters."""

    id: str
    lane: str
    name: str
    source: SourcePointer
    at: AwareDatetime | None = None
    arguments: str = ""
    ok: bool | None = None
    result: str = ""
    result_source: SourcePointer | None = None


class FileEdit(Frozen):
    """A file that a tool call which didn't fail wrote. `moved_to` is its new path after a move."""

    lane: str
    path: str
    action: EditAction
    source: SourcePointer
    call_id: str | None = None
    at: AwareDatetime | None = None
    moved_to: str | None = None


class Compaction(Frozen):
    """The conversation was replaced by a summary of itself."""

    lane: str
    source: SourcePointer
    at: AwareDatetime | None = None
    trigger: str | None = None
    tokens_before: int | None = None


class SkippedRecord(Frozen):
    """A record that couldn't be read, and why; the rest of its file was."""

    source: SourcePointer
    reason: str


class Transcript(Frozen):
    """A session, read whole. `capabilities` are what its files show, of what its adapter can list."""

    ref: SessionRef
    session_id: str
    title: str | None = None
    cwd: str | None = None
    branch: str | None = None
    started_at: AwareDatetime | None = None
    last_active_at: AwareDatetime | None = None
    capabilities: tuple[Capability, ...] = ()
    lanes: tuple[Lane, ...] = ()
    events: tuple[TranscriptEvent, ...] = ()
    requests: tuple[ModelRequest, ...] = ()
    tool_calls: tuple[CallRecord, ...] = ()
    edits: tuple[FileEdit, ...] = ()
    compactions: tuple[Compaction, ...] = ()
    skipped: tuple[SkippedRecord, ...] = ()

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Not all of it: asyncio makes a text of what its tasks return."""
        yield "ref", self.ref
        yield "events", len(self.events)
        yield "requests", len(self.requests)


class SessionPrompt(Frozen):
    """What the user typed in the main lane."""

    text: str
    at: AwareDatetime | None = None


class SessionPromptsOptions(Frozen):
    """How many prompts, the first ones, and how many characters of each; None is all."""

    max_prompts: int | None = Field(default=None, ge=0)
    max_characters: int | None = Field(default=None, ge=0)


class SessionSummary(Frozen):
    """A transcript's numbers: equal however they were reached, by folding it or by `summarize`."""

    ref: SessionRef
    session_id: str
    title: str | None = None
    cwd: str | None = None
    branch: str | None = None
    started_at: AwareDatetime | None = None
    last_active_at: AwareDatetime | None = None
    capabilities: tuple[Capability, ...] = ()
    lanes: int = 0
    events: Mapping[str, int] = Field(default_factory=dict)
    requests: tuple[ModelRequest, ...] = ()
    usage: Usage = Usage()
    tool_calls: Mapping[str, int] = Field(default_factory=dict)
    failed_calls: int = 0
    edited: Mapping[str, int] = Field(default_factory=dict)
    compactions: int = 0
    skipped: int = 0
    prompt_count: int = 0

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """All but the requests one by one: asyncio makes a text of what its tasks return."""
        for name, value in super().__repr_args__():
            yield name, len(value) if name == "requests" else value


class UsedRequest(NamedTuple):
    """As `ModelRequest`, without where it stands."""

    id: str
    at: datetime | None
    model: str | None
    usage: Usage


@dataclass(frozen=True, slots=True)
class SessionUsage:
    """Of a session's summary what adding up over sessions needs."""

    ref: SessionRef
    session_id: str
    cwd: str | None
    last_active_at: datetime | None
    requests: Sequence[UsedRequest]

    @classmethod
    def of(cls, summary: SessionSummary) -> SessionUsage:
        """From a summary that is there."""
        requests = [UsedRequest(each.id, each.at, each.model, each.usage) for each in summary.requests]
        return cls(summary.ref, summary.session_id, summary.cwd, summary.last_active_at, requests)


class SessionSummaryWithPrompts(SessionSummary):
    """As `SessionSummary`, with the main lane's prompts where they were asked for."""

    prompts: tuple[SessionPrompt, ...] = ()
