"""The change set: what an overlay would change in the real workspace, path by path, under one digest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from workbench.vfs import paths
from workbench.vfs.storage import Kind


class ChangeKind(StrEnum):
    """What happened to a path. `KIND` is a change of kind (a file became a directory); `MODE` of the mode alone."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    MODE = "mode"
    KIND = "kind-changed"
    RENAMED = "renamed"


@dataclass(frozen=True, slots=True)
class State:
    """What stands at a path.

    `blob` is as in `workbench.checkpoints.manifest.Entry`, empty where nobody read the content (a directory, a deleted
    file).
    """

    kind: Kind
    mode: int
    size: int = 0
    blob: str = ""


class Left(StrEnum):
    """Why a changed path never lands, or not unless it's asked for. `SETID` is new setuid or setgid bits alone."""

    SCRATCH = "scratch"
    IGNORED = "ignored"
    REPOSITORY = "repository"
    FIFO = "fifo"
    SOCKET = "socket"
    DEVICE = "device"
    SETID = "setid"
    MOUNT_POINT = "mount-point"
    OMITTED = "omitted"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Change:
    """One changed path.

    `old` is None for what is added, `new` for what is deleted. A rename is one change: `path` is the new name,
    `renamed_from` the old one, `old` and `new` what stood and stands there. `risk` says why the path is risky, empty
    where it isn't. `implied` marks a directory that comes or goes with what is in it: it lands like any other, and no
    listing shows it. `drops_setid` marks a new file or directory whose setuid or setgid bit stays behind: `new.mode` is
    already without it. `similarity` is in percent, of a rename: less than 100 only where it's shown as one (see `similar`).
    """

    path: bytes
    kind: ChangeKind
    old: State | None
    new: State | None
    renamed_from: bytes = b""
    risk: str = ""
    new_executable: bool = False
    drops_setid: bool = False
    implied: bool = False
    similarity: int = 100

    def steps(self) -> Iterator[tuple[bytes, State | None, State | None]]:
        """The single-path steps of this change, each (path, old, new): two for a rename, else one."""
        if self.kind is ChangeKind.RENAMED:
            yield self.renamed_from, self.old, None
            yield self.path, None, self.new
        else:
            yield self.path, self.old, self.new


@dataclass(frozen=True, slots=True)
class Included:
    """What lands although it stays behind by itself, because somebody asked for it: whole classes, and paths with all that
    is below them."""

    classes: frozenset[Left] = frozenset()
    paths: frozenset[bytes] = frozenset()

    CLASSES: ClassVar[tuple[Left, ...]] = (Left.IGNORED, Left.SCRATCH)
    """The classes that can be asked for."""

    def has(self, path: bytes, reason: Left) -> bool:
        """Whether a path that would stay for a reason was asked for, or something below it was."""
        if reason not in self.CLASSES:
            return False
        return reason in self.classes or any(
            path == wanted or paths.is_below(path, wanted) or paths.is_below(wanted, path) for wanted in self.paths
        )


@dataclass(frozen=True, slots=True)
class LeftPath:
    """A changed path that stays in the overlay.

    `count` is how many entries it stands for: of a collapsed directory the upper layer's at and below it, directories
    that hold others not counted.
    """

    path: bytes
    reason: Left
    count: int = 1


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """All changes of one checkpoint, in bytewise order of path, and what stays behind and why.

    `digest` is 64 hex digits over old and new (kind, mode, blob) of every path in `changes`.
    """

    checkpoint: str
    changes: tuple[Change, ...]
    left: tuple[LeftPath, ...]
    digest: str

    @property
    def shown(self) -> tuple[Change, ...]:
        """The changes that a listing shows and a count counts."""
        return tuple(change for change in self.changes if not change.implied)

    @property
    def risky(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.risk)
