"""The log of a session's events: how they're numbered, what is in it, what never is, and what a crash leaves of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from tests.agent.support import LONG
from workbench.agent.channel import EventChannel
from workbench.agent.event_log import EventLog
from workbench.agent.history import MemoryHistory
from workbench.agent.locks import LocalLocker
from workbench.agent.session import AgentSession
from workbench.agent.stores import FileSessionStore, MemorySessionStore
from workbench.protocol.events import (
    MessageCompleted,
    SessionDeleted,
    SessionEvent,
    SessionRewound,
    TextEvent,
    ThinkingEvent,
)
from workbench.testing import ScriptedModel, Turn
from workbench.testing.conversations import run, session

pytestmark = pytest.mark.anyio
_AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
_LOGGER = logging.getLogger("workbench.agent")


def text(session_id: str, seq: int = 0) -> SessionEvent:
    return TextEvent(seq=seq, session_id=session_id, run_id="r", at=_AT, text="t 🙂\n")


def thought(session_id: str) -> SessionEvent:
    return ThinkingEvent(session_id=session_id, text="secret thought")


@pytest.fixture(params=[MemorySessionStore, FileSessionStore])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> MemorySessionStore | FileSessionStore:
    store = request.param() if request.param is MemorySessionStore else request.param(tmp_path)
    for id in ("s", "tenant/other"):
        await store.save(session(id))
    return store


@pytest.fixture
def log(store: MemorySessionStore | FileSessionStore) -> EventLog:
    return store.event_log


@pytest.fixture
async def files(tmp_path: Path) -> FileSessionStore:
    store = FileSessionStore(tmp_path)
    for id in ("s", "tenant/other"):
        await store.save(session(id))
    return store


async def test_events_get_the_next_number_of_their_session_and_come_back_from_any_on(log: EventLog) -> None:
    assert await log.read("s") == ()
    assert await log.last_seq("s") == 0
    given = [log.append(text("s")), log.append(text("s"))]
    given.append(log.append(MessageCompleted(session_id="s", run_id="r", message=run("a")[1])))
    assert log.append(text("tenant/other")).seq == 1
    assert [event.seq for event in given] == [1, 2, 3]
    assert await log.read("s") == tuple(given)
    assert await log.read("s", after=1) == tuple(given[1:])
    assert await log.read("s", after=3) == ()
    assert await log.read("s", after=99) == ()
    assert (await log.last_seq("s"), await log.last_seq("tenant/other")) == (3, 1)


async def test_a_number_is_at_least_what_the_event_says(log: EventLog) -> None:
    """What somebody has heard while the log could not be had is never heard of something else."""
    assert [log.append(text("s", seq)).seq for seq in (0, 1, 7, 3, 8, 20)] == [1, 2, 7, 8, 9, 20]
    assert [event.seq for event in await log.read("s")] == [1, 2, 7, 8, 9, 20]


async def test_thoughts_are_numbered_and_never_kept(log: EventLog, tmp_path: Path) -> None:
    """Thinking is never stored, not in a persisted event log either: a replay skips its numbers."""
    given = [log.append(event("s")) for event in (text, thought, thought, text, thought)]
    assert [event.seq for event in given] == [1, 2, 3, 4, 5]
    assert [event.seq for event in await log.read("s")] == [1, 4]
    assert await log.last_seq("s") == 5
    assert log.append(text("s")).seq == 6
    assert not any(b"secret thought" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


async def test_a_rewind_is_a_mark_in_the_log_and_takes_nothing_out_of_it(log: EventLog) -> None:
    """events.jsonl is the append-only log, session.rewound its rewind marker."""
    given = [log.append(MessageCompleted(session_id="s", message=each)) for each in run("a")]
    given.append(log.append(SessionRewound(session_id="s", message_id="a-user", removed=5, messages=())))
    assert await log.read("s") == tuple(given)


async def test_nothing_is_left_of_a_deleted_session(store: MemorySessionStore | FileSessionStore) -> None:
    store.event_log.append(text("s"))
    await store.delete("s")
    assert store.event_log.append(SessionDeleted(session_id="s", seq=2)).seq == 2
    assert (await store.event_log.read("s"), await store.event_log.last_seq("s")) == ((), 0)


async def test_objects_that_share_a_log_number_their_events_together(log: EventLog) -> None:
    """ "`seq` (per session, from 1, no gaps)", where each request has an object of its own; whoever heard n finds all below."""
    history, locker = MemoryHistory(), LocalLocker()
    heard: list[SessionEvent] = []
    by_object: list[list[int]] = []

    def listener(numbers: list[int]) -> Callable[[SessionEvent], None]:
        return lambda event: (heard.append(event), numbers.append(event.seq))[0]

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            model = ScriptedModel(Turn(reasoning="secret thought", deltas=("a", "b", "c")))
            agent = AgentSession(id="s", history=history, locker=locker, model=model, log=log)
            by_object.append([])
            agent.subscribe(listener(by_object[-1]))
            tasks.start_soon(agent.start("Go.").result)
    assert sorted(event.seq for event in heard) == list(range(1, len(heard) + 1))
    assert all(numbers == sorted(numbers) for numbers in by_object)
    kept = {event.seq: event for event in heard if event.type != "thinking"}
    assert {event.seq: event for event in await log.read("s")} == kept


@pytest.mark.parametrize("counter", [None, b"", b"\0" * 21, b"7", b"%020d\n" % 1], ids=repr)
@pytest.mark.parametrize("torn", [b"", b'{"seq": 4, "ty', b"\0\0\n"], ids=repr)
async def test_what_a_crash_tore_costs_that_event_alone_and_no_number_comes_twice(
    files: FileSessionStore, tmp_path: Path, counter: bytes | None, torn: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    given = [files.event_log.append(text("s")) for _ in range(3)]
    directory = tmp_path / "sessions" / "s"
    with (directory / "events.jsonl").open("ab") as file:
        file.write(torn)
    (directory / "events.seq").unlink()
    if counter is not None:
        (directory / "events.seq").write_bytes(counter)
    log = FileSessionStore(tmp_path).event_log
    assert await log.last_seq("s") == 3
    assert await log.read("s") == tuple(given)
    channel = EventChannel("s", log=log, logger=_LOGGER)
    given += [channel.publish(text("s")), channel.publish(text("s"))]
    assert [event.seq for event in given] == [1, 2, 3, 4, 5]
    assert await log.read("s") == tuple(given)
    assert bool(caplog.records) == bool(torn)


async def test_an_unreadable_line_in_the_midst_costs_that_event_alone(
    files: FileSessionStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = [files.event_log.append(text("s")) for _ in range(3)]
    path = tmp_path / "sessions" / "s" / "events.jsonl"
    first, _, third = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join((first, b"\0\0", third, b"")))
    assert await files.event_log.read("s") == (given[0], given[2])
    assert "Line 2 of the event log" in caplog.text


async def test_adding_an_event_costs_the_same_however_long_the_log_is(files: FileSessionStore, tmp_path: Path) -> None:
    def read_by_us() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    line = files.event_log.append(text("s")).model_dump_json().encode() + b"\n"
    with (tmp_path / "sessions" / "s" / "events.jsonl").open("ab") as file:
        file.write(line * 100_000)
    before = read_by_us()
    for _ in range(10):
        files.event_log.append(text("s", 2))
    assert read_by_us() - before < 100_000


async def test_events_of_a_session_that_is_not_stored_are_numbered_and_dropped(
    files: FileSessionStore, tmp_path: Path
) -> None:
    channel = EventChannel("gone", log=files.event_log, logger=_LOGGER)
    assert [channel.publish(text("gone")).seq for _ in range(3)] == [1, 2, 3]
    assert await files.event_log.read("gone") == ()
    assert not (tmp_path / "sessions" / "gone").exists()


async def test_a_log_that_can_not_be_written_is_reported_once_and_the_numbers_go_on(
    files: FileSessionStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    channel = EventChannel("s", log=files.event_log, logger=_LOGGER)
    path = tmp_path / "sessions" / "s" / "events.jsonl"
    numbers = [channel.publish(text("s")).seq]
    path.rename(path.with_suffix(".aside"))
    path.mkdir()
    numbers += [channel.publish(text("s")).seq for _ in range(3)]
    assert caplog.text.count("events of session s can't be kept") == 1
    path.rmdir()
    path.with_suffix(".aside").rename(path)
    numbers += [channel.publish(text("s")).seq for _ in range(2)]
    assert numbers == sorted(set(numbers))
    assert [event.seq for event in await files.event_log.read("s")] == [numbers[0], *numbers[-2:]]


async def test_a_replay_is_whole_while_events_are_added(files: FileSessionStore) -> None:
    for _ in range(2_000):
        files.event_log.append(text("s"))
    found: list[int] = []

    async def replay() -> None:
        for _ in range(20):
            events = await files.event_log.read("s")
            found.append(len(events))
            assert [event.seq for event in events] == list(range(1, len(events) + 1))

    with anyio.fail_after(LONG):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(replay)
            while len(found) < 20:
                files.event_log.append(text("s", 2_000))
                await anyio.lowlevel.checkpoint()
    assert found == sorted(found)
    assert found[-1] > 2_000
