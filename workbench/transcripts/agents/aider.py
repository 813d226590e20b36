"""Aider: one Markdown file a project, in which every run is appended."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import ClassVar

from workbench.protocol.messages import Usage
from workbench.transcripts.files import FileAdapter, HeadFacts, Reading, SessionFile, parent
from workbench.transcripts.homes import AgentHome
from workbench.transcripts.models import Capability, EditAction, LinePointer
from workbench.transcripts.platform import SessionPlatform
from workbench.transcripts.reading import END_BYTES, Content, Ends
from workbench.transcripts.values import money

_NAME = ".aider.chat.history.md"
_START = re.compile(rb"^# aider chat started at (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\s*$", re.MULTILINE)
_PROMPT = re.compile(rb"^#### (.*)$", re.MULTILINE)
_EDIT = re.compile(r"^(Applied edit to|Creating empty file) (.+)$")
_TOKENS = re.compile(r"^Tokens: ([\d.,]+)(k?) sent(?:, ([\d.,]+)(k?) cache write)?(?:, ([\d.,]+)(k?) cache hit)?"
                     r", ([\d.,]+)(k?) received\.(?: Cost: \$([\d.]+) message)?")  # fmt: skip


class Aider(FileAdapter):
    """Histories of Aider, one a project: what is in one file is one session, whose runs follow each other."""

    agent = "aider"
    display_name = "Aider"
    capabilities: ClassVar[tuple[Capability, ...]] = ("prompts", "replies", "edits", "usage", "costs", "times")
    depth = 0

    def roots(self, home: AgentHome) -> tuple[str, ...]:
        """Where Aider was started."""
        return home.paths

    def is_session(self, path: str, root: str) -> bool:
        """The history, right there."""
        return path[len(root) :].strip("/") == _NAME

    async def ends(self, platform: SessionPlatform, file: SessionFile) -> Ends:
        """The text of both ends."""
        data = await platform.fs.read(file.path, length=END_BYTES)
        start = max(END_BYTES, file.stat.size - END_BYTES)
        end = await platform.fs.read(file.path, offset=start, length=END_BYTES) if file.stat.size > start else b""
        return Ends([], value=(data, end))

    def looks_right(self, ends: Ends) -> bool:
        """The line that every run begins with."""
        return _START.search(ends.value[0][:4096]) is not None

    async def head(self, platform: SessionPlatform, file: SessionFile, ends: Ends) -> HeadFacts | None:
        """From the runs at both ends."""
        begins, finishes = ends.value
        facts = HeadFacts(session_id=file.path, cwd=parent(file.path))
        for started in (*_START.finditer(begins), *_START.finditer(finishes)):
            facts.seen(_time(started[1]))
        # A run's start is no sign of how long it was worked on; the file's time is.
        facts.last_at = file.stat.modified_at
        for prompt in _PROMPT.finditer(begins):
            text = prompt[1].decode("utf-8", "replace").strip()
            if text and not text.startswith("/"):
                facts.first_prompt = text
                break
        return facts

    async def read(self, reading: Reading, path: str) -> None:
        """All runs: lines that were typed, answered, or told by Aider itself."""
        recorder = reading.recorder
        recorder.session_id, recorder.cwd = path, parent(path)
        at: datetime | None = None
        kind, text, begin, end = "", [""], 0, 0

        def tell() -> None:
            said = "\n".join(text).strip()
            source = LinePointer(path=path, offset=begin, length=end - begin)
            if said and kind == "prompt":
                recorder.event("prompt", source, at=at, text=said)
            elif said and kind == "reply":
                recorder.event("reply", source, at=at, text=said)

        number = 0
        content = Content(reading.platform, path, progress=reading.progress, signal=reading.signal)
        async for lines in content.lines():
            for line in lines:
                shown = line.data.decode("utf-8", "replace").rstrip("\r")
                source = LinePointer(path=path, offset=line.offset, length=len(line.data))
                if started := _START.match(line.data):
                    tell()
                    kind, text, at = "", [], _time(started[1])
                    recorder.seen(at)
                    continue
                # What Aider tells ends each reply: such a line inside one is a heading of it.
                typed = shown.startswith("#### ") and kind != "reply"
                now = "prompt" if typed else "told" if shown.startswith("> ") else "reply"
                if now == "reply" and not shown.strip() and kind != "reply":
                    continue
                if now != kind:
                    tell()
                    kind, text, begin = now, [], line.offset
                if now == "told":
                    number += 1
                    self._told(reading, shown[2:].strip(), source, at, number)
                text.append(shown.removeprefix("#### ") if typed else shown)
                end = line.offset + len(line.data)
        tell()

    def _told(self, reading: Reading, text: str, source: LinePointer, at: datetime | None, number: int) -> None:
        recorder = reading.recorder
        if found := _EDIT.match(text):
            action: EditAction = "add" if found[1].startswith("Creating") else "update"
            recorder.edit(found[2], source, action=action, at=at)
        elif used := _TOKENS.match(text):
            sent, written, read, received = (_tokens(used[n], used[n + 1]) for n in (1, 3, 5, 7))
            usage = Usage(
                input_tokens=sent,
                output_tokens=received,
                cache_read_tokens=read,
                cache_write_tokens=written,
                cost_usd=_cost(used[9]),
            )
            recorder.request(f"{recorder.session_id}:{number}", source, at=at, usage=usage)


def _time(text: bytes) -> datetime | None:
    try:
        return datetime.fromisoformat(text.decode()).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _tokens(text: str | None, unit: str | None) -> int:
    try:
        return round(float((text or "0").replace(",", "")) * (1000 if unit else 1))
    except ValueError:
        return 0


def _cost(text: str | None) -> float | None:
    try:
        return None if text is None else money(float(text))
    except ValueError:
        return None
