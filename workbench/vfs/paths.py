"""Paths inside a layer: bytes relative to a root, split at `/`, compared by component, opened without any symlink."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator

from workbench.errors import OptionsError
from workbench.vfs import syscalls
from workbench.vfs.storage import Kind

MAX_LINKS = 40
"""How many symlinks one resolution follows: the kernel's MAXSYMLINKS (`include/linux/namei.h`)."""

_PATH_MAX = 4096
_CODES = {
    errno.EACCES: "not_permitted",
    errno.EBUSY: "busy",
    errno.EDQUOT: "disk_full",
    errno.EEXIST: "already_exists",
    errno.EINVAL: "invalid",
    errno.EISDIR: "is_a_directory",
    errno.ELOOP: "is_a_symlink",
    errno.ENAMETOOLONG: "name_too_long",
    errno.ENODATA: "no_such_attribute",
    errno.ENOENT: "not_found",
    errno.ENOSPC: "disk_full",
    errno.ENOTDIR: "not_a_directory",
    errno.ENOTEMPTY: "not_empty",
    errno.ENOTSUP: "not_supported",
    errno.EPERM: "not_permitted",
    errno.EROFS: "read_only",
    errno.ESTALE: "changed_meanwhile",
    errno.EXDEV: "leads_out",
}
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}


def parts(path: bytes) -> tuple[bytes, ...]:
    """The components of a relative path, none for the root (`b""`).

    Raises OptionsError (invalid_options) for an absolute path, a component that is empty, `.` or `..`, and for NUL.
    """
    if not path:
        return ()
    names = tuple(path.split(b"/"))
    if b"\0" in path or b"" in names or b"." in names or b".." in names:
        raise OptionsError(
            f"'{display(path)}' isn't a path inside the workspace.",
            hint="Give a path relative to the workspace's root, without '.' and '..' components.",
        )
    return names


def join(*pieces: bytes) -> bytes:
    """Join relative paths; empty ones (the root) add nothing. Raises OptionsError as `parts`."""
    return b"/".join(name for piece in pieces for name in parts(piece))


def child(path: bytes, name: bytes) -> bytes:
    """The path of an entry in a directory, by a name that a listing gave: it isn't looked at again."""
    return path + b"/" + name if path else name


def parent(path: bytes) -> bytes:
    """The path of the directory that holds `path`; the root's is the root. Raises OptionsError as `parts`."""
    return b"/".join(parts(path)[:-1])


def name(path: bytes) -> bytes:
    """The last component, `b""` for the root. Raises OptionsError as `parts`."""
    names = parts(path)
    return names[-1] if names else b""


def is_below(path: bytes, ancestor: bytes) -> bool:
    """Whether `path` lies strictly below `ancestor`, by components. Raises OptionsError as `parts`."""
    above = parts(ancestor)
    names = parts(path)
    return len(names) > len(above) and names[: len(above)] == above


def display(path: bytes) -> str:
    """A path for people to read: one line that can be printed anywhere, and no two paths alike.

    Control, format and other invisible characters come as `\\n` or `\\u202e`, bytes that aren't UTF-8 as `\\xff`, a
    backslash as two.
    """
    shown = []
    for character in path.decode("utf-8", "surrogateescape"):
        code = ord(character)
        if character in _ESCAPES:
            shown.append(_ESCAPES[character])
        elif 0xDC80 <= code <= 0xDCFF:
            shown.append(f"\\x{code - 0xDC00:02x}")
        elif character.isprintable():
            shown.append(character)
        else:
            shown.append(f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}")
    return "".join(shown)


def error(number: int, path: bytes, why: str = "") -> OSError:
    """The OSError subclass for an errno, with the path in it, and a stable `code` as errors of our own have."""
    raised = OSError(number, why or os.strerror(number), path)
    vars(raised)["code"] = _CODES.get(number, "system_error")
    return raised


def _pieces(names: tuple[bytes, ...]) -> Iterator[bytes]:
    piece: list[bytes] = []
    length = 0
    for component in names:
        # The kernel counts the closing NUL.
        if piece and length + len(component) + 1 >= _PATH_MAX:
            yield b"/".join(piece)
            piece, length = [], 0
        piece.append(component)
        length += len(component) + 1
    yield b"/".join(piece)


