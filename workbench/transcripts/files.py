"""What adapters of agents that keep a session in a file have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Literal

from workbench.protocol.signal import CancelSignal
from workbench.transcripts.adapter import ReadProgress
from workbench.transcripts.homes import AgentHome, HomeRule, join
from workbench.transcripts.models import (
    Capability,
    DocumentPointer,
    ReadFailed,
    RootMissing,
    SessionHead,
    SessionListFailure,
    SessionNotFound,
    SessionPromptsOptions,
    SessionReadError,
    SessionRef,
    SessionSummary,
    SessionSummaryWithPrompts,
    SessionUsage,
    Transcript,
    UnknownFormat,
)
from workbench.transcripts.platform import SessionPlatform, SessionStat
from workbench.transcripts.reading import (
    Ends,
    Record,
    closing,
    raise_if_cancelled,
    read_document,
    read_document_ends,
    read_ends,
    read_records,
    walk,
)
from workbench.transcripts.recorder import Recorder
from workbench.transcripts.values import cut, parse

PROMPT_LENGTH, TITLE_LENGTH = 500, 80


@dataclass(frozen=True, slots=True)
class SessionFile:
    """A session's file, or, where it holds several, `<file>#<id>` and what the listing of that file told of it."""

    path: str
    stat: SessionStat
    facts: HeadFacts | None = None


@dataclass(slots=True)
class HeadFacts:
    """What the ends of a session tell."""

    session_id: str | None = None
    started_at: datetime | None = None
    last_at: datetime | None = None
    cwd: str | None = None
    first_prompt: str | None = None
    title: str | None = None

    def seen(self, at: datetime | None) -> None:
        """A time of the session."""
        if at is not None:
            self.started_at = at if self.started_at is None else min(at, self.started_at)
            self.last_at = at if self.last_at is None else max(at, self.last_at)


class UnknownGenerationError(Exception):
    """Raised inside an adapter: the session is of a generation of the format that it doesn't read."""


@dataclass(slots=True)
class Reading:
    """One pass over a session: where from, what it tells, who is told how far it is, what ends it.

    With `usage_words` only usage is wanted: once the session's directory is known, a record in which none of them stands is
    passed over.
    """

    platform: SessionPlatform
    recorder: Recorder
    told: ReadProgress | None = None
    signal: CancelSignal | None = None
    usage_words: tuple[bytes, ...] = ()
    _done: int = 0
    _before: int = 0

    @property
    def only_usage(self) -> bool:
        """Whether nothing else is wanted."""
        return bool(self.usage_words)

    def _may_tell_usage(self, data: bytes) -> bool:
        if self.recorder.cwd is None:
            return True
        for word in self.usage_words:
            if word in data:
                return True
        return b"\\u00" in data  # by which any letter of a word may be spelled

    def progress(self, done: int, size: int) -> None:
        """Of one file, after those before it."""
        self._done = self._before + done
        if self.told is not None:
            self.told(self._done, self._before + size)

    async def batches(self, path: str) -> AsyncIterator[Iterator[Record]]:
        """The objects of a file of lines, many at a time; what is none is skipped, and said."""
        self._before = self._done
        wanted = self._may_tell_usage if self.only_usage else None
        async for batch in read_records(self.platform, path, progress=self.progress, signal=self.signal, wanted=wanted):
            yield self._good(batch)

    def _good(self, batch: Iterator[Record]) -> Iterator[Record]:
        for record in batch:
            if record.problem:
                self.recorder.skip(record.source, record.problem)
            else:
                yield record

    async def records(self, path: str) -> AsyncIterator[Record]:
        """As `batches`, one by one."""
        async for batch in self.batches(path):
            for record in batch:
                yield record

    async def document(self, path: str) -> Any:
        """The value that a file is as a whole; None, skipped and said, where it is none. Raises OSError."""
        self._before = self._done
        data = await read_document(self.platform, path, progress=self.progress, signal=self.signal)
        try:
            return parse(data)
        except ValueError as error:
            self.recorder.skip(DocumentPointer(path=path, pointer=""), f"not JSON: {error}")
            return None


def read_failed(path: str, error: OSError) -> ReadFailed:
    """A failure as a value."""
    return ReadFailed(path=path, message=error.strerror or str(error) or type(error).__name__, errno=error.errno)


