"""What changed within lines: shown word by word, and nothing of either side is lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.review import words
from workbench.review.lines import hunks

_LINE = st.lists(st.sampled_from(["a", "bc", " ", "\t", "é", "x.y", "(", "10"]), max_size=6).map("".join)
_TEXT = st.lists(_LINE, max_size=12).map(lambda lines: "".join(line + "\n" for line in lines).encode())


def shown(old: bytes, new: bytes) -> bytes:
    (hunk,) = hunks(old, new)
    return b"".join(words.render(hunk)).partition(b"\n")[2]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (b"return a + b\n", b"return a - b\n", b"return a [-+-]{+-+} b\n"),
        (b"one\ntwo\n", b"one\n", b"one\n[-two-]\n"),
        (b"", b"one\n\ntwo\n", b"{+one+}\n\n{+two+}\n"),
        ("näh\n".encode(), b"nah\n", "[-näh-]{+nah+}\n".encode()),
        (b"a\n", b"a", b""),
        (b"x = 1\r\n", b"x = 2\r\n", b"x = [-1-]{+2+}\r\n"),
    ],
)
def test_words_that_go_and_come_stand_between_marks(old: bytes, new: bytes, told: bytes) -> None:
    assert shown(old, new) == (told or b"a\n")


@given(_TEXT, _TEXT)
def test_each_side_can_be_read_off(old: bytes, new: bytes) -> None:
    for hunk in hunks(old, new):
        told = b"".join(words.render(hunk)).partition(b"\n")[2]
        for goes, stays, side in ((rb"\{\+.*?\+\}", rb"\[-(.*?)-\]", b"+"), (rb"\[-.*?-\]", rb"\{\+(.*?)\+\}", b"-")):
            text = re.sub(stays, rb"\1", re.sub(goes, b"", told))
            wanted = [line[1:] for line in hunk.lines if not line.startswith(side)]
            assert b"".join(text.split()) == b"".join(b"".join(wanted).split())


@given(_TEXT, _TEXT)
def test_runs_have_every_line_of_a_hunk_in_order(old: bytes, new: bytes) -> None:
    for hunk in hunks(old, new):
        found = list(words.runs(hunk))
        assert [line for run in found for line in run.old] == [
            line[1:] for line in hunk.lines if not line.startswith(b"+")
        ]
        assert [line for run in found for line in run.new] == [
            line[1:] for line in hunk.lines if not line.startswith(b"-")
        ]
