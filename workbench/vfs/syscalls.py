"""The few Linux calls that Python lacks, and copying that keeps holes. The only module that uses ctypes.

Struct layouts and numbers are those of the kernel's `include/uapi`: `linux/openat2.h`, `linux/fs.h`, `linux/stat.h`,
`linux/fcntl.h`, and the system call tables of each architecture.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import struct
from collections.abc import Callable, Iterator
from functools import cache, lru_cache

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_CONFINED = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV
"""No `..` out, no symlink of any kind, no mount point."""

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
RENAME_WHITEOUT = 4

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_STATX_BTIME = 0x800
_MAX_HANDLE_SIZE = 128
_FICLONE = 0x40049409
_MAKING = os.O_CREAT | os.O_TMPFILE
_COPY_CHUNK = 1 << 20
_COPY_RANGE_CHUNK = 1 << 30

_OPENAT2 = 437
"""The same on every architecture, as all calls newer than Linux 5.1."""

# renameat2, name_to_handle_at, statx
_GENERIC = (276, 264, 291)
_NUMBERS = {
    "x86_64": (316, 303, 332),
    "aarch64": _GENERIC,
    "riscv64": _GENERIC,
    "loongarch64": _GENERIC,
    "ppc64le": (357, 345, 383),
    "s390x": (347, 335, 379),
}


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_HOW_SIZE = ctypes.sizeof(_OpenHow)


class _FileHandle(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint),
        ("type", ctypes.c_int),
        ("data", ctypes.c_ubyte * _MAX_HANDLE_SIZE),
    )


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


@cache
def _number(index: int) -> int:
    # A 32-bit process on a 64-bit kernel has another table.
    if struct.calcsize("P") != 8 or platform.machine() not in _NUMBERS:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return _NUMBERS[platform.machine()][index]


def _call(number: int, *arguments: object) -> int:
    while True:
        result = int(_libc().syscall(ctypes.c_long(number), *arguments))
        if result >= 0:
            return result
        code = ctypes.get_errno()
        # Python's own wrappers retry as well (PEP 475); a signal handler has run by then.
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


def _name(name: bytes) -> ctypes.c_char_p:
    if b"\0" in name:
        raise ValueError("embedded null byte")
    return ctypes.c_char_p(name)


def _declared(*arguments: type) -> Callable[..., int]:
    """`syscall` for one call's arguments after the number and a directory: with declared types it costs half."""
    function = ctypes.CDLL(None, use_errno=True)["syscall"]
    function.restype = ctypes.c_long
    function.argtypes = (ctypes.c_long, ctypes.c_long, *arguments)
    return function


@cache
def _openat2_function() -> Callable[..., int]:
    # Every access to a layer is one of these.
    return _declared(ctypes.c_char_p, ctypes.POINTER(_OpenHow), ctypes.c_size_t)


@cache
def _handle_function() -> Callable[..., int]:
    # As often as the former where a commit compares what stands with what stood.
    return _declared(ctypes.c_char_p, ctypes.POINTER(_FileHandle), ctypes.POINTER(ctypes.c_int), ctypes.c_long)


@lru_cache(maxsize=256)
def _how(flags: int, mode: int, resolve: int) -> _OpenHow:
    return _OpenHow(flags | os.O_CLOEXEC, mode, resolve)


@cache
def _has_openat2() -> bool:
    found = _openat2_function()(_OPENAT2, _AT_FDCWD, b"/", _how(os.O_PATH, 0, 0), _HOW_SIZE)
    if found >= 0:
        os.close(found)
        return True
    code = ctypes.get_errno()
    # EPERM: a seccomp filter that doesn't know the call.
    if code in (errno.ENOSYS, errno.EPERM):
        return False
    raise OSError(code, os.strerror(code))


def openat2(dir_fd: int, path: bytes, flags: int, mode: int = 0, resolve: int = RESOLVE_CONFINED) -> int:
    """Open `path` relative to `dir_fd` with the kernel's own restrictions on how it's resolved.

    `flags` are `os.O_*` (O_CLOEXEC is added), `mode` counts with O_CREAT only, `resolve` are RESOLVE_* bits. Where the
    kernel or a filter lacks the call, the path is walked component by component: no symlink is followed, and `..` is
    refused, whatever `resolve` says. Returns a file descriptor that the caller closes. Raises OSError: ELOOP for a
    symlink (ENOTDIR from the walk), EXDEV for a mount point or a way out, and whatever open(2) raises.
    """
    if not _has_openat2():
        return _walk(dir_fd, path, flags, mode, same_mount=bool(resolve & RESOLVE_NO_XDEV))
    if b"\0" in path:
        raise ValueError("embedded null byte")
    how = _how(flags, mode if flags & _MAKING else 0, resolve)
    while True:
        result = _openat2_function()(_OPENAT2, dir_fd, path, how, _HOW_SIZE)
        if result >= 0:
            return result
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


def _walk(dir_fd: int, path: bytes, flags: int, mode: int, *, same_mount: bool) -> int:
    names = [name for name in path.split(b"/") if name not in (b"", b".")]
    if path.startswith(b"/") or b".." in names:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    mount = mount_id(dir_fd) if same_mount else 0
    here = dir_fd
    try:
        for position, name in enumerate(names or [b"."], start=1):
            last = position >= len(names)
            step = flags if last else os.O_PATH | os.O_DIRECTORY
            below = os.open(name, step | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=here)
            if here != dir_fd:
                os.close(here)
            here = below
            if same_mount and mount_id(here) != mount:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    except OSError:
        if here != dir_fd:
            os.close(here)
        raise
    return here


