"""The checkpoints of one session in order: its reference, and an index from message ids to commits.

The reference `refs/workbench/<session>/tip` names the last commit, whose first parent is the one before, and so on. The
index `sessions/<session>.jsonl` has a JSON object a line, oldest first; it can be lost: all of it stands in the commits'
trailers. A checkpoint that found the same tree as the one before makes a line and no commit; the next commit carries such
lines in its trailer `Workbench-Also`.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass

from workbench.checkpoints import files, names, objects
from workbench.errors import OptionsError

SCHEMA = 1
"""The version of the tree format and the trailers."""

_MAX_SESSION = 200
"""Bytes of an escaped session name: with the endings we add it's still a file name."""

_REFERENCES = "refs/workbench"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the index. `commit` and `parent` are 40 hex digits, `parent` empty for a session's first commit.

    `message`, `label` and `tool_call` are the caller's. `number` counts a session's lines from 1. `created_ns` is the
    process's clock. `boot_id` and `scanned_ns` are as in `Manifest`.
    """

    number: int
    message: str
    commit: str
    parent: str
    label: str
    tool_call: str
    created_ns: int
    boot_id: str
    scanned_ns: int


_TYPES = {
    "number": int,
    "message": str,
    "commit": str,
    "parent": str,
    "label": str,
    "tool_call": str,
    "created_ns": int,
    "boot_id": str,
    "scanned_ns": int,
}


class History:
    """The reference and the index of one session in the store at `directory`.

    `read_commit` gives a commit's content by its id (20 bytes). Raises OptionsError for a session name that is empty or
    too long.
    """

    def __init__(self, directory: str, session: str, read_commit: Callable[[bytes], bytes]) -> None:
        escaped = names.escape_reference(os.fsencode(session))
        if not 0 < len(escaped) <= _MAX_SESSION:
            raise OptionsError(f"A session's name has 1 to {_MAX_SESSION} bytes when escaped.")
        self._directory = directory
        self._session = session
        self._read_commit = read_commit
        self._reference = f"{_REFERENCES}/{escaped}/tip"
        self._index = os.path.join(directory, "sessions", f"{escaped}.jsonl")
        self._content = b""
        self._rows: list[Row] = []

    def tip(self) -> str:
        """The last commit, empty where there is none. Raises CheckpointError (store_corrupt), OSError."""
        try:
            with open(os.path.join(self._directory, self._reference), encoding="ascii") as file:
                text = file.read().strip()
        except FileNotFoundError:
            text = self._packed_tip()
        except UnicodeDecodeError:
            text = "?"
        if text and (len(text) != 40 or set(text) - set("0123456789abcdef")):
            raise objects.corrupt(f"the reference {self._reference} can't be read")
        return text

    def rows(self) -> list[Row]:
        """All lines, oldest first; what the index lacks is read from the commits. Raises as `tip`."""
        return self._load()[0]

    def append(self, row: Row) -> None:
        """Add a line, and move the tip to its commit; both on disk when this returns. Needs the store's lock.

        Raises as `tip`.
        """
        rows, healthy = self._load()
        # A commit's line can be made anew from its trailers: it needn't be on disk.
        durable = row.commit == self.tip()
        if not durable:
            self._move_tip(row.commit)
        line = _encode(row)
        if healthy:
            with open(self._index, "ab") as file:
                file.write(line)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
        else:
            files.replace(self._index, b"".join(map(_encode, rows)) + line)

    def drop(self) -> None:
        """Forget the session: its reference, then its index, which means nothing without. Needs the store's lock.

        Raises OSError.
        """
        path = os.path.join(self._directory, self._reference)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        with contextlib.suppress(OSError):
            # Somebody else's references may lie beside it.
            os.rmdir(os.path.dirname(path))
        if self._packed_tip():
            self._drop_packed_tip()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._index)

    def _load(self) -> tuple[list[Row], bool]:
        """The lines, and whether the index file has exactly those."""
        try:
            with open(self._index, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            content = b""
        rows, healthy = self._decode(content)
        tip = self.tip()
        commits = {row.commit for row in rows}
        missing: list[Row] = []
        at = tip
        while at and at not in commits:
            _, parent, trailers = objects.decode_commit(self._read_commit(bytes.fromhex(at)))
            row = row_of(at, parent, trailers)
            also = [_row(fields) for fields in _list(trailers.get("Also"))]
            missing += [row, *reversed(also)]
            at = row.parent
        # A tip that was set back by hand leaves lines behind that no commit answers for.
        while rows and rows[-1].commit != at:
            rows.pop()
            healthy = False
        if missing:
            numbers = {row.number for row in rows}
            rows += [row for row in reversed(missing) if row.number not in numbers]
            healthy = False
        return rows, healthy and os.path.exists(self._index)

    def _decode(self, content: bytes) -> tuple[list[Row], bool]:
        """The lines up to the first that can't be read, and whether that's all. What was read before isn't read again."""
        if not content.startswith(self._content):
            self._content, self._rows = b"", []
        for line in content[len(self._content) :].splitlines(keepends=True):
            row = _parse(line)
            if row is None:
                return [*self._rows], False
            self._content += line
            self._rows.append(row)
        return [*self._rows], True

    def _packed_tip(self) -> str:
        """The tip where git has packed the references (gitrepository-layout(5))."""
        try:
            with open(os.path.join(self._directory, "packed-refs"), encoding="utf-8", errors="replace") as file:
                for line in file:
                    value, _, name = line.rstrip("\n").partition(" ")
                    if name == self._reference:
                        return value
        except FileNotFoundError:
            pass
        return ""

    def _drop_packed_tip(self) -> None:
        path = os.path.join(self._directory, "packed-refs")
        with open(path, "rb") as file:
            lines = file.readlines()
        name = self._reference.encode("ascii")
        files.replace(path, b"".join(line for line in lines if line.rstrip(b"\n").partition(b" ")[2] != name))

    def _move_tip(self, commit: str) -> None:
        path = os.path.join(self._directory, self._reference)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        files.replace(path, commit.encode("ascii") + b"\n")


