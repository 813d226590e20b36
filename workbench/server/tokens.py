"""The token that whoever may ask has: made once, in a file for its owner alone."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat

from workbench.errors import StateError
from workbench.vfs import paths

_FORM = re.compile(r"[A-Za-z0-9._~+/=-]{32,512}")
_HINT = "Remove the file, and the next start makes another."


def token_in(path: str) -> str:
    """The token of a file, which is made where it's missing.

    Raises:
        StateError: state_forbidden where the file isn't ours alone, state_corrupt where what it holds is no token.
        OSError: it can't be read or made.
    """
    try:
        return _read(path)
    except FileNotFoundError:
        _make(path)
        return _read(path)


def _read(path: str) -> str:
    shown = paths.display(os.fsencode(path))
    kind = os.lstat(path).st_mode
    if not stat.S_ISREG(kind):
        what = "symbolic link" if stat.S_ISLNK(kind) else "directory" if stat.S_ISDIR(kind) else "special file"
        raise StateError(
            f"The token file {shown} is a {what}.",
            code="state_forbidden",
            hint="Name the file itself, or one that isn't there yet.",
        )
    # Nothing that took its place since is followed either.
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise StateError(
                f"The token file {shown} isn't a file of yours alone.",
                code="state_forbidden",
                hint=f"Others may have read it. {_HINT}",
            )
        token = file.read(1024).decode("ascii", "replace").strip()
    if not _FORM.fullmatch(token):
        raise StateError(f"The token file {shown} holds no token of 32 characters or more.", hint=_HINT)
    return token


def _make(path: str) -> None:
    # Whole, and never over another's: of two servers that start together, both take what the first one made.
    temporary = f"{path}.{secrets.token_hex(8)}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w") as file:
            file.write(f"{secrets.token_urlsafe(32)}\n")
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)
