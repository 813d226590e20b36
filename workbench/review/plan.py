"""The plan of a commit: the fewest operations that turn the workspace into what was reviewed, in an order that works."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from workbench.checkpoints.manifest import Base, Certainty, Manifest
from workbench.errors import CommitError, OptionsError
from workbench.review.bases import Examination, Step, is_mode_alone
from workbench.review.changeset import State
from workbench.review.journal import Action, Operation
from workbench.review.names import folded, is_git
from workbench.review.nearest import Nearest
from workbench.review.staging import colliding
from workbench.vfs import paths
from workbench.vfs.local import LocalStorage
from workbench.vfs.storage import Kind

_SETID = 0o6000
_LANDING_KINDS = (Kind.FILE, Kind.DIR, Kind.SYMLINK)
_WRITABLE = 0o200
_OWNER_ALL = 0o700


def check_landable(steps: Mapping[bytes, Step], mount_points: Collection[bytes]) -> None:
    """Refuse what never lands, whoever made the change set: the last line before the real workspace.

    Raises CommitError (not_landable), which names the first such path.
    """
    for path, (old, new) in steps.items():
        why = _why_not(path, old, new, mount_points)
        if why:
            raise CommitError(
                f"'{paths.display(path)}' can't land: {why}; nothing was applied.",
                code="not_landable",
                hint="Leave that path out of the commit.",
            )


def check_complete(missing: Collection[bytes]) -> None:
    """Refuse a selection that lacks what it depends on. Raises CommitError (not_landable), which names the first."""
    if missing:
        raise CommitError(
            f"The commit lacks '{paths.display(min(missing))}', which other paths in it depend on; nothing was applied.",
            code="not_landable",
            hint="Commit that path as well.",
        )


def check_names(root: LocalStorage, operations: Iterable[Operation], manifest: Manifest) -> None:
    """Refuse to delete what the overlay has under a name that this filesystem takes for the same one.

    Where upper and lower case are one, a file that was renamed from the one to the other looks unchanged under its new name.
    Raises CommitError (not_landable), OSError.
    """
    deleted = [operation.path for operation in operations if operation.action is Action.DELETE]
    if not deleted:
        return
    standing: dict[tuple[bytes, str], list[bytes]] = {}
    for path, entry in manifest.entries.items():
        if entry.kind is not Kind.WHITEOUT:
            standing.setdefault((paths.parent(path), folded(paths.name(path))), []).append(path)
    for path in deleted:
        for other in standing.get((paths.parent(path), folded(paths.name(path))), ()):
            is_there = other != path and root.identify(other) is not None
            if is_there and paths.name(other) not in root.list(paths.parent(other)):
                raise colliding(other)


def _why_not(path: bytes, old: State | None, new: State | None, mount_points: Collection[bytes]) -> str:
    names = paths.parts(path)
    if any(is_git(name) for name in names):
        return "a repository never lands as files"
    if any(path == mount or paths.is_below(path, mount) or paths.is_below(mount, path) for mount in mount_points):
        return "another filesystem is mounted there"
    if any(state is not None and state.kind not in _LANDING_KINDS for state in (old, new)):
        return "only files, directories and symbolic links land"
    if new is not None and new.kind is Kind.FILE and new.mode & _SETID:
        return "setuid and setgid bits never land"
    if new is not None and new.kind is not Kind.DIR and not new.blob:
        return "its content wasn't kept"
    return ""


@dataclass(slots=True)
class _Top:
    action: Action
    path: bytes
    old: list[Base] = field(default_factory=list)
    new: list[tuple[bytes, State]] = field(default_factory=list)
    old_mode: int = 0
    new_mode: int = 0


def operations_of(examination: Examination) -> tuple[Operation, ...]:
    """The operations for every step that isn't satisfied yet.

    A tree that comes, goes or changes its kind is one operation. Directories are opened up first and closed last; new
    names come before deletions. Raises OptionsError (invalid_options) for steps that contradict each other.
    """
    tops: dict[bytes, _Top] = {}
    trees: Nearest[_Top] = Nearest()
    modes: list[_Top] = []
    for path, (old, new) in examination.steps.items():
        if path in examination.satisfied:
            continue
        base = examination.bases[path]
        above = trees.above(path)
        if above is not None:
            _join(above, path, base, old, new)
        elif new is not None and is_mode_alone(old, new) and path not in examination.linked:
            modes.append(_Top(Action.MODE, path, [base], [], base.mode, new.mode))
        else:
            action = Action.CREATE if old is None else Action.DELETE if new is None else Action.REPLACE
            tops[path] = _Top(action, path, [] if old is None else [base], [] if new is None else [(path, new)])
            trees[path] = tops[path]
    if os.geteuid() != 0:
        modes.extend(extra for step in tops.values() for extra in _made_movable(step))
    return _numbered(tops, modes)


def _join(top: _Top, path: bytes, base: Base, old: State | None, new: State | None) -> None:
    """Let a step below a tree that comes or goes become part of it."""
    comes = bool(top.new) and top.new[0][1].kind is Kind.DIR
    goes = bool(top.old) and top.old[0].kind is Kind.DIR
    if (old is not None and not goes) or (new is not None and not comes):
        raise OptionsError(
            f"The change of '{paths.display(path)}' contradicts the one of '{paths.display(top.path)}' above it."
        )
    if old is not None:
        top.old.append(base)
    if new is not None:
        top.new.append((path, new))


def _made_movable(step: _Top) -> list[_Top]:
    """The mode changes around moving a directory that its owner may not write to, which only root can move as it is."""
    extra = []
    if step.old and step.old[0].kind is Kind.DIR and not step.old[0].mode & _WRITABLE:
        base = step.old[0]
        opened = base.mode | _OWNER_ALL
        extra.append(_Top(Action.MODE, step.path, [base], [], base.mode, opened))
        step.old[0] = base._replace(mode=opened)
    if step.new and step.new[0][1].kind is Kind.DIR and not step.new[0][1].mode & _WRITABLE:
        path, state = step.new[0]
        opened = state.mode | _OWNER_ALL
        made = Base(path, Certainty.KNOWN, Kind.DIR, opened)
        extra.append(_Top(Action.MODE, path, [made], [], opened, state.mode))
        step.new[0] = (path, replace(state, mode=opened))
    return extra


def _numbered(tops: Mapping[bytes, _Top], modes: list[_Top]) -> tuple[Operation, ...]:
    def opens(step: _Top) -> bool:
        return bool(step.new_mode & ~step.old_mode & _OWNER_ALL) and not step.old_mode & ~step.new_mode & _OWNER_ALL

    opening = sorted((step for step in modes if opens(step)), key=lambda step: step.path)
    closing = sorted((step for step in modes if not opens(step)), key=lambda step: step.path, reverse=True)
    coming = sorted((step for step in tops.values() if step.action is not Action.DELETE), key=lambda step: step.path)
    going = sorted((step for step in tops.values() if step.action is Action.DELETE), key=lambda step: step.path)
    return tuple(
        Operation(number, step.action, step.path, tuple(step.old), tuple(step.new), step.old_mode, step.new_mode)
        for number, step in enumerate([*opening, *coming, *going, *closing])
    )
