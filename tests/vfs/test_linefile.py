"""Files of lines: whole or not there, and read from their end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workbench.vfs import linefile


def test_lines_come_back_and_the_last_one_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "lines")
    assert linefile.read(path) == ([], b"")
    assert linefile.last_line(path) == b""
    assert linefile.append(path, b"one\n") == ""
    assert linefile.last_line(path) == b"one"
    linefile.append(path, b"two\n\nthree\n", durable=False)
    assert linefile.read(path) == ([b"one", b"two", b"", b"three"], b"")
    assert linefile.last_line(path) == b"three"
    assert os.stat(path).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("size", [65535, 65536, 65537, 200_000])
def test_lines_of_any_length_are_found_from_the_end(size: int, tmp_path: Path) -> None:
    path = str(tmp_path / "lines")
    linefile.append(path, b"first\n" + b"x" * size + b"\n")
    assert linefile.last_line(path) == b"x" * size
    with open(path, "ab") as file:
        file.write(b"y" * size)
    assert linefile.last_line(path) == b"x" * size
    assert linefile.read(path) == ([b"first", b"x" * size], b"y" * size)
    assert linefile.append(path, b"z\n") == f"{path}.torn-1"
    assert linefile.read(path) == ([b"first", b"x" * size, b"z"], b"")


def test_what_was_torn_before_is_kept_beside_what_is_torn_now(tmp_path: Path) -> None:
    path = str(tmp_path / "lines")
    for number in (1, 2):
        with open(path, "ab") as file:
            file.write(b"torn %d" % number)
        assert linefile.append(path, b"whole\n") == f"{path}.torn-{number}"
        assert (tmp_path / f"lines.torn-{number}").read_bytes() == b"torn %d" % number
    assert linefile.read(path) == ([b"whole", b"whole"], b"")


def test_a_file_that_was_torn_before_its_first_line_begins_anew(tmp_path: Path) -> None:
    path = str(tmp_path / "lines")
    (tmp_path / "lines").write_bytes(b"torn")
    assert linefile.last_line(path) == b""
    linefile.append(path, b"whole\n")
    assert linefile.read(path) == ([b"whole"], b"")
