"""Git's objects as bytes: ids, trees, and the commits of checkpoints with their trailers.

Formats: gitformat-pack(5) for the kinds, git-mktree(1) and `tree.c` for the order in a tree, git-interpret-trailers(1).
A trailer's value is a JSON string of ASCII characters, so that a message id may be any string::

    tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904
    parent 1f7a7a472abf3dd9643fd615f6da379c4acb3e3a
    author workbench <workbench@localhost> 1767225600 +0000
    committer workbench <workbench@localhost> 1767225600 +0000

    before: make the tests pass

    Workbench-Schema: 1
    Workbench-Session: "default"
    Workbench-Message: "m-17"
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from workbench.errors import CheckpointError

COMMIT, TREE, BLOB = 1, 2, 3
"""Object kinds by their number in a pack."""

NAMES = {COMMIT: b"commit", TREE: b"tree", BLOB: b"blob"}

MODE_FILE, MODE_EXECUTABLE, MODE_SYMLINK, MODE_TREE = b"100644", b"100755", b"120000", b"40000"

_ID_LENGTH = 20
_TRAILER_PREFIX = "Workbench-"
_SUBJECT_LENGTH = 100


def object_id(kind: int, data: bytes) -> bytes:
    """The 20 bytes that name an object of `kind` (COMMIT, TREE or BLOB)."""
    digest = hashlib.sha1(b"%s %d\0" % (NAMES[kind], len(data)), usedforsecurity=False)
    digest.update(data)
    return digest.digest()


def encode_tree(entries: Iterable[tuple[bytes, bytes, bytes]]) -> bytes:
    """A tree of (name, mode, id), in git's own order: directories sort as if their names ended in `/`."""
    ordered = sorted((name + b"/" if mode == MODE_TREE else name, name, mode, oid) for name, mode, oid in entries)
    return b"".join(b"%s %s\0%s" % (mode, name, oid) for _, name, mode, oid in ordered)


def decode_tree(data: bytes) -> dict[bytes, tuple[bytes, bytes]]:
    """A tree's (mode, id) by name. Raises CheckpointError (store_corrupt)."""
    found = {}
    position = 0
    while position < len(data):
        space = data.find(b" ", position)
        end = data.find(b"\0", space)
        if space < 0 or end < 0 or end + 1 + _ID_LENGTH > len(data):
            raise corrupt("a tree is cut short")
        oid = data[end + 1 : end + 1 + _ID_LENGTH]
        found[data[space + 1 : end]] = (data[position:space], oid)
        position = end + 1 + _ID_LENGTH
    return found


def encode_commit(tree: bytes, parent: bytes | None, seconds: int, subject: str, trailers: dict[str, object]) -> bytes:
    """A checkpoint's commit.

    `tree` and `parent` are ids of 20 bytes, `seconds` since the epoch. `subject` may be any text: one bounded line is
    made of it. `trailers` are by name without the common `Workbench-`; a value is anything that JSON takes.
    """
    line = " ".join(subject.split())
    line = "".join(character if character.isprintable() else "\ufffd" for character in line)[:_SUBJECT_LENGTH]
    who = f"workbench <workbench@localhost> {seconds} +0000"
    lines = [f"tree {tree.hex()}"]
    if parent is not None:
        lines.append(f"parent {parent.hex()}")
    lines += [f"author {who}", f"committer {who}", "", line or "checkpoint", ""]
    lines += [f"{_TRAILER_PREFIX}{name}: {json.dumps(value)}" for name, value in trailers.items()]
    return ("\n".join(lines) + "\n").encode("utf-8")


def decode_commit(data: bytes) -> tuple[bytes, bytes | None, dict[str, object]]:
    """A commit's tree, its first parent, and its trailers; none for a commit that isn't a checkpoint's.

    Raises CheckpointError (store_corrupt).
    """
    head, _, message = data.partition(b"\n\n")
    headers: dict[bytes, bytes] = {}
    for line in head.split(b"\n"):
        name, _, value = line.partition(b" ")
        headers.setdefault(name, value)
    trailers: dict[str, object] = {}
    paragraph = message.decode("utf-8", "replace").rstrip("\n").rpartition("\n\n")[2]
    for text in paragraph.split("\n"):
        key, colon, value_text = text.partition(": ")
        if colon and key.startswith(_TRAILER_PREFIX):
            try:
                trailers[key.removeprefix(_TRAILER_PREFIX)] = json.loads(value_text)
            except ValueError as error:
                raise corrupt(f"the trailer {key} of a commit can't be read") from error
    try:
        tree = bytes.fromhex(headers[b"tree"].decode("ascii"))
        parent = bytes.fromhex(headers[b"parent"].decode("ascii")) if b"parent" in headers else None
    except (KeyError, ValueError) as error:
        raise corrupt("a commit's header can't be read") from error
    return tree, parent, trailers


def corrupt(what: str) -> CheckpointError:
    """The error for a store that holds what no checkpoint wrote; `what` is a clause such as "a tree is cut short"."""
    return CheckpointError(
        f"The checkpoint store is damaged: {what}.",
        code="store_corrupt",
        hint="'workbench checkpoint --verify' says what can still be restored; the next checkpoint goes on in a fresh store.",
    )
