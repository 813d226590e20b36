"""What every session adapter has to keep: subclass `SessionAdapterContract` beside your adapter's tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar, cast

import anyio

from workbench.protocol.signal import CancelSignal
from workbench.transcripts import (
    AgentHome,
    LocalPlatform,
    Original,
    RootMissing,
    SessionAdapter,
    SessionEntry,
    SessionHead,
    SessionListFailure,
    SessionNotFound,
    SessionPromptsOptions,
    SessionRef,
    SessionStat,
    SummarizingAdapter,
    Transcript,
    fold,
    is_session_head,
    read_original,
    session_prompts,
)

T = TypeVar("T")
END_BYTES = 65_536
_CAPS = (
    SessionPromptsOptions(),
    SessionPromptsOptions(max_prompts=0),
    SessionPromptsOptions(max_prompts=1, max_characters=3),
    SessionPromptsOptions(max_characters=0),
)
_MUTATIONS = 20


class CountingPlatform(LocalPlatform):
    """This machine, with an account of what was read of which file: `reads` has path, offset and bytes got."""

    def __init__(self) -> None:
        super().__init__(env={}, home="/nowhere")
        self.reads: list[tuple[str, int, int]] = []
        self.fs = cast(Any, _CountingFs(self.fs, self.reads))


class _CountingFs:
    def __init__(self, fs: Any, reads: list[tuple[str, int, int]]) -> None:
        self._fs, self._reads = fs, reads

    async def stat(self, path: str) -> SessionStat:
        return cast(SessionStat, await self._fs.stat(path))

    async def list(self, path: str) -> tuple[SessionEntry, ...]:
        return cast("tuple[SessionEntry, ...]", await self._fs.list(path))

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        data = cast(bytes, await self._fs.read(path, offset=offset, length=length))
        self._reads.append((path, offset, len(data)))
        return data


class AbortedError(Exception):
    """The reason that these tests cancel with."""


async def _aborts(reading: Coroutine[Any, Any, object]) -> bool:
    try:
        await reading
    except AbortedError:
        return True
    return False


class SessionAdapterContract:
    """The promises of `workbench.transcripts.SessionAdapter`, as tests.

    A subclass makes its adapter, and a home with at least one session in it whose first prompt, if it has any, is text.
    Each test gets a home of its own::

        class TestMine(SessionAdapterContract):
            def make_adapter(self):
                return MyAdapter()

            def make_home(self, directory):
                (directory / "sessions").mkdir()
                (directory / "sessions" / "1.jsonl").write_text('{"role": "user", "content": "hello"}\\n')
    """

    def make_adapter(self) -> SessionAdapter:
        """The adapter."""
        raise NotImplementedError

    def make_home(self, directory: Path) -> None:
        """Fill an empty directory, which is the agent's home, with sessions of it."""
        raise NotImplementedError

    def _home(self, tmp_path: Path) -> tuple[SessionAdapter, AgentHome]:
        home = tmp_path / "home"
        home.mkdir()
        self.make_home(home)
        return self.make_adapter(), AgentHome((str(home),))

    def _run(self, test: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return anyio.run(test)

    async def _discover(
        self, adapter: SessionAdapter, home: AgentHome, platform: LocalPlatform
    ) -> list[SessionHead | SessionListFailure]:
        return [item for root in adapter.roots(home) async for item in adapter.discover(platform, root)]

    async def _heads(self, adapter: SessionAdapter, home: AgentHome, platform: LocalPlatform) -> list[SessionHead]:
        items = await self._discover(adapter, home, platform)
        heads = [item for item in items if is_session_head(item)]
        assert heads, f"no session was found in {home}: {items}"
        return heads

    async def _load(self, adapter: SessionAdapter, ref: SessionRef) -> Transcript:
        loaded = await adapter.load(LocalPlatform(), ref)
        assert isinstance(loaded, Transcript), loaded
        return loaded

    def test_it_says_what_it_is(self) -> None:
        adapter = self.make_adapter()
        assert adapter.specification_version == "sessions-v1"
        assert adapter.agent
        assert adapter.display_name
        assert len(set(adapter.capabilities)) == len(adapter.capabilities) > 0

    def test_its_sessions_are_listed_as_its_own(self, tmp_path: Path) -> None:
        adapter, home = self._home(tmp_path)

        async def test() -> None:
            heads = await self._heads(adapter, home, LocalPlatform())
            assert {head.ref.agent for head in heads} == {adapter.agent}
            assert len({head.ref.path for head in heads}) == len(heads)
            for head in heads:
                assert head.size_bytes > 0
                assert head.first_prompt is None or 0 < len(head.first_prompt) <= 500
                assert head.title is None or 0 < len(head.title) <= 80

        self._run(test)

    def test_a_listing_reads_64_kb_of_each_end_at_most(self, tmp_path: Path) -> None:
        adapter, home = self._home(tmp_path)

        async def test() -> None:
            await self._heads(adapter, home, LocalPlatform())
            self.grow(Path(home.paths[0]))
            platform = CountingPlatform()
            await self._heads(adapter, home, platform)
            sizes = {path: Path(path).stat().st_size for path, _, _ in platform.reads}
            for path, offset, length in platform.reads:
                in_head = offset + length <= END_BYTES
                assert in_head or offset >= sizes[path] - END_BYTES, f"{path}: {length} bytes read at {offset}"

        self._run(test)

    def grow(self, home: Path) -> None:
        """Make the sessions of a home larger than what a listing may read. Files of lines get long ones in the middle."""
        for path in home.rglob("*.jsonl"):
            data = path.read_bytes()
            middle = data.find(b"\n", len(data) // 2) + 1
            filler = b'{"type":"filler","text":"' + b"x" * 300_000 + b'"}\n'
            path.write_bytes(data[:middle] + filler + data[middle:])

    def test_leaving_a_listing_stops_its_reads(self, tmp_path: Path) -> None:
        adapter, home = self._home(tmp_path)

        async def test() -> None:
            platform = CountingPlatform()
            for root in adapter.roots(home):
                async with aclosing(cast(Any, adapter.discover(platform, root))) as found:
                    async for _ in found:
                        break
                before = len(platform.reads)
                await anyio.sleep(0)
                assert len(platform.reads) == before

        self._run(test)

    def test_a_missing_root_is_an_item(self, tmp_path: Path) -> None:
        async def test() -> None:
            adapter = self.make_adapter()
            root = adapter.roots(AgentHome((str(tmp_path / "nobody"),)))[0]
            items = [item async for item in adapter.discover(LocalPlatform(), root)]
            assert items == [SessionListFailure(agent=adapter.agent, error=RootMissing(path=root))]

        self._run(test)

    def test_its_own_sessions_are_detected_and_other_files_are_not(self, tmp_path: Path) -> None:
        adapter, home = self._home(tmp_path)

        async def test() -> None:
            for head in await self._heads(adapter, home, LocalPlatform()):
                assert await adapter.detect(LocalPlatform(), SessionRef(agent="", path=head.ref.path))
            for number, data in enumerate((b"", b"\0" * 2000, b"plain text\n" * 9, b'{"some": "object"}\n', b"[1, 2]")):
                other = tmp_path / f"other-{number}"
                other.write_bytes(data)
                assert not await adapter.detect(LocalPlatform(), SessionRef(agent="", path=str(other)))
            assert not await adapter.detect(LocalPlatform(), SessionRef(agent="", path=str(tmp_path)))
            assert not await adapter.detect(LocalPlatform(), SessionRef(agent="", path=str(tmp_path / "nothing")))

        self._run(test)

    def test_a_transcript_lists_what_its_files_show(self, tmp_path: Path) -> None:
        adapter, home = self._home(tmp_path)

        async def test() -> None:
            for head in await self._heads(adapter, home, LocalPlatform()):
                transcript = await self._load(adapter, head.ref)
                assert set(transcript.capabilities) <= set(adapter.capabilities)
                shown = {
                    "tool_calls": transcript.tool_calls,
                    "edits": transcript.edits,
                    "usage": transcript.requests,
                    "compactions": transcript.compactions,
                    "lanes": transcript.lanes[1:],
                }
                assert {name for name, facts in shown.items() if facts} == set(transcript.capabilities) & set(shown)
                assert len({call.id for call in transcript.tool_calls}) == len(transcript.tool_calls)
                lanes = {lane.id for lane in transcript.lanes}
                assert {event.lane for event in transcript.events} <= lanes
                assert "main" in lanes

        self._run(test)

    def test_a_head_agrees_with_its_transcript(self, tmp_path: Path) -> None:
        adapter, home = self._home(tmp_path)

        async def test() -> None:
            for head in await self._heads(adapter, home, LocalPlatform()):
                transcript = await self._load(adapter, head.ref)
                assert transcript.session_id == (head.ref.session_id or transcript.session_id)
                assert transcript.ref == head.ref
                if head.first_prompt is not None:
                    prompts = [prompt.text.strip() for prompt in session_prompts(transcript)]
                    start = head.first_prompt.removesuffix("…")
                    assert any(prompt.startswith(start) for prompt in prompts), (start, prompts)

        self._run(test)

    def test_every_record_can_be_read_back(self, tmp_path: Path) -> None:
        adapter, home = self._home(tmp_path)

        async def test() -> None:
            for head in await self._heads(adapter, home, LocalPlatform()):
                transcript = await self._load(adapter, head.ref)
                pointers = {str(event.source): event.source for event in transcript.events}
                pointers |= {str(request.source): request.source for request in transcript.requests}
                for pointer in pointers.values():
                    original = await read_original(LocalPlatform(), pointer)
                    assert isinstance(original, Original), (pointer, original)

        self._run(test)

    def test_a_summary_is_the_folded_transcript(self, tmp_path: Path) -> None:
        adapter, home = self._home(tmp_path)

        async def test() -> None:
            if not isinstance(adapter, SummarizingAdapter):
                return
            for head in await self._heads(adapter, home, LocalPlatform()):
                transcript = await self._load(adapter, head.ref)
                assert await adapter.summarize(LocalPlatform(), head.ref) == fold(transcript)
                for caps in _CAPS:
                    summary = await adapter.summarize(LocalPlatform(), head.ref, prompts=caps)
                    assert summary == fold(transcript, prompts=caps)

        self._run(test)

    def test_a_session_that_is_gone_is_a_value(self, tmp_path: Path) -> None:
        adapter, home = self._home(tmp_path)

        async def test() -> None:
            head = (await self._heads(adapter, home, LocalPlatform()))[0]
            database, mark, key = head.ref.path.partition("#")
            gone = head.ref.model_copy(update={"path": f"{database}-gone{mark}{key}"})
            assert await adapter.load(LocalPlatform(), gone) == SessionNotFound(path=gone.path)
            if isinstance(adapter, SummarizingAdapter):
                assert await adapter.summarize(LocalPlatform(), gone) == SessionNotFound(path=gone.path)

        self._run(test)

    def test_a_cancelled_signal_raises_its_reason(self, tmp_path: Path) -> None:
        adapter, home = self._home(tmp_path)

        async def test() -> None:
            head = (await self._heads(adapter, home, LocalPlatform()))[0]
            signal = CancelSignal()
            signal.cancel(AbortedError())
            assert await _aborts(adapter.load(LocalPlatform(), head.ref, signal=signal))
            if isinstance(adapter, SummarizingAdapter):
                assert await _aborts(adapter.summarize(LocalPlatform(), head.ref, signal=signal))

            async def listed() -> list[object]:
                return [x async for x in adapter.discover(LocalPlatform(), adapter.roots(home)[0], signal=signal)]

            assert await _aborts(listed())

        self._run(test)

    def test_progress_only_grows(self, tmp_path: Path) -> None:
        adapter, home = self._home(tmp_path)

        async def test() -> None:
            for head in await self._heads(adapter, home, LocalPlatform()):
                told: list[tuple[int, int]] = []
                await adapter.load(LocalPlatform(), head.ref, progress=lambda *at, told=told: told.append(at))
                assert all(0 <= done <= total for done, total in told)
                assert [done for done, _ in told] == sorted(done for done, _ in told)

        self._run(test)

    def test_damaged_files_never_raise_and_never_hide_the_others(self, tmp_path: Path) -> None:
        adapter, home = self._home(tmp_path)

        async def test() -> None:
            refs = [head.ref for head in await self._heads(adapter, home, LocalPlatform())]
            files = {path: path.read_bytes() for path in Path(home.paths[0]).rglob("*") if path.is_file()}
            chance = random.Random(20)
            for _ in range(_MUTATIONS):
                for path, data in files.items():
                    path.write_bytes(_damaged(data, chance))
                await self._discover(adapter, home, LocalPlatform())
                for ref in refs:
                    await adapter.detect(LocalPlatform(), ref)
                    loaded = await adapter.load(LocalPlatform(), ref)
                    if isinstance(adapter, SummarizingAdapter):
                        summary = await adapter.summarize(LocalPlatform(), ref, prompts=_CAPS[0])
                        expected = fold(loaded, prompts=_CAPS[0]) if isinstance(loaded, Transcript) else loaded
                        assert summary == expected

        self._run(test)


def _damaged(data: bytes, chance: random.Random) -> bytes:
    """The same, with something wrong somewhere."""
    at, to = sorted((chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)))
    kind = chance.randrange(7)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + data[to:]
    if kind == 2:
        return data[:at] + bytes(chance.randrange(256) for _ in range(20)) + data[at:]
    if kind == 3:
        return b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n")
    if kind == 4:
        return data.replace(b"\n", b"", 1)
    if kind == 5:
        words = (b'"\\ud800"', b"null", b"[]", b"{}", b"-1", b"1e999", b"true", b'"\\u0000"', b"[[[[{}]]]]")
        word = chance.choice(words)
        places = [place for place in range(len(data)) if data[place : place + 1] == b":"]
        if not places:
            return word
        place = chance.choice(places)
        end = min((x for x in (data.find(b",", place), data.find(b"}", place)) if x > 0), default=len(data))
        return data[: place + 1] + word + data[end:]
    return data[:at] + b"\n" + data[at:to] + b"\n" + data[at:]
