"""Files that are damaged, strange, huge or changing: nothing raises, hangs, or hides what is good."""

from __future__ import annotations

import json
import os
import random
import shutil
import tracemalloc
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoints.layers import as_nobody, let_nobody_enter
from tests.transcripts.homes import ASKED, HOMES, claude_code
from tests.transcripts.reading_sessions import heads, loaded, texts, told
from workbench.transcripts import (
    AgentHome,
    LinePointer,
    LocalPlatform,
    Original,
    SessionPromptsOptions,
    SessionRef,
    SessionSummary,
    SummarizingAdapter,
    Transcript,
    find_adapter,
    fold,
    is_session_head,
    read_original,
)
from workbench.transcripts import reading as reading_module
from workbench.transcripts.files import FileAdapter
from workbench.transcripts.models import SessionUsage
from workbench.transcripts.platform import SessionEntry, SessionStat


def prompt(text: str) -> bytes:
    return json.dumps({"type": "user", "sessionId": "s", "message": {"content": text}}).encode()


@pytest.fixture
def session(tmp_path: Path) -> Path:
    path = tmp_path / "projects" / "p" / "s.jsonl"
    path.parent.mkdir(parents=True)
    return path


STRANGE = [
    ("a byte order mark", b"\xef\xbb\xbf" + prompt("a") + b"\n" + prompt("b") + b"\n", 0),
    ("carriage returns", prompt("a") + b"\r\n" + prompt("b") + b"\r\n", 0),
    ("two objects on one line", prompt("a") + prompt("b") + b"\n", 0),
    ("blank lines", b"\n\n" + prompt("a") + b"\n\n\n" + prompt("b") + b"\n", 0),
    ("no last line end", prompt("a") + b"\n" + prompt("b"), 0),
    ("an unfinished last line", prompt("a") + b"\n" + prompt("b") + b"\n" + prompt("c")[:-9], 0),
    ("garbage between", prompt("a") + b"\nnot JSON\n" + prompt("b") + b"\n", 1),
    ("NUL bytes", prompt("a") + b"\n\0\0\0\n" + prompt("b") + b"\n", 0),
    ("values that are no objects", prompt("a") + b"\n[1]\n7\n" + prompt("b") + b"\n", 2),
    ("nested too deeply", prompt("a") + b"\n" + b"[" * 100_000 + b"\n" + prompt("b") + b"\n", 1),
    ("half a surrogate pair", prompt("a") + b"\n" + prompt("b\ud800") + b"\n", 0),
    ("bytes that are no UTF-8", prompt("a") + b"\n" + prompt("b")[:-3] + b'\xff"}}\n', 0),
]


@pytest.mark.parametrize(("what", "data", "skipped"), STRANGE, ids=[what for what, _, _ in STRANGE])
def test_a_strange_file_tells_what_is_good_in_it(session: Path, what: str, data: bytes, skipped: int) -> None:
    """«single unreadable lines are skipped records»."""
    session.write_bytes(data)
    transcript = loaded("claude-code", session)
    assert [text[:1] for text in texts(transcript, "prompt")] == ["a", "b"]
    assert len(transcript.skipped) == skipped
    assert heads("claude-code", session.parents[2])[0].first_prompt == "a"
    transcript.model_dump_json()  # nothing in it that can't be written
    for event in transcript.events:
        assert isinstance(anyio.run(read_original, LocalPlatform(), event.source), Original)


def test_glued_objects_have_a_place_each(session: Path) -> None:
    first, second = prompt("ä"), prompt("b")
    session.write_bytes(first + second + b"\n")
    sources = [event.source for event in loaded("claude-code", session).events]
    assert [(s.offset, s.length) for s in sources if isinstance(s, LinePointer)] == [
        (0, len(first)),
        (len(first), len(second)),
    ]


def test_a_line_beyond_the_limit_is_skipped_and_not_kept(session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_module, "_LONGEST_LINE", 3 << 20)
    with session.open("wb") as file:
        file.write(prompt("a") + b"\n" + b"x" * (5 << 20) + b"\n" + prompt("b") + b"\n")
    transcript = loaded("claude-code", session)
    assert texts(transcript, "prompt") == ["a", "b"]
    assert [record.reason for record in transcript.skipped] == ["longer than 64 MB"]


