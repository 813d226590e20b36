"""Little trees that the conformance suites ask for, and how to make them on disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class File:
    """A regular file."""

    content: bytes = b""


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory that may be empty; those above any path are made without it."""


@dataclass(frozen=True, slots=True)
class Link:
    """A symlink."""

    target: bytes


Tree = Mapping[bytes, File | Directory | Link]
"""What is to be there, by path relative to the root."""


def fill(root: bytes, tree: Tree) -> None:
    """Make a tree in a directory on disk. Raises OSError."""
    for path, entry in tree.items():
        there = os.path.join(root, path)
        os.makedirs(os.path.dirname(there), exist_ok=True)
        if isinstance(entry, Directory):
            os.makedirs(there, exist_ok=True)
        elif isinstance(entry, Link):
            os.symlink(entry.target, there)
        else:
            with open(there, "wb") as file:
                file.write(entry.content)


@contextlib.contextmanager
def raises(code: int, path: bytes | None = None) -> Iterator[None]:
    """Check that an OSError with this errno, and this path in it, is raised. Needs no test framework."""
    raised: OSError | None = None
    try:
        yield
    except OSError as error:
        raised = error
    assert raised is not None, f"no OSError was raised where {os.strerror(code)!r} was to come"
    assert raised.errno == code, f"{os.strerror(code)!r} was to come, not: {raised}"
    assert path is None or raised.filename == path, f"the path is {raised.filename!r}, not {path!r}"