def sessions_of(directory: str) -> list[str]:
    """The names of the sessions that the store at `directory` has checkpoints of, sorted. Raises OSError."""
    base = os.path.join(directory, _REFERENCES)
    found = {name for name in _listed(base) if os.path.exists(os.path.join(base, name, "tip"))}
    with contextlib.suppress(FileNotFoundError), open(os.path.join(directory, "packed-refs"), "rb") as file:
        for line in file:
            name = line.rstrip(b"\n").partition(b" ")[2].decode("utf-8", "replace")
            if name.startswith(f"{_REFERENCES}/") and name.endswith("/tip"):
                found.add(name[len(_REFERENCES) + 1 : -len("/tip")])
    return sorted(os.fsdecode(names.unescape(name.encode("utf-8"))) for name in found if _is_escaped(name))


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def _is_escaped(name: str) -> bool:
    """Whether a reference's name is one that we gave."""
    try:
        return names.escape_reference(names.unescape(name.encode("utf-8", "surrogateescape"))) == name
    except ValueError:
        return False


def row_of(commit: str, parent: bytes | None, trailers: dict[str, object]) -> Row:
    """The line of a commit, from its trailers. Raises CheckpointError (store_corrupt)."""
    return _row(
        {
            "number": trailers.get("Number"),
            "message": trailers.get("Message"),
            "commit": commit,
            "parent": "" if parent is None else parent.hex(),
            "label": trailers.get("Label"),
            "tool_call": trailers.get("Tool-Call", ""),
            "created_ns": trailers.get("Created"),
            "boot_id": trailers.get("Boot"),
            "scanned_ns": trailers.get("Scanned"),
        }
    )


def trailers_of(row: Row, session: str, parent_message: str, also: list[Row]) -> dict[str, object]:
    """What `row_of` reads, with what else a commit says. `also` are the lines since the last commit."""
    trailers: dict[str, object] = {
        "Schema": SCHEMA,
        "Session": session,
        "Number": row.number,
        "Message": row.message,
        "Label": row.label,
        "Created": row.created_ns,
        "Boot": row.boot_id,
        "Scanned": row.scanned_ns,
    }
    if parent_message:
        trailers["Parent-Message"] = parent_message
    if row.tool_call:
        trailers["Tool-Call"] = row.tool_call
    if also:
        trailers["Also"] = [asdict(each) for each in also]
    return trailers


def _encode(row: Row) -> bytes:
    return json.dumps(asdict(row), separators=(",", ":")).encode("ascii") + b"\n"


def _parse(line: bytes) -> Row | None:
    if not line.endswith(b"\n"):
        return None
    try:
        return _row_or_none(json.loads(line))
    except ValueError:
        return None


def _row_or_none(found: object) -> Row | None:
    if not isinstance(found, dict) or not _TYPES.keys() <= found.keys():
        return None
    values = {name: found[name] for name in _TYPES}
    if any(not isinstance(values[name], expected) for name, expected in _TYPES.items()):
        return None
    return Row(**values)


def _row(found: object) -> Row:
    row = _row_or_none(found)
    if row is None:
        raise objects.corrupt("a commit isn't a checkpoint's, or its trailers can't be read")
    return row


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