@pytest.mark.parametrize("whole", [True, False])
def test_a_large_session_takes_memory_for_its_records_not_for_its_bytes(session: Path, whole: bool) -> None:
    record = {
        "type": "user",
        "sessionId": "s",
        "message": {"content": [{"type": "tool_result", "content": "x" * 500_000}]},
    }
    with session.open("wb") as file:
        for _ in range(60):
            file.write(json.dumps(record).encode() + b"\n")
        file.write(prompt("at last") + b"\n")
    adapter = find_adapter("claude-code")
    assert isinstance(adapter, SummarizingAdapter)
    ref = SessionRef(agent="", path=str(session))
    tracemalloc.start()
    try:
        read = adapter.load if whole else adapter.summarize
        anyio.run(read, LocalPlatform(), ref)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 12 << 20 < session.stat().st_size


class _Changing(LocalPlatform):
    """This machine, on which something happens to a file at each read of it."""

    def __init__(self, path: Path, happens: str) -> None:
        super().__init__(env={}, home="/nowhere")
        inner, data = self.fs, path.read_bytes()

        class Fs:
            stat, list = inner.stat, inner.list

            @staticmethod
            async def read(name: str, *, offset: int = 0, length: int | None = None) -> bytes:
                found = await inner.read(name, offset=offset, length=length)
                if happens == "grows":
                    with path.open("ab") as file:
                        file.write(data)
                elif happens == "shrinks":
                    path.write_bytes(data[: len(data) // 2])
                elif happens == "is replaced":
                    path.with_suffix(".new").write_bytes(data[::-1])
                    path.with_suffix(".new").replace(path)
                else:
                    path.unlink(missing_ok=True)
                return found

        self.fs = Fs()  # type: ignore[assignment]


@pytest.mark.parametrize("happens", ["grows", "shrinks", "is replaced", "goes away"])
def test_a_file_that_changes_while_it_is_read_ends_the_reading(session: Path, happens: str) -> None:
    session.write_bytes(b"".join(prompt(f"{number} {'x' * 1000}") + b"\n" for number in range(1500)))
    adapter = find_adapter("claude-code")

    async def read() -> None:
        ref = SessionRef(agent="", path=str(session))
        found = [x async for x in adapter.discover(_Changing(session, happens), str(session.parents[1]))]
        assert len(found) <= 1
        if session.exists():
            await adapter.load(_Changing(session, happens), ref)

    anyio.run(read)


def test_what_nobody_may_read_is_an_item_beside_the_others(tmp_path: Path) -> None:
    claude_code(tmp_path)
    locked = tmp_path / "projects" / "locked"
    locked.mkdir(mode=0)

    def look() -> None:
        assert [head.first_prompt for head in heads("claude-code", tmp_path)] == [ASKED]

    if os.geteuid() == 0:
        # Who may read everything.
        let_nobody_enter(tmp_path)
        assert as_nobody(look) == 0
    else:
        look()
    locked.chmod(0o700)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def _mutated(draw: st.DrawFn, value: object) -> object:
    """The same value with parts of it replaced by others of any kind."""
    if draw(st.integers(0, 11)) == 0:
        return draw(_VALUES)
    if isinstance(value, dict):
        return {key: draw(_mutated(item)) for key, item in value.items() if draw(st.integers(0, 19))}
    if isinstance(value, list):
        return [draw(_mutated(item)) for item in value]
    return value


def _escaped(key: str) -> str:
    """A key, its letters spelled by their numbers."""
    return "".join(f"\\u{ord(letter):04X}" if letter.isascii() else letter for letter in key)


def _spelled(value: object, chance: random.Random) -> str:
    """JSON as another program might write it: keys escaped, spaces anywhere, a key twice, of which the last one counts."""
    space = chance.choice(("", "", " ", "\t"))
    if isinstance(value, list):
        return f"[{space}{f'{space},'.join(_spelled(item, chance) for item in value)}{space}]"
    if not isinstance(value, dict):
        return json.dumps(value)
    fields = []
    for key, item in value.items():
        if chance.randrange(12) == 0:
            fields.append(f"{json.dumps(key)}:{chance.choice(('null', '0', '{}', json.dumps(key)))}")
        shown = f'"{_escaped(key)}"' if key.isidentifier() and chance.randrange(8) == 0 else json.dumps(key)
        fields.append(f"{space}{shown}{space}:{space}{_spelled(item, chance)}")
    return f"{{{','.join(fields)}{space}}}"


def _all_escaped(value: object) -> str:
    if isinstance(value, dict):
        return f"{{{','.join(f'{_all_escaped(key)}:{_all_escaped(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_all_escaped, value))}]"
    return f'"{_escaped(value)}"' if isinstance(value, str) else json.dumps(value)


@pytest.mark.parametrize("agent", ["claude-code", "codex", "pi"])
def test_what_is_used_is_found_in_records_that_spell_every_letter_by_its_number(agent: str, tmp_path: Path) -> None:
    HOMES[agent](tmp_path)
    (path,) = tmp_path.rglob("*.jsonl")
    before = loaded(agent, path)
    assert before.requests
    path.write_text("".join(f"{_all_escaped(json.loads(line))}\n" for line in path.read_text().splitlines()))
    after = loaded(agent, path)
    assert [request.usage for request in after.requests] == [request.usage for request in before.requests]


def _records(home: Path) -> dict[Path, list[object]]:
    found = {}
    for path in sorted(home.rglob("*.json*")):
        text = path.read_text()
        found[path] = (
            [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else [json.loads(text)]
        )
    return found


@pytest.mark.parametrize("agent", sorted(HOMES))
def test_records_of_any_shape_and_spelling_are_read_alike_in_all_ways(agent: str, tmp_path: Path) -> None:
    """What an agent wrote, with values of any type in any place: the listing and the readings never raise, and agree."""
    HOMES[agent](tmp_path)
    files = _records(tmp_path)
    if not files:
        pytest.skip("its records are in no JSON file")
    adapter = find_adapter(agent)
    assert isinstance(adapter, FileAdapter)

    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        for path, records in files.items():
            mutated = [data.draw(_mutated(record)) for record in records]
            chance = random.Random(data.draw(st.integers(0, 99)))
            path.write_text("\n".join(_spelled(record, chance) for record in mutated) + "\n")

        async def read() -> None:
            platform = LocalPlatform()
            roots = adapter.roots(AgentHome((str(tmp_path),)))
            refs = [x.ref for root in roots async for x in adapter.discover(platform, root) if is_session_head(x)]
            refs += [SessionRef(agent=agent, path=str(path)) for path in files]
            for ref in refs:
                await adapter.detect(platform, ref)
                transcript = await adapter.load(platform, ref)
                summary = await adapter.summarize(platform, ref)
                assert summary == (fold(transcript) if isinstance(transcript, Transcript) else transcript)
                used = await adapter.add_up(platform, ref)
                assert told(used) == (told(SessionUsage.of(summary)) if isinstance(summary, SessionSummary) else used)
                if isinstance(transcript, Transcript):
                    transcript.model_dump_json()

        anyio.run(read)

    check()


_GARBAGE = (
    b"",
    b"\0\0\0",
    b"\xef\xbb\xbf",
    b"not JSON",
    b"\xff\xfe{",
    b'{"type":"user"',
    b"[1]",
    b"7 null",
    b'{"text":"\\ud800"}',
    b'{"text":"' + b"x" * 500_000 + b'"}',
    b"[" * 3_000,
)


@st.composite
def _damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """The same file, damaged as files are: cut, glued, garbled, begun with a byte order mark, written by another system."""
    lines = data.split(b"\n")
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(lines) - 1))
        how = draw(st.sampled_from(("garbage", "glue", "cut", "twice", "flip")))
        if how == "garbage":
            lines.insert(place, draw(st.sampled_from(_GARBAGE)))
        elif how == "glue" and place + 1 < len(lines):
            lines[place : place + 2] = [lines[place] + draw(st.sampled_from((b"", b" ", b"\0"))) + lines[place + 1]]
        elif how == "cut":
            lines[place] = lines[place][: draw(st.integers(0, len(lines[place])))]
        elif how == "twice":
            lines.insert(place, lines[place])
        elif lines[place]:
            at = draw(st.integers(0, len(lines[place]) - 1))
            lines[place] = lines[place][:at] + draw(st.binary(min_size=1, max_size=1)) + lines[place][at + 1 :]
    found = draw(st.sampled_from((b"", b"", b"\xef\xbb\xbf"))) + draw(st.sampled_from((b"\n", b"\n", b"\r\n"))).join(
        lines
    )
    return found[: draw(st.integers(0, len(found)))] if draw(st.booleans()) else found


@pytest.mark.parametrize("agent", sorted(HOMES))
def test_a_file_damaged_anywhere_is_read_alike_in_all_ways(agent: str, tmp_path: Path) -> None:
    """«single unreadable lines are skipped records», and a summary is still the folded transcript, to the last number."""
    tmp_path = tmp_path / "home"
    tmp_path.mkdir()
    HOMES[agent](tmp_path)
    files = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    adapter = find_adapter(agent)
    assert isinstance(adapter, FileAdapter)

    async def read_all() -> None:
        platform, caps = LocalPlatform(), SessionPromptsOptions()
        roots = adapter.roots(AgentHome((str(tmp_path),)))
        refs = [x.ref for root in roots async for x in adapter.discover(platform, root) if is_session_head(x)]
        refs += [SessionRef(agent=agent, path=str(path)) for path in files]
        for ref in refs:
            await adapter.detect(platform, ref)
            transcript = await adapter.load(platform, ref)
            summary = await adapter.summarize(platform, ref, prompts=caps)
            assert summary == (fold(transcript, prompts=caps) if isinstance(transcript, Transcript) else transcript)
            used = await adapter.add_up(platform, ref)
            if isinstance(summary, SessionSummary):
                assert told(used) == told(SessionUsage.of(summary))

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        for path, content in files.items():
            path.write_bytes(data.draw(_damaged(content)))
        anyio.run(read_all)

    check()


class _Shifting(LocalPlatform):
    """This machine, on which at the third call something happens to all of a home."""

    def __init__(self, home: Path, happens: str) -> None:
        super().__init__(env={}, home=str(home))
        inner, calls = self.fs, 0

        def strike() -> None:
            nonlocal calls
            calls += 1
            if calls != 3:
                return
            for path in [path for path in home.rglob("*") if path.is_file()]:
                data = path.read_bytes()
                if happens == "grow":
                    path.write_bytes(data * 2)
                elif happens == "shrink":
                    path.write_bytes(data[: len(data) // 2])
                elif happens == "are replaced":
                    path.unlink()
                    path.write_bytes(data[::-1])
                elif happens == "become directories":
                    path.unlink()
                    path.mkdir()
            if happens == "go away":
                shutil.rmtree(home)

        class Fs:
            @staticmethod
            async def stat(path: str) -> SessionStat:
                strike()
                return await inner.stat(path)

            @staticmethod
            async def list(path: str) -> tuple[SessionEntry, ...]:
                strike()
                return await inner.list(path)

            @staticmethod
            async def read(path: str, *, offset: int = 0, length: int | None = None) -> bytes:
                strike()
                return await inner.read(path, offset=offset, length=length)

        self.fs = Fs()  # type: ignore[assignment]


@pytest.mark.parametrize("happens", ["grow", "shrink", "are replaced", "become directories", "go away"])
@pytest.mark.parametrize("agent", sorted(HOMES))
def test_files_that_change_while_they_are_read_are_values_for_every_agent(
    agent: str, tmp_path: Path, happens: str
) -> None:
    """«a file that disappeared, an IO error», whenever that is: nothing raises, nothing hangs."""
    adapter = find_adapter(agent)
    assert isinstance(adapter, FileAdapter)

    async def read(home: Path, way: str) -> None:
        roots = adapter.roots(AgentHome((str(home),)))
        found = [x.ref for root in roots async for x in adapter.discover(LocalPlatform(), root) if is_session_head(x)]
        platform = _Shifting(home, happens)
        if way == "discover":
            for root in roots:
                assert len([item async for item in adapter.discover(platform, root)]) < 9
            return
        for ref in found:
            await getattr(adapter, way)(platform, ref)

    for way in ("discover", "load", "summarize", "add_up"):
        home = tmp_path / way
        home.mkdir()
        HOMES[agent](home)
        anyio.run(read, home, way)
