"""The reader of event streams: whatever cuts the bytes into pieces, the same events come out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.models.sse import EventReader, ServerEvent

CHUNKS = st.binary(max_size=60).map(lambda data: data.replace(b"\x00", b"\n"))


def read(data: bytes, size: int = 0) -> list[tuple[str, str]]:
    reader = EventReader()
    events: list[ServerEvent] = []
    size = size or max(1, len(data))
    for start in range(0, len(data), size):
        events += reader.feed(data[start : start + size])
    return [(event.name, event.data) for event in events + reader.end()]


@pytest.mark.parametrize("newline", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_lines_end_with_each_of_three_ways(newline: str, size: int) -> None:
    text = newline.join(("event: a", "data: 1", "", "data: 2", "data: 3", "", ""))
    assert read(text.encode(), size) == [("a", "1"), ("", "2\n3")]


def test_one_space_after_the_colon_is_dropped_and_no_more() -> None:
    assert read(b"data:a\n\ndata:  b\n\n") == [("", "a"), ("", " b")]


@pytest.mark.parametrize("comment", [b": OPENROUTER PROCESSING", b": keep-alive", b":", b":ping"])
def test_a_comment_is_no_event(comment: bytes) -> None:
    assert read(comment + b"\n\n" + comment + b"\ndata: 1\n" + comment + b"\n\n") == [("", "1")]


def test_a_block_without_data_is_no_event() -> None:
    assert read(b"event: ping\n\nid: 7\n\nretry: 10\n\n\n\ndata: 1\n\n") == [("", "1")]


def test_a_name_holds_for_its_own_event_only() -> None:
    assert read(b"event: a\n\ndata: 1\n\n") == [("", "1")]


def test_empty_data_is_an_event() -> None:
    assert read(b"data:\n\ndata\n\n") == [("", ""), ("", "")]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_character_may_be_cut_between_two_chunks(size: int) -> None:
    assert read("data: aé€😀\n\n".encode(), size) == [("", "aé€😀")]


def test_a_line_separator_of_unicode_ends_no_line() -> None:
    assert read("data: a\u2028b\u0085c\x0bd\n\n".encode()) == [("", "a\u2028b\u0085c\x0bd")]


def test_a_byte_order_mark_at_the_start_is_dropped() -> None:
    assert read(b"\xef\xbb\xbfdata: 1\n\n") == [("", "1")]


def test_an_event_that_ends_with_a_return_comes_at_once() -> None:
    reader = EventReader()
    assert reader.feed(b"data: 1\r\r") == [ServerEvent("", "1")]
    assert reader.feed(b"\ndata: 2\r\n\r\n") == [ServerEvent("", "2")]


def test_the_last_empty_line_may_be_missing() -> None:
    assert read(b"data: 1\n") == [("", "1")]
    assert read(b"data: 1") == [("", "1")]


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert read(b"data: \xff\xfe\n\n") == [("", "\ufffd\ufffd")]


@given(CHUNKS, st.integers(1, 7))
def test_pieces_of_any_size_give_the_same_events(data: bytes, size: int) -> None:
    stream = b"data: " + data.replace(b"a", b"\n\ndata: ") + b"\n\n"
    assert read(stream, size) == read(stream)
