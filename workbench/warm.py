"""What tells, at the cost of a few system calls, whether a warm sandbox may be used as it is.

Stands on the path of every warm command, so it imports nothing heavy and reads no JSON. Beside an overlay's record lie
`mounted` (written before each mount: which directory the lower was, and what its repository looked like), the mark that
the lower changed (made by whoever notices) and `counted` (how many changes there were in the upper of a certain
signature, and which checkpoint holds it).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from typing import NamedTuple

from workbench.review.pending import pending
from workbench.vfs.changed_mark import clear_changed, is_marked_changed

SESSION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SLUG_CHARACTERS = re.compile(r"[^A-Za-z0-9]+")
_MOUNTED, _COUNTED = "mounted", "counted"
_INDEX_CHECKSUM = 20


class Before(NamedTuple):
    """What an overlay held before a command: its signature, and the commit of a checkpoint of it, empty where there's none."""

    signature: str = ""
    checkpoint: str = ""


NOTHING = Before()


def default_state_path() -> str:
    """`$WORKBENCH_STATE`, else `$XDG_STATE_HOME/workbench`, else `~/.local/state/workbench`."""
    if chosen := os.environ.get("WORKBENCH_STATE"):
        return os.path.abspath(chosen)
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.abspath(os.path.join(base, "workbench"))


def slug(root: bytes) -> str:
    """The beginning of the name of a workspace's directory in the state directory."""
    return _SLUG_CHARACTERS.sub("-", os.fsdecode(os.path.basename(root))).strip("-")[:32] or "workspace"


def find_workspace(named: bytes | None) -> bytes:
    """`named`, else the nearest ancestor of the current directory that has a `.git`, else the current directory."""
    return named if named is not None else workspace_of(os.getcwdb())


def workspace_of(here: bytes) -> bytes:
    """The nearest ancestor of a directory that has a `.git`, else that directory."""
    directory = here
    while not os.path.lexists(os.path.join(directory, b".git")):
        parent = os.path.dirname(directory)
        if parent == directory:
            return here
        directory = parent
    return directory


def find_overlay(root: bytes, session: str) -> str | None:
    """The directory of an overlay whose sandbox, if it is warm, may be used as it is; None where that isn't sure.

    `root` is the real directory, absolute and without symlinks.
    """
    base = os.path.join(os.path.realpath(default_state_path()), "workspaces")
    with contextlib.suppress(OSError):
        for name in os.listdir(base):
            directory = os.path.join(base, name)
            if name.startswith(f"{slug(root)}-") and os.fsencode(os.readlink(os.path.join(directory, "lower"))) == root:
                overlay = os.path.join(directory, "overlays", session)
                if not pending(os.path.join(directory, "commits")) and is_fresh(overlay, root):
                    return overlay
    return None


def note_mounted(overlay_path: str, root: bytes, repository: str) -> None:
    """Say that the overlay is about to be mounted over `root`, whose repository has this fingerprint, as it is now."""
    clear_changed(overlay_path)
    _write(os.path.join(overlay_path, _MOUNTED), f"{_stamp(root)} {repository}")


def is_fresh(overlay_path: str, root: bytes) -> bool:
    """Whether nothing says that the real directory, or its repository, changed since the overlay was last mounted."""
    if is_marked_changed(overlay_path):
        return False
    try:
        stamp, _, repository = _read(os.path.join(overlay_path, _MOUNTED)).partition(" ")
        now = _stamp(root)
    except OSError:
        return False
    if stamp == now:
        return True
    if stamp.partition("-")[0] != now.partition("-")[0] or not _means(root, repository):
        return False
    # A `git status` outside has refreshed what the index knows of times: nothing that anybody inside would miss.
    _write(os.path.join(overlay_path, _MOUNTED), f"{now} {repository}")
    return True


