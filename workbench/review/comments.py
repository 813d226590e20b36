"""What a person has to say to the agent about its changes, until the agent has taken it.

They are lines of `comments.jsonl` in the overlay's directory. Those that a run tells at this moment are in a file of their own
beside it, `comments-<id>.jsonl`, which that run keeps locked: where its process died, the next one who looks puts them
back.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

from pydantic import ValidationError

from workbench.errors import StateError
from workbench.protocol.records import CommentRecord
from workbench.review.changeset import Change
from workbench.review.hunks import NamedHunk
from workbench.vfs import paths

_FILE = "comments.jsonl"
_TOLD = re.compile(r"comments-[0-9a-f]{16}\.jsonl")


class Claim:
    """Comments that one run tells, and nobody else until it ends."""

    def __init__(self, path: str, fd: int, comments: Sequence[CommentRecord]) -> None:
        self.comments = tuple(comments)
        self._path = path
        self._fd = fd

    def forget(self) -> None:
        """The agent was told. Raises OSError."""
        os.unlink(self._path)
        os.close(self._fd)

    def release(self) -> None:
        """The agent wasn't told: somebody else may tell them."""
        os.close(self._fd)


class Comments:
    """The comments on one overlay's changes."""

    def __init__(self, overlay_path: str) -> None:
        self.path = os.path.join(overlay_path, _FILE)

    def all(self) -> list[CommentRecord]:
        """Those that nobody has taken, oldest first. Raises OSError, StateError (state_corrupt)."""
        with self._locked() as file:
            return self._read(file)

    def add(self, text: str, change: Change, hunk: NamedHunk | None = None) -> None:
        """Say something about a change, or about a hunk of it. Raises OSError."""
        about = CommentRecord(at_ns=time.time_ns(), path=change.path, text=text)
        if hunk is not None:
            before = next(number for number, line in enumerate(hunk.hunk.lines) if not line.startswith(b" "))
            quoted = {"hunk": hunk.id, "line": hunk.hunk.new_start + before, "quoted": hunk.hunk.lines}
            about = about.model_copy(update=quoted)
        with self._locked() as file:
            _append(file, [_line(about)])

    def claim(self) -> Claim | None:
        """Those that nobody has taken, for a run to tell; None where there are none. Raises as `all`."""
        with self._locked() as file:
            comments = self._read(file)
            if not comments:
                return None
            path, fd = self._set_aside(comments)
            try:
                file.truncate(0)
            except BaseException:
                os.close(fd)
                raise
            return Claim(path, fd, comments)

    def take(self) -> list[CommentRecord]:
        """Those that nobody has taken, which are forgotten with that. Raises as `all`."""
        with self._locked() as file:
            taken = self._read(file)
            file.truncate(0)
            return taken

    def forget(self, told: Iterable[CommentRecord]) -> None:
        """Drop those that the agent was told; what was said since stays. Raises as `all`."""
        gone = list(told)
        with self._locked() as file:
            if kept := [comment for comment in self._read(file) if comment not in gone]:
                # Nobody holds it: the next one who looks puts them back.
                os.close(self._set_aside(kept)[1])
            file.truncate(0)

    def _set_aside(self, comments: Iterable[CommentRecord]) -> tuple[str, int]:
        """Write comments to a file of their own; its path and a descriptor that has it locked."""
        path = os.path.join(os.path.dirname(self.path), f"comments-{secrets.token_hex(8)}.jsonl")
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            with open(fd, "wb", closefd=False) as told:
                told.writelines(map(_line, comments))
            os.fsync(fd)
        except BaseException:
            os.close(fd)
            raise
        return path, fd

    @contextlib.contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        with open(self.path, "a+b", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o600)) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._put_back(file)
            yield file

    def _put_back(self, file: BinaryIO) -> None:
        """Have the comments again that a run claimed and neither forgot nor holds any more."""
        directory = os.path.dirname(self.path)
        for name in filter(_TOLD.fullmatch, os.listdir(directory)):
            with (
                contextlib.suppress(FileNotFoundError, BlockingIOError),
                open(os.path.join(directory, name), "rb") as told,
            ):
                fcntl.flock(told, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.fstat(told.fileno()).st_nlink:
                    # The agent was told at this very moment.
                    continue
                # What a crash cut short stands in the file itself still.
                _append(file, (line for line in told if line.endswith(b"\n")))
                os.unlink(told.name)

    def _read(self, file: BinaryIO) -> list[CommentRecord]:
        file.seek(0)
        try:
            said = [CommentRecord.model_validate_json(line) for line in file]
        except ValidationError as error:
            raise StateError(
                f"The comments in {paths.display(os.fsencode(self.path))} can't be read.",
                hint="Correct the file, or remove it.",
            ) from error
        found: list[CommentRecord] = []
        for comment in sorted(said, key=lambda comment: comment.at_ns):
            # Where a crash came between putting back and the end of it, it's there twice.
            if comment not in found:
                found.append(comment)
        return found


def _append(file: BinaryIO, lines: Iterable[bytes]) -> None:
    # Past the file's buffer, which would be written once more after a failure. Half a line would have none of them read.
    end, left = os.fstat(file.fileno()).st_size, b"".join(lines)
    try:
        while left:
            left = left[os.write(file.fileno(), left) :]
        os.fsync(file.fileno())
    except OSError:
        os.ftruncate(file.fileno(), end)
        raise


def _line(comment: CommentRecord) -> bytes:
    return comment.model_dump_json().encode() + b"\n"


def as_text(comments: Iterable[CommentRecord]) -> Iterator[bytes]:
    """Comments as lines for an agent: where, what they are about, and what is said."""
    for comment in comments:
        place = b":%d" % comment.line if comment.hunk else b""
        yield paths.display(comment.path).encode() + place + b"\n"
        for line in comment.quoted:
            yield b"    " + line.removesuffix(b"\n") + b"\n"
        yield comment.text.encode() + b"\n\n"


def before_text(comments: Sequence[CommentRecord], text: str) -> str:
    """What an agent is told: comments, where there are any, then what its user says to it now."""
    if not comments:
        return text
    said = b"".join(as_text(comments)).decode(errors="replace")
    return (
        "I have reviewed the changes that wait in this workspace. My comments on them, each below the place, and the lines "
        f"of the change, that it is about:\n\n{said}Now to my message:\n\n{text}"
    )
