"""The log of a session's events: what is in it, what never is, and what a crash leaves of it."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from workbench.agent.event_log import EventWriter
from workbench.agent.stores import FileSessionStore
from workbench.protocol.events import (
    MessageCompleted,
    SessionDeleted,
    SessionEvent,
    SessionRewound,
    TextEvent,
    ThinkingEvent,
)
from workbench.testing.conversations import run, session

pytestmark = pytest.mark.anyio
_AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
_LOGGER = logging.getLogger("workbench.agent")


def texts(session_id: str, *numbers: int) -> list[SessionEvent]:
    return [
        TextEvent(seq=number, session_id=session_id, run_id="r", at=_AT, text=f"t{number} 🙂\n") for number in numbers
    ]


@pytest.fixture
async def store(tmp_path: Path) -> FileSessionStore:
    store = FileSessionStore(tmp_path)
    for id in ("s", "tenant/other"):
        await store.save(session(id))
    return store


async def test_events_come_back_in_order_from_any_number_on(store: FileSessionStore) -> None:
    log = store.event_log
    assert await log.read("s") == ()
    assert await log.last_seq("s") == 0
    whole = MessageCompleted(seq=3, session_id="s", run_id="r", message=run("a")[1])
    await log.append("s", *texts("s", 1, 2))
    await log.append("s", whole)
    await log.append("tenant/other", *texts("tenant/other", 1))
    assert await log.read("s") == (*texts("s", 1, 2), whole)
    assert await log.read("s", after=1) == (*texts("s", 2), whole)
    assert await log.read("s", after=3) == ()
    assert (await log.last_seq("s"), await log.last_seq("tenant/other")) == (3, 1)
    assert await FileSessionStore(Path(store.event_log._directory).parent).event_log.last_seq("s") == 3


async def test_a_rewind_is_a_mark_in_the_log_and_takes_nothing_out_of_it(store: FileSessionStore) -> None:
    """events.jsonl is the append-only log, session.rewound its rewind marker."""
    log = store.event_log
    before = [MessageCompleted(seq=number, session_id="s", message=each) for number, each in enumerate(run("a"), 1)]
    await log.append("s", *before)
    mark = SessionRewound(seq=6, session_id="s", message_id="a-user", removed=5, messages=())
    await log.append("s", mark)
    assert await log.read("s") == (*before, mark)


async def test_a_torn_or_unreadable_line_costs_that_event_alone(
    store: FileSessionStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = store.event_log
    await log.append("s", *texts("s", 1, 2, 3))
    path = tmp_path / "sessions" / "s" / "events.jsonl"
    first, _, third = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join((first, b"\0\0", third, b'{"seq": 4, "ty')))
    assert await log.read("s") == (*texts("s", 1), *texts("s", 3))
    assert "Line 2 of the event log" in caplog.text
    assert await log.last_seq("s") == 3
    await log.append("s", *texts("s", 4))
    assert await log.read("s") == (*texts("s", 1), *texts("s", 3), *texts("s", 4))
    with path.open("ab") as file:
        file.write(b"\0\0\n")
    assert await log.last_seq("s") == 4


async def test_events_of_a_session_that_is_not_stored_are_dropped(store: FileSessionStore, tmp_path: Path) -> None:
    await store.event_log.append("gone", *texts("gone", 1))
    assert await store.event_log.read("gone") == ()
    assert not (tmp_path / "sessions" / "gone").exists()


async def test_what_is_published_is_written_in_order_but_for_thinking(store: FileSessionStore) -> None:
    """Thinking is never stored, not in a persisted event log either: a replay skips its numbers."""
    writer = EventWriter(store.event_log, _LOGGER)
    for number in range(1, 101):
        for id in ("s", "tenant/other"):
            if number % 10 == 0:
                writer.add(ThinkingEvent(seq=number, session_id=id, text="secret thought"))
            else:
                writer.add(texts(id, number)[0])
        if number % 25 == 0:
            await anyio.lowlevel.checkpoint()
    writer.add(SessionDeleted(seq=101, session_id="s"))
    await writer.flush()
    for id in ("s", "tenant/other"):
        assert await store.event_log.read(id) == tuple(texts(id, *(n for n in range(1, 101) if n % 10)))
        assert await store.event_log.last_seq(id) == 99
    await writer.flush()


async def test_a_log_that_can_not_be_written_is_reported_and_the_others_go_on(
    store: FileSessionStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sessions" / "s" / "events.jsonl").mkdir()
    writer = EventWriter(store.event_log, _LOGGER)
    writer.add(texts("s", 1)[0])
    writer.add(texts("tenant/other", 1)[0])
    await writer.flush()
    assert "events of session s can't be kept" in caplog.text
    assert await store.event_log.last_seq("tenant/other") == 1


def test_what_comes_outside_of_an_event_loop_waits_for_nobody_and_is_not_lost(
    tmp_path: Path, anyio_backend: str
) -> None:
    store = FileSessionStore(tmp_path)
    writer = EventWriter(store.event_log, _LOGGER)
    with pytest.raises(RuntimeError):
        writer.add(texts("s", 1)[0])

    async def main() -> None:
        await store.save(session("s"))
        with anyio.fail_after(120):
            await writer.flush()
            writer.add(texts("s", 2)[0])
            await writer.flush()
        assert await store.event_log.read("s") == tuple(texts("s", 1, 2))

    anyio.run(main, backend=anyio_backend)
