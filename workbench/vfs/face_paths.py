"""Paths between an overlay, where they are bytes and symlinks aren't followed, and its faces, where neither is so."""

from __future__ import annotations

import errno
import posixpath

from workbench.errors import OptionsError
from workbench.vfs import paths
from workbench.vfs.overlay import Overlay
from workbench.vfs.storage import Kind


def encode(path: str) -> bytes:
    """A face's path as an overlay's. Raises OptionsError where it holds what no name holds."""
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise OptionsError(
            f"{path!r} holds a surrogate that stands for no byte.",
            hint="Names are text, or bytes decoded with os.fsdecode.",
        ) from error


def decode(path: bytes) -> str:
    """An overlay's path as a face's: UTF-8, with surrogate escapes for what isn't."""
    return path.decode("utf-8", "surrogateescape")


def entry(overlay: Overlay, path: bytes) -> bytes:
    """Where an entry stands: `path` with every symlink before its last component followed, inside the overlay.

    A parent that isn't there is left as it is. Raises as `Overlay.resolve`.
    """
    above = paths.parent(path)
    try:
        if overlay.stat(above).kind is Kind.DIR:
            return path
    except FileNotFoundError:
        return path
    except NotADirectoryError:
        # A symlink further up, or a file: resolving tells.
        pass
    return paths.join(overlay.resolve(above), paths.name(path))


def target(overlay: Overlay, path: bytes) -> bytes:
    """As `entry`, with the last component followed too, where it's there."""
    try:
        kind = overlay.stat(path).kind
    except FileNotFoundError:
        return path
    except NotADirectoryError:
        path = entry(overlay, path)
        if not overlay.exists(path):
            return path
        kind = overlay.stat(path).kind
    return overlay.resolve(path) if kind is Kind.SYMLINK else path


def make_directories(overlay: Overlay, path: bytes) -> bool:
    """Make a directory and those above it, through symlinks; whether the last one is new.

    Raises as `Overlay.mkdir`; FileExistsError where the last one is something else, NotADirectoryError where one above.
    """
    here, made = b"", False
    names = paths.parts(path)
    for depth, name in enumerate(names, start=1):
        here = target(overlay, paths.join(here, name))
        kind = overlay.kind(here)
        made = kind is None
        if made:
            overlay.mkdir(here)
        elif kind is not Kind.DIR:
            raise paths.error(errno.EEXIST if depth == len(names) else errno.ENOTDIR, path)
    return made


def relative_target(link: bytes, path: bytes) -> bytes:
    """What a symlink at `link` has to hold to lead to `path`, both relative to the root."""
    return posixpath.relpath(b"/" + path, b"/" + paths.parent(link))
