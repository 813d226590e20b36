"""JSON files of the state directory: replaced whole, and set aside where they can't be read."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from workbench.errors import StateError
from workbench.vfs import paths, syscalls

_Model = TypeVar("_Model", bound=BaseModel)


def write_json(path: str, model: BaseModel) -> None:
    """Replace the file at `path` (mode 0600) by the model as JSON: whole or not at all, and on disk when this returns.

    Raises OSError, with the old file in place.
    """
    write_file(path, model.model_dump_json(indent=2).encode() + b"\n")


def write_file(path: str, content: bytes) -> None:
    """As `write_json`, any bytes."""
    directory, name = os.path.split(path)
    dir_fd = os.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        temporary = f".{name}.{secrets.token_hex(8)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o600, dir_fd=dir_fd)
        try:
            with open(fd, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        except BaseException:
            os.unlink(temporary, dir_fd=dir_fd)
            raise
        os.fsync(dir_fd)
    finally:
        os.close(dir_fd)


def make_directory(path: str) -> None:
    """Make a directory for its owner alone, with what is missing above it; one that is there stays. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        try:
            os.mkdir(path, 0o700)
        except FileNotFoundError:
            above = os.path.dirname(path)
            if above in ("", path):
                raise
            make_directory(above)
            os.mkdir(path, 0o700)


def sync_directory(path: str) -> None:
    """Bring a directory's entries onto the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_json(path: str, model: type[_Model]) -> _Model:
    """Read a file that `write_json` wrote.

    Raises FileNotFoundError, OSError, and StateError (state_corrupt) for a file that isn't such a model: it was then
    set aside as `<path>.corrupt-<n>`, so that the next write isn't in its way.
    """
    with open(path, "rb") as file:
        content = file.read()
        inode = os.fstat(file.fileno()).st_ino
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        aside = _set_aside(path, inode)
        if not aside:
            return read_json(path, model)
        raise StateError(
            f"The state file {paths.display(os.fsencode(path))} can't be read.",
            hint=f"It was set aside as {paths.display(os.fsencode(aside))}; what it said is lost to workbench.",
        ) from error


def _set_aside(path: str, inode: int) -> str:
    """Move the file with that inode away; returns where to, or "" where another file has taken its place."""
    directory, name = os.path.split(path)
    dir_fd = os.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        source = os.fsencode(name)
        number = 1
        while True:
            aside = os.fsencode(f"{name}.corrupt-{number}")
            try:
                syscalls.renameat2(dir_fd, source, dir_fd, aside, syscalls.RENAME_NOREPLACE)
            except FileExistsError:
                number += 1
                continue
            except FileNotFoundError:
                return ""
            break
        if os.stat(aside, dir_fd=dir_fd, follow_symlinks=False).st_ino == inode:
            return os.path.join(directory, os.fsdecode(aside))
        # A writer replaced the bad file between our read and our rename: give the good one back unless there's a newer.
        try:
            syscalls.renameat2(dir_fd, aside, dir_fd, source, syscalls.RENAME_NOREPLACE)
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise
            os.unlink(aside, dir_fd=dir_fd)
        return ""
    finally:
        os.close(dir_fd)