class FileAdapter(ABC):
    """Lists, loads and summarizes by what its subclass says: which files, what their ends tell, how to read them."""

    agent: ClassVar[str]
    display_name: ClassVar[str]
    capabilities: ClassVar[tuple[Capability, ...]]
    home: HomeRule | None = None
    specification_version: Literal["sessions-v1"] = "sessions-v1"

    directory: ClassVar[str] = ""
    usage_words: ClassVar[tuple[bytes, ...]] = ()
    """Of which one stands in every record that tells what was used, or whose it is; none where that can't be said."""
    depth: ClassVar[int] = 12

    def roots(self, home: AgentHome) -> tuple[str, ...]:
        """The directories that hold this agent's sessions: one of each of the home's, `directory` unless overridden."""
        return tuple(join(path, self.directory) for path in home.paths)

    @abstractmethod
    def is_session(self, path: str, root: str) -> bool:
        """Whether a file below a root is a session, by its name alone."""

    @abstractmethod
    async def head(self, platform: SessionPlatform, file: SessionFile, ends: Ends) -> HeadFacts | None:
        """What a session's ends tell; None where the file is none, or one that isn't listed by itself."""

    @abstractmethod
    def looks_right(self, ends: Ends) -> bool:
        """Whether a file's ends are those of a session of this agent."""

    @abstractmethod
    async def read(self, reading: Reading, path: str) -> None:
        """Tell the recorder all of a session. Raises OSError, UnknownGenerationError, and the signal's reason."""

    async def files(
        self, platform: SessionPlatform, root: str, signal: CancelSignal | None
    ) -> AsyncIterator[SessionFile | SessionListFailure]:
        """The session files below a root."""
        for path, found in await walk(platform, root, depth=self.depth, signal=signal):
            if isinstance(found, OSError):
                yield self._failure(path, found)
            elif self.is_session(path, root):
                yield SessionFile(path, found.stat)

    async def discover(
        self, platform: SessionPlatform, root: str, *, signal: CancelSignal | None = None
    ) -> AsyncIterator[SessionHead | SessionListFailure]:
        """The sessions under a root, reading at most 64 KB from each end of each file."""
        raise_if_cancelled(signal)
        try:
            await platform.fs.stat(root)
        except (FileNotFoundError, NotADirectoryError):
            yield SessionListFailure(agent=self.agent, error=RootMissing(path=root))
            return
        except OSError as error:
            yield self._failure(root, error)
            return
        async with closing(self.files(platform, root, signal)) as files:
            async for file in files:
                raise_if_cancelled(signal)
                if isinstance(file, SessionListFailure):
                    yield file
                    continue
                try:
                    head = await self._head(platform, file)
                except OSError as error:
                    yield self._failure(file.path, error)
                    continue
                if head is not None:
                    yield head

    async def ends(self, platform: SessionPlatform, file: SessionFile) -> Ends:
        """Both ends of a session's file. Raises OSError."""
        return await read_ends(platform, file.path, file.stat.size)

    async def _head(self, platform: SessionPlatform, file: SessionFile) -> SessionHead | None:
        ends = await self.ends(platform, file)
        facts = await self.head(platform, file, ends)
        if facts is None:
            return None
        times = [time for time in (facts.last_at, ends.last_at) if time is not None]
        prompt = facts.first_prompt.strip() if facts.first_prompt else None
        title = (facts.title or prompt or "").strip()
        return SessionHead(
            ref=SessionRef(agent=self.agent, path=file.path, session_id=facts.session_id),
            size_bytes=file.stat.size,
            last_active_at=max(times, default=file.stat.modified_at),
            started_at=facts.started_at,
            cwd=facts.cwd,
            first_prompt=cut(prompt, PROMPT_LENGTH) if prompt else None,
            title=cut(" ".join(title.split()), TITLE_LENGTH) if title else None,
        )

    def _failure(self, path: str, error: OSError) -> SessionListFailure:
        return SessionListFailure(agent=self.agent, error=read_failed(path, error))

    async def detect(self, platform: SessionPlatform, ref: SessionRef) -> bool:
        """Whether `ref.path` is a session of this agent."""
        try:
            stat = await platform.fs.stat(ref.path)
            return stat.kind == "file" and self.looks_right(await self.ends(platform, SessionFile(ref.path, stat)))
        except OSError:
            return False

    async def load(
        self,
        platform: SessionPlatform,
        ref: SessionRef,
        *,
        progress: ReadProgress | None = None,
        signal: CancelSignal | None = None,
    ) -> Transcript | SessionReadError:
        """Read every file of a session."""
        recorder = Recorder(ref, keep=True)
        failure = await self.tell(Reading(platform, recorder, progress, signal), ref)
        return recorder.transcript() if failure is None else failure

    async def summarize(
        self,
        platform: SessionPlatform,
        ref: SessionRef,
        *,
        prompts: SessionPromptsOptions | None = None,
        signal: CancelSignal | None = None,
    ) -> SessionSummaryWithPrompts | SessionReadError:
        """What `fold` makes of the loaded transcript, without keeping its events or texts."""
        recorder = Recorder(ref, keep=False, prompts=prompts)
        failure = await self.tell(Reading(platform, recorder, None, signal), ref)
        return recorder.summary() if failure is None else failure

    async def add_up(
        self, platform: SessionPlatform, ref: SessionRef, *, signal: CancelSignal | None = None
    ) -> SessionUsage | SessionReadError:
        """What the requests of the session's summary used, without reading what can't tell of them."""
        reading = Reading(platform, Recorder(ref, keep=False), None, signal, self.usage_words)
        failure = await self.tell(reading, ref)
        if failure is not None:
            return failure
        used = reading.recorder.used()
        if reading.only_usage and any(request.at is None for request in used.requests):
            # Those are counted at the session's last time, which any record may tell.
            summary = await self.summarize(platform, ref, signal=signal)
            return SessionUsage.of(summary) if isinstance(summary, SessionSummary) else summary
        return used

    async def tell(self, reading: Reading, ref: SessionRef) -> SessionReadError | None:
        """Tell a recorder of one's own all of a session; what keeps one from it is returned. Raises the signal's reason."""
        raise_if_cancelled(reading.signal)
        try:
            await self.read(reading, ref.path)
        except (FileNotFoundError, NotADirectoryError):
            return SessionNotFound(path=ref.path)
        except OSError as error:
            return read_failed(ref.path, error)
        except UnknownGenerationError as error:
            return UnknownFormat(path=ref.path, agent=self.agent, generation=str(error))
        return None


class DocumentAdapter(FileAdapter):
    """As its base, for files that are one JSON document each."""

    async def ends(self, platform: SessionPlatform, file: SessionFile) -> Ends:
        """What the document begins with, and the last time that its end names."""
        return await read_document_ends(platform, file.path, file.stat.size)


def stem(path: str) -> str:
    """A file's name without its extension."""
    return path.rpartition("/")[2].partition(".")[0]


def parent(path: str) -> str:
    """The directory that a path is in."""
    return path.rpartition("/")[0]