def open_below(root_fd: int, path: bytes, flags: int, mode: int = 0) -> int:
    """Open a path below a directory, following no symlink and crossing no mount; it may be longer than PATH_MAX.

    `flags` are `os.O_*`; O_NOFOLLOW and O_CLOEXEC are added. Returns a file descriptor that the caller closes. Raises
    OptionsError as `parts`, and OSError with the path: NotADirectoryError also where a symlink stands in the way, ELOOP
    where the last component is one (and `flags` lack O_PATH), EXDEV at or below a mount point.
    """
    names = parts(path)
    if not names:
        return _open_again(root_fd, flags)
    if len(path) < _PATH_MAX:
        try:
            return syscalls.openat2(root_fd, path, flags | os.O_NOFOLLOW, mode)
        except OSError as failure:
            if failure.errno != errno.ELOOP:
                raise error(failure.errno or errno.EIO, path) from failure
        try:
            return _open_piece(root_fd, path, flags | os.O_NOFOLLOW, mode)
        except OSError as failure:
            raise error(failure.errno or errno.EIO, path) from failure
    here = root_fd
    pieces = list(_pieces(names))
    try:
        for position, piece in enumerate(pieces, start=1):
            last = position == len(pieces)
            step = flags | os.O_NOFOLLOW if last else os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
            try:
                below = _open_piece(here, piece, step, mode if last else 0)
            except OSError as failure:
                raise error(failure.errno or errno.EIO, path) from failure
            if here != root_fd:
                os.close(here)
            here = below
    except OSError:
        if here != root_fd:
            os.close(here)
        raise
    return here


def _open_again(fd: int, flags: int) -> int:
    try:
        return syscalls.openat2(fd, b".", flags)
    except OSError as failure:
        if failure.errno != errno.EACCES:
            raise error(failure.errno or errno.EIO, b"") from failure
    # Even "." can't be looked up in a directory that may not be entered; its own descriptor leads to it all the same.
    try:
        return os.open(b"/proc/self/fd/%d" % fd, (flags | os.O_CLOEXEC) & ~os.O_NOFOLLOW)
    except OSError as failure:
        raise error(failure.errno or errno.EIO, b"") from failure


def _open_piece(dir_fd: int, piece: bytes, flags: int, mode: int) -> int:
    try:
        return syscalls.openat2(dir_fd, piece, flags, mode)
    except OSError as failure:
        if failure.errno != errno.ELOOP:
            raise
        # The kernel says ELOOP for a symlink anywhere; in the middle it's "not a directory" to us.
        if flags & os.O_PATH:
            raise error(errno.ENOTDIR, piece) from failure
        above, slash, last = piece.rpartition(b"/")
        if not slash:
            raise
    # Which of the two it was is only told by two steps: a look at the path again could meet another file.
    above_fd = _open_piece(dir_fd, above, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, 0)
    try:
        return syscalls.openat2(above_fd, last, flags, mode)
    finally:
        os.close(above_fd)


def resolve(path: bytes, kind: Callable[[bytes], Kind], readlink: Callable[[bytes], bytes]) -> bytes:
    """Follow every symlink in `path`, the last one too, inside the root.

    `kind` and `readlink` answer for one path that holds no symlink before its last component. Returns a path without
    symlinks. Raises what they raise, NotADirectoryError, and OSError with the path: ELOOP after 40 links, EXDEV for an
    absolute target or one that climbs above the root.
    """
    waiting = list(reversed(parts(path)))
    resolved: list[bytes] = []
    at = Kind.DIR
    links = 0
    while waiting:
        component = waiting.pop()
        if at is not Kind.DIR:
            raise error(errno.ENOTDIR, path)
        if component in (b"", b"."):
            continue
        if component == b"..":
            if not resolved:
                raise error(errno.EXDEV, path)
            resolved.pop()
            continue
        here = b"/".join((*resolved, component))
        found = kind(here)
        if found is not Kind.SYMLINK:
            resolved.append(component)
            at = found
            continue
        links += 1
        if links > MAX_LINKS:
            raise error(errno.ELOOP, path)
        target = readlink(here)
        if target.startswith(b"/"):
            raise error(errno.EXDEV, path)
        waiting.extend(reversed(target.split(b"/")))
    return b"/".join(resolved)
