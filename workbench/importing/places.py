"""Where the paths that another agent recorded, perhaps on another machine, lie in a workspace."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote

from workbench.vfs import paths

_DRIVE = re.compile(r"[A-Za-z]:[\\/]")


@dataclass(frozen=True, slots=True)
class Places:
    """Where recorded paths lie in a workspace: each directory as recorded, with the path that it's taken for.

    `start` is the recorded directory that relative ones begin at.
    """

    directories: tuple[tuple[str, bytes], ...]
    start: str

    @classmethod
    def of(cls, root: bytes, cwd: str | None, from_dir: str | None) -> Places:
        """`from_dir` stands for the root, by default the session's directory where that isn't in the workspace."""
        here = (os.fsdecode(root), b"")
        if from_dir is not None:
            return cls(((_plain(from_dir), b""),), cwd or from_dir)
        if cwd is None:
            return cls((here,), here[0])
        is_absolute = os.path.isabs(cwd) and "\0" not in cwd
        real = os.path.realpath(os.fsencode(cwd)).strip(b"/") if is_absolute else None
        top = root.strip(b"/")
        if real is not None and (real == top or paths.is_below(real, top)):
            below = b"/".join(paths.parts(real)[len(paths.parts(top)) :])
            return cls(((_plain(cwd), below), here), cwd)
        if real is not None and paths.is_below(top, real) and os.path.isdir(cwd):
            # It was started above the workspace: what is beside that is outside.
            return cls((here,), cwd)
        return cls((here, (_plain(cwd), b"")), cwd)

    def locate(self, recorded: str, directory: str = "") -> bytes | None:
        """The path below the root that is meant, by name alone; None where it leads out."""
        path = _plain(recorded)
        start = self.start if not directory else _joined(self.start, directory)
        names = _names(_joined(start, path))
        for known, below in self.directories:
            base = _names(known)
            if names is None or base is None or names[: len(base)] != base:
                continue
            rest = [*paths.parts(below), *map(_encoded, names[len(base) :])]
            if rest and all(name is not None for name in rest):
                return b"/".join(name for name in rest if name is not None)
        return None


def _plain(path: str) -> str:
    """A path with slashes, whatever it was recorded as."""
    if path.startswith("file://"):
        path = unquote(path.removeprefix("file://"))
    return path.replace("\\", "/") if _DRIVE.match(path) or path.startswith("\\\\") else path


def _joined(directory: str, path: str) -> str:
    path, directory = _plain(path), _plain(directory)
    if path.startswith("/") or _DRIVE.match(path):
        return path
    if _DRIVE.match(directory):
        path = path.replace("\\", "/")
    return f"{directory}/{path}"


def _names(path: str) -> list[str] | None:
    """The components, without `.` and with `..` taken by name; None where that climbs above all, or there's a NUL."""
    names: list[str] = []
    for name in path.split("/"):
        if name == "..":
            if not names:
                return None
            names.pop()
        elif name not in ("", "."):
            names.append(name)
    return None if "\0" in path or names[:1] == ["~"] else names


def _encoded(name: str) -> bytes | None:
    try:
        return os.fsencode(name)
    except UnicodeEncodeError:
        return None
