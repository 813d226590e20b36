"""The sessions worked on last, of however many."""

from __future__ import annotations

import gc
import weakref
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
from hypothesis import given
from hypothesis import strategies as st

from tests.transcripts.homes import lines
from workbench.transcripts import LocalPlatform, SessionHead, SessionRef, is_session_head, list_sessions
from workbench.transcripts.finding import Newest, place_of

_BEGUN = datetime(2026, 3, 1, tzinfo=UTC)


def head(minute: int, path: str) -> SessionHead:
    ref = SessionRef(agent="codex", path=path)
    return SessionHead(ref=ref, size_bytes=1, last_active_at=_BEGUN + timedelta(minutes=minute))


@given(st.lists(st.tuples(st.integers(0, 5), st.text("ab", min_size=1, max_size=2))), st.none() | st.integers(1, 6))
def test_the_newest_are_those_that_sorting_all_of_them_would_give(
    told: list[tuple[int, str]], most: int | None
) -> None:
    heads = [head(minute, path) for minute, path in told]
    newest = Newest(most, place_of)
    for each in heads:
        newest.add(each)
    assert newest.first_to_last() == sorted(map(place_of, heads), reverse=True)[:most]
    assert newest.seen == len(heads)


def test_a_listing_holds_no_more_heads_than_are_asked_for(tmp_path: Path) -> None:
    for number in range(100):
        record = {"type": "user", "sessionId": "s", "message": {"role": "user", "content": f"prompt {number}"}}
        lines(tmp_path / ".claude" / "projects" / f"p{number % 9}" / f"{number}.jsonl", record)
    newest: Newest[SessionHead] = Newest(5, lambda head: head)
    alive: weakref.WeakSet[SessionHead] = weakref.WeakSet()
    most = 0

    async def read() -> None:
        nonlocal most
        platform = LocalPlatform(env={}, home=str(tmp_path))
        async for item in list_sessions(platform, agents=["claude"]):
            if is_session_head(item):
                newest.add(item)
                alive.add(item)
                most = max(most, len(alive))

    anyio.run(read)
    gc.collect()
    assert (newest.seen, len(alive)) == (100, 5)
    assert most <= 8  # what is kept, what has just come, what is about to go
