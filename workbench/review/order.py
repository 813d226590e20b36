"""The order that a person reviews changes in: what could do harm first, then what was written, last what tools wrote."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from enum import IntEnum

from workbench.review.changeset import Change
from workbench.review.names import folded

_TEST_DIRECTORIES = frozenset({"test", "tests", "__tests__", "spec", "specs", "testdata", "fixtures"})
_TEST_NAMES = ("test_*", "*_test.*", "*.test.*", "*_spec.*", "*.spec.*", "conftest.py")
_LOCKS = frozenset(
    {
        "cargo.lock",
        "composer.lock",
        "flake.lock",
        "gemfile.lock",
        "go.sum",
        "mix.lock",
        "npm-shrinkwrap.json",
        "package-lock.json",
        "pdm.lock",
        "pipfile.lock",
        "pnpm-lock.yaml",
        "poetry.lock",
        "pubspec.lock",
        "uv.lock",
        "yarn.lock",
    }
)
_GENERATED = ("*.min.js", "*.min.css", "*.map", "*_pb2.py", "*_pb2.pyi", "*.pb.go", "*.snap", "*.generated.*")


class Group(IntEnum):
    """What a change is to whoever reviews it, most pressing first."""

    RISKY = 0
    SOURCE = 1
    TEST = 2
    LOCK = 3
    GENERATED = 4


def group_of(change: Change) -> Group:
    """By risk, else by the names that tests, lock files and generated files go by."""
    if change.risk:
        return Group.RISKY
    *above, name = (folded(part) for part in change.path.split(b"/"))
    if name in _LOCKS:
        return Group.LOCK
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in _GENERATED):
        return Group.GENERATED
    if _TEST_DIRECTORIES.intersection(above) or any(fnmatch.fnmatchcase(name, pattern) for pattern in _TEST_NAMES):
        return Group.TEST
    return Group.SOURCE


def is_folded(change: Change) -> bool:
    """Whether nobody reads the lines of a change unless asked to: a tool wrote them."""
    return group_of(change) in (Group.LOCK, Group.GENERATED)


def in_order(changes: Iterable[Change]) -> list[Change]:
    """The changes by group, and in each by path."""
    return sorted(changes, key=lambda change: (group_of(change), change.path))
