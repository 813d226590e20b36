"""How the lines of a session's history follow each other, and which of them have a commit of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from workbench.checkpoints import objects
from workbench.checkpoints.history import Row, RowKind, trailers_of
from workbench.checkpoints.pack_writer import PackWriter
from workbench.errors import CheckpointError


def follow(pack: PackWriter, row: Row, session: str, tree_id: bytes, rows: Sequence[Row], last_tree: bytes) -> Row:
    """The line after `rows`, with its commit: that of the last of them, where that one's tree, `last_tree`, is its own."""
    last = rows[-1] if rows else None
    if last is not None and tree_id == last_tree:
        return replace(row, commit=last.commit, parent=last.parent)
    return add_commit(pack, row, session, tree_id, rows)


def add_commit(pack: PackWriter, row: Row, session: str, tree_id: bytes, rows: Sequence[Row] = ()) -> Row:
    """A line with a new commit, whose parent is that of the last of `rows`. Raises OSError."""
    last = rows[-1] if rows else None
    parent = last.commit if last is not None else ""
    # Lines since the last commit that have none of their own.
    also = [each for before, each in pairwise(rows) if before.commit == each.commit == parent]
    trailers = trailers_of(row, session, last.message if last is not None else "", also)
    subject = f"{row.message}: {row.label}" if row.label else row.message
    seconds = row.created_ns // 1_000_000_000
    data = objects.encode_commit(tree_id, bytes.fromhex(parent) or None, seconds, subject, trailers)
    return replace(row, commit=pack.add(objects.COMMIT, data).hex(), parent=parent)


def last_scanned(rows: Sequence[Row]) -> Row | None:
    """The last line that was made by a scan: one that was only named since may be of something older."""
    return next((row for row in reversed(rows) if row.kind != RowKind.COMMAND), rows[-1] if rows else None)


def automatic_id(rows: Sequence[Row]) -> str:
    """`@` and the number that the next line gets, unless somebody has chosen that for an id of theirs."""
    found = f"@{rows[-1].number + 1 if rows else 1}"
    taken = {row.message for row in rows}
    while found in taken:
        found += "+"
    return found


def raced() -> CheckpointError:
    """The error of two who take a checkpoint of one session at the same time."""
    return CheckpointError(
        "Another process took a checkpoint of this session meanwhile.",
        code="checkpoint_raced",
        hint="Take this one again.",
    )