def signature(upper_path: str) -> str:
    """40 hex digits that change with anything in an upper layer: names, inodes, sizes, modes, change times."""
    found = hashlib.sha1(usedforsecurity=False)
    waiting = [os.open(upper_path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)]
    try:
        while waiting:
            fd = waiting.pop()
            try:
                for name in sorted(os.listdir(fd)):
                    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    fields = (status.st_ino, status.st_size, status.st_mode, status.st_ctime_ns)
                    found.update(os.fsencode(name) + b"\0%d %d %d %d\0" % fields)
                    if status.st_mode & 0o170000 == 0o040000:
                        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                        waiting.append(os.open(name, flags, dir_fd=fd))
            finally:
                os.close(fd)
    finally:
        for fd in waiting:
            os.close(fd)
    return found.hexdigest()


def counted(overlay_path: str) -> tuple[str, int | None, str]:
    """The signature of the upper layer; how many changes it had when that was last noted, if it was; and the commit of the
    checkpoint that holds it, empty where none is known.

    The signature is empty where the layer can't be read.
    """
    try:
        now = signature(os.path.join(overlay_path, "upper"))
    except OSError:
        # Also where it changes under the look.
        return "", None, ""
    known, number, checkpoint, _ = _noted(overlay_path)
    return (now, number, checkpoint) if known == now else (now, None, "")


def unwritten(overlay_path: str, written: str) -> Before:
    """What the overlay held when its keeper last said so of what was `written`; `NOTHING` where it says another by now.

    As `counted`, without a look at the layer.
    """
    known, _, checkpoint, noted = _noted(overlay_path)
    return Before(known, checkpoint) if written and noted == written else NOTHING


def note_counted(overlay_path: str, now: str, changes: int, checkpoint: str, written: str = "") -> None:
    """Remember how many changes the upper layer of a signature has, and the checkpoint that holds it.

    `written` is what its keeper said before the layer was looked at.
    """
    if now:
        _write(os.path.join(overlay_path, _COUNTED), f"{now} {changes} {checkpoint} {written}")


def _noted(overlay_path: str) -> tuple[str, int | None, str, str]:
    try:
        known, number, checkpoint, written = _read(os.path.join(overlay_path, _COUNTED)).split(" ")
        return known, int(number), checkpoint, written
    except (OSError, ValueError):
        return "", None, "", ""


def _stamp(root: bytes) -> str:
    """Which directory this is (a mount pins the inode, so its number isn't reused), and where its repository stands."""
    status = os.stat(root)
    found = hashlib.sha1(usedforsecurity=False)
    git = _git_directory(root)
    head = _content(os.path.join(git, b"HEAD"))
    found.update(head)
    common = os.path.join(git, _content(os.path.join(git, b"commondir")).strip() or b".")
    if head.startswith(b"ref: "):
        found.update(_content(os.path.join(common, head.removeprefix(b"ref: ").strip())))
    found.update(_content(os.path.join(git, b"index"), tail=_INDEX_CHECKSUM))
    for path in (os.path.join(common, b"packed-refs"), os.path.join(common, b"refs", b"heads")):
        with contextlib.suppress(OSError):
            found.update(b"%d" % os.stat(path).st_mtime_ns)
    return f"{status.st_dev}:{status.st_ino}-{found.hexdigest()}"


def _means(root: bytes, repository: str) -> bool:
    """Whether the repository of a directory has this fingerprint; empty stands for none."""
    from workbench.errors import WorkspaceError
    from workbench.review.repository import fingerprint
    from workbench.vfs.local import LocalStorage

    try:
        with LocalStorage(root) as lower:
            return fingerprint(lower) == repository
    except (OSError, WorkspaceError):
        return False


def _git_directory(root: bytes) -> bytes:
    path = os.path.join(root, b".git")
    content = _content(path)
    if content.startswith(b"gitdir: "):
        return os.path.join(root, content.removeprefix(b"gitdir: ").strip())
    return path


def _content(path: bytes, tail: int = 0) -> bytes:
    """A regular file's content, or its last bytes; empty where there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        size = os.fstat(fd).st_size
        return os.pread(fd, tail or 1 << 16, max(0, size - tail) if tail else 0)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _read(path: str) -> str:
    # A file that was damaged says something else than was written, and never stops anything.
    with open(path, encoding="ascii", errors="replace") as stream:
        return stream.read()


def _write(path: str, content: str) -> None:
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="ascii") as stream:
        stream.write(content)
    os.rename(temporary, path)
