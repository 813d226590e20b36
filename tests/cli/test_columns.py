"""Old and new beside each other: every line on its side, numbered, with what changed in it marked."""

from __future__ import annotations

import re

import pytest

from workbench.cli.columns import print_columns
from workbench.review.lines import hunks

OLD = b"import os\n\n\ndef f(x):\n\treturn x + 1\n\n\nlast = 'old'\n"
NEW = b"import os\n\n\ndef f(x):\n\treturn x + 2\n\nadded = 1\n\nlast = 'old'"


def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, old: bytes, new: bytes) -> list[str]:
    monkeypatch.setenv("COLUMNS", "80")
    print_columns(b"f.py", hunks(old, new))
    return capsys.readouterr().out.splitlines()


def test_each_side_has_its_lines_with_their_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shown(capsys, monkeypatch, OLD, NEW)
    assert lines[0].startswith("@@ -2,7 +2,8 @@")
    middle = lines[1].index("2", 1)
    sides = [[line[:middle].rstrip() for line in lines[1:]], [line[middle:].rstrip() for line in lines[1:]]]
    for side, text in zip(sides, (OLD, NEW), strict=True):
        numbered = [re.match(r" *(\d+) ([-+ ]) ?(.*)", line) for line in side if line]
        wanted = text.decode().splitlines()
        assert len(numbered) == len(wanted) - 1
        for found in filter(None, numbered):
            assert found[3] == wanted[int(found[1]) - 1].expandtabs(8).rstrip()
    changed = [line for line in lines[1:] if "x +" in line]
    assert changed == [line for line in lines[1:] if " - " in line and " + " in line and "return" in line]


def test_a_long_line_is_folded_and_an_empty_one_is_still_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shown(capsys, monkeypatch, b"\n", b"\n\n" + b"word " * 40 + b"\n")
    assert max(map(len, lines)) <= 80
    assert "".join(lines).count("word") == 40
    assert any(re.fullmatch(r" +2 \+ *", line) for line in lines)


def test_colour_marks_the_words_that_changed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.cli.output.colours", lambda: True)
    out = "\n".join(shown(capsys, monkeypatch, b"value = one\n", b"value = two\n"))
    marked = re.findall(r"\x1b\[[\d;]*7[\d;]*m([^\x1b]*)", out)
    assert marked == ["one", "two"]
