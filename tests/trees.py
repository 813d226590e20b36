"""Trees to make, and trees to compare byte for byte."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import NamedTuple


class Node(NamedTuple):
    """What two trees are compared by; times are 0 where they don't count."""

    kind: int
    mode: int
    content: str
    mtime_ns: int = 0
    ctime_ns: int = 0


def snapshot(root: str | bytes | Path, *, times: bool = True, skip: tuple[bytes, ...] = ()) -> dict[bytes, Node]:
    """Every path below a directory, and the directory itself as `b""`; `skip` leaves out top-level names."""
    top = os.fsencode(root)
    found = {b"": _node(top, times)}
    pending = [b""]
    while pending:
        directory = pending.pop()
        for name in sorted(os.listdir(os.path.join(top, directory))):
            path = os.path.join(directory, name)
            if path in skip:
                continue
            found[path] = _node(os.path.join(top, path), times)
            if stat.S_ISDIR(found[path].kind):
                pending.append(path)
    return found


def _node(path: bytes, times: bool) -> Node:
    status = os.lstat(path)
    kind = stat.S_IFMT(status.st_mode)
    content = ""
    if stat.S_ISREG(kind):
        with open(path, "rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
    elif stat.S_ISLNK(kind):
        content = os.fsdecode(os.readlink(path))
    mode = 0o777 if stat.S_ISLNK(kind) else stat.S_IMODE(status.st_mode)
    return Node(kind, mode, content, *((status.st_mtime_ns, status.st_ctime_ns) if times else ()))


def make_tree(root: Path) -> None:
    """A small project: two levels, an executable, a symlink, an empty file, a .gitignore."""
    (root / "src" / "deep").mkdir(parents=True)
    (root / "docs").mkdir()
    (root / "README.md").write_text("# project\n")
    (root / "run.sh").write_text("#!/bin/sh\necho hello\n")
    (root / "tool.sh").write_text("#!/bin/sh\necho tool\n")
    (root / "tool.sh").chmod(0o755)
    (root / "src" / "main.py").write_text("print('one')\nprint('two')\n")
    (root / "src" / "deep" / "leaf.txt").write_text("leaf\n")
    (root / "docs" / "guide.md").write_text("guide\n" * 5)
    (root / "docs" / "index.md").write_text("index\n")
    (root / "empty").touch()
    (root / "link").symlink_to("README.md")
    (root / ".gitignore").write_text("build/\n*.log\n__pycache__/\n")