def mount_id(fd: int) -> int:
    """The id of the mount that `fd` was opened on (proc(5), `/proc/self/fdinfo`). Raises OSError without /proc."""
    with open(f"/proc/self/fdinfo/{fd}", "rb") as info:
        for line in info:
            if line.startswith(b"mnt_id:"):
                return int(line.split()[1])
    raise OSError(errno.ENOSYS, "/proc/self/fdinfo has no mnt_id")


def renameat2(src_dir_fd: int, src: bytes, dst_dir_fd: int, dst: bytes, flags: int = 0) -> None:
    """Rename `src` to `dst`, each relative to its directory; `flags` are RENAME_* bits.

    Neither name is followed if it's a symlink. Raises OSError: EEXIST where RENAME_NOREPLACE finds something, EINVAL or
    ENOSYS where the filesystem or the kernel lacks the flag, and whatever rename(2) raises.
    """
    _call(
        _number(0),
        ctypes.c_long(src_dir_fd),
        _name(src),
        ctypes.c_long(dst_dir_fd),
        _name(dst),
        ctypes.c_long(flags),
    )


def file_handle(dir_fd: int, name: bytes = b"") -> bytes:
    """What names an inode for as long as it exists, also over reboots: name_to_handle_at(2).

    `name` is relative to `dir_fd` and never followed; empty means `dir_fd` itself, which may be an O_PATH descriptor.
    Returns the handle's type (4 bytes, big-endian) and its bytes; `b""` where the filesystem has no handles or a
    filter forbids the call. Raises OSError.
    """
    if b"\0" in name:
        raise ValueError("embedded null byte")
    handle = _FileHandle(size=_MAX_HANDLE_SIZE)
    mount = ctypes.c_int()
    flags = 0 if name else _AT_EMPTY_PATH
    try:
        while _handle_function()(_number(1), dir_fd, name, handle, mount, flags) < 0:
            code = ctypes.get_errno()
            if code != errno.EINTR:
                raise OSError(code, os.strerror(code))
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.EOVERFLOW):
            return b""
        raise
    return struct.pack(">i", handle.type) + bytes(handle.data[: handle.size])


def birth_ns(fd: int) -> int:
    """When the inode behind `fd` (O_PATH will do) was made, in ns; 0 where kernel or filesystem doesn't say."""
    buffer = ctypes.create_string_buffer(256)
    try:
        _call(
            _number(2),
            ctypes.c_long(fd),
            _name(b""),
            ctypes.c_long(_AT_EMPTY_PATH),
            ctypes.c_long(_STATX_BTIME),
            ctypes.byref(buffer),
        )
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            return 0
        raise
    (mask,) = struct.unpack_from("=I", buffer, 0)
    if not mask & _STATX_BTIME:
        return 0
    seconds, nanoseconds = struct.unpack_from("=qI", buffer, 80)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)


def filesystem_type(fd: int) -> int:
    """The magic number of the filesystem behind `fd` (statfs(2)), such as 0xEF53 for ext4. Raises OSError."""
    buffer = ctypes.create_string_buffer(256)
    if _libc().fstatfs(ctypes.c_int(fd), ctypes.byref(buffer)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(struct.unpack_from("=I" if platform.machine() == "s390x" else "@L", buffer, 0)[0])


def syncfs(fd: int) -> None:
    """Bring everything written to the filesystem behind `fd` onto the disk: syncfs(2). Raises OSError."""
    if _libc().syncfs(ctypes.c_int(fd)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def data_extents(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Where a file of `size` bytes holds data: (offset, length) in bytes, ascending. Moves the descriptor's offset.

    A filesystem that doesn't know holes has one extent. Raises OSError.
    """
    offset = 0
    while offset < size:
        try:
            start = os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            if error.errno == errno.EINVAL:
                yield offset, size - offset
                return
            raise
        if start >= size:
            return
        end = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        # The file may have been cut short meanwhile: SEEK_HOLE then answers with an end before the start.
        if end <= start:
            return
        yield start, end - start
        offset = end


def holes(fd: int, size: int) -> list[tuple[int, int]]:
    """The holes of a file of `size` bytes: (offset, length) in bytes, ascending. Moves the descriptor's offset.

    Raises OSError.
    """
    found = []
    offset = 0
    for start, length in data_extents(fd, size):
        if start > offset:
            found.append((offset, start - offset))
        offset = start + length
    if offset < size:
        found.append((offset, size - offset))
    return found


def copy_data(src_fd: int, dst_fd: int) -> int:
    """Copy a whole regular file into an empty one, by reference where the filesystem can, and with its holes.

    Both descriptors' offsets move. Returns the number of bytes that the copy has. Raises OSError.
    """
    try:
        fcntl.ioctl(dst_fd, _FICLONE, src_fd)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM):
            raise
    else:
        return os.fstat(dst_fd).st_size
    size = os.fstat(src_fd).st_size
    for offset, length in data_extents(src_fd, size):
        if not _copy_extent(src_fd, dst_fd, offset, length):
            # The source was cut short: the copy ends where the source does now.
            size = min(size, os.fstat(src_fd).st_size)
            break
    os.ftruncate(dst_fd, size)
    return size


def _copy_extent(src_fd: int, dst_fd: int, offset: int, length: int) -> bool:
    end = offset + length
    while offset < end:
        try:
            count = os.copy_file_range(src_fd, dst_fd, min(end - offset, _COPY_RANGE_CHUNK), offset, offset)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
                raise
            break
        # Some filesystems answer 0 for what only read(2) can give.
        if count == 0:
            break
        offset += count
    while offset < end:
        data = os.pread(src_fd, min(end - offset, _COPY_CHUNK), offset)
        if not data:
            return False
        written = 0
        while written < len(data):
            written += os.pwrite(dst_fd, data[written:], offset + written)
        offset += len(data)
    return True
