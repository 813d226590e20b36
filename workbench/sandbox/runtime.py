"""Where a keeper's socket is: in a short path of the user's own, with a link to it in the overlay's directory.

A socket's address holds 107 bytes (unix(7)), which a state directory's path can exceed. The link says where it is, so
that clients with another environment find it too.
"""

from __future__ import annotations

import contextlib
import os
import stat

from workbench.errors import StateError

LINK = "keeper"
LOG = "keeper.log"

_SOCKET = "socket"


def socket_directory(overlay_path: str) -> str:
    """Make the directory of an overlay's socket, mode 0700.

    It's `workbench/<12 hex>` in `$XDG_RUNTIME_DIR` where that is the user's own, else `/tmp/workbench-<uid>/<12 hex>`.
    Raises StateError (state_forbidden) where something that isn't the user's own stands there, OSError.
    """
    import hashlib  # only keepers need it

    name = hashlib.sha256(os.fsencode(os.path.realpath(overlay_path))).hexdigest()[:12]
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and os.path.isabs(runtime) and _is_own(runtime):
        base = os.path.join(runtime, "workbench")
    else:
        base = f"/tmp/workbench-{os.geteuid()}"
    directory = os.path.join(base, name)
    for path in (base, directory):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        if not _is_own(path):
            raise StateError(
                f"{path} isn't a directory of your own that only you can enter.",
                code="state_forbidden",
                hint="Look who made it and remove it, or set XDG_RUNTIME_DIR.",
            )
    return directory


def socket_path(overlay_path: str) -> str:
    """Where a new keeper of this overlay listens; its directory is made. Raises as `socket_directory`."""
    return os.path.join(socket_directory(overlay_path), _SOCKET)


def find_socket(overlay_path: str) -> str | None:
    """Where the overlay's keeper listens, if there is or was one."""
    try:
        return os.readlink(os.path.join(overlay_path, LINK))
    except OSError:
        return None


def publish_socket(overlay_path: str, path: str) -> None:
    """Say where the overlay's keeper listens. Only for the holder of the overlay's lock. Raises OSError."""
    forget_socket(overlay_path)
    os.symlink(path, os.path.join(overlay_path, LINK))


def forget_socket(overlay_path: str) -> None:
    """The overlay has no keeper any more. Only for the holder of the overlay's lock. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(overlay_path, LINK))


def remove_socket(overlay_path: str) -> None:
    """Remove the socket of a keeper that is gone. Only for the holder of the overlay's lock. Raises OSError."""
    path = find_socket(overlay_path)
    forget_socket(overlay_path)
    if path is not None and os.path.basename(path) == _SOCKET:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        # It isn't empty where somebody left something there.
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(path))


def _is_own(path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
