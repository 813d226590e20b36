"""Freezing an overlay: what it shows becomes its lower layer, under a new empty upper one."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref

from workbench.vfs.layers import Entry, Upper
from workbench.vfs.local import LocalStorage
from workbench.vfs.memory import MemoryUpper
from workbench.vfs.overlay import Overlay
from workbench.vfs.storage import Kind
from workbench.vfs.upper import LocalUpper


def freeze(overlay: Overlay) -> Overlay:
    """The same merged view, all of it in a new lower layer, under a new empty upper of the same kind.

    A suite that starts from an empty filesystem never meets a lower layer; with its overlay frozen after each change it
    meets nothing else. Nothing may be open for writing. The given overlay and its layers stay as they are, and the
    caller's to close; what is made on disk goes when the new overlay does. Raises OSError.
    """
    if isinstance(overlay.upper, MemoryUpper):
        lower = MemoryUpper()
        _copy(overlay, lower)
        return _like(overlay, Overlay(lower, MemoryUpper()))
    base = os.fsencode(tempfile.mkdtemp(prefix="frozen-"))
    for name in (b"lower", b"upper", b"work"):
        os.mkdir(os.path.join(base, name))
    with LocalUpper(os.path.join(base, b"lower"), work=os.path.join(base, b"work")) as copy:
        _copy(overlay, copy)
    storage = LocalStorage(os.path.join(base, b"lower"))
    upper = LocalUpper(os.path.join(base, b"upper"), work=os.path.join(base, b"work"))
    frozen = _like(overlay, Overlay(storage, upper))
    weakref.finalize(frozen, _discard, storage, upper, base)
    return frozen


def _like(overlay: Overlay, frozen: Overlay) -> Overlay:
    frozen.scratch = overlay.scratch
    frozen.hide_hidden_paths = overlay.hide_hidden_paths
    root = overlay.stat(b"")
    frozen.chmod(b"", root.mode)
    frozen.utime(b"", root.mtime_ns)
    return frozen


def _copy(overlay: Overlay, target: Upper) -> None:
    # No name is scratch: everything is to be found.
    view = Overlay(overlay.lower, overlay.upper, scratch=b"")
    links: dict[int, bytes] = {}
    directories = [b""]
    for path in view.find():
        stat = view.stat(path)
        first = links.setdefault(stat.inode, path) if _may_have_links(view, path, stat.nlink) else path
        if first != path:
            target.link(first, path)
            continue
        if stat.kind is Kind.FILE:
            with view.open(path) as file:
                target.put(path, Entry.of(stat, view.xattrs(path), file))
        else:
            link = view.readlink(path) if stat.kind is Kind.SYMLINK else b""
            target.put(path, Entry.of(stat, view.xattrs(path), b"", link))
        if stat.kind is Kind.DIR:
            directories.append(path)
    for path in reversed(directories):
        stat = view.stat(path)
        target.utime(path, stat.mtime_ns, stat.mtime_ns)


def _may_have_links(view: Overlay, path: bytes, nlink: int) -> bool:
    found = view.upper.look(path)
    return nlink > 1 and found.kind is not None and found.kind is not Kind.DIR


def _discard(storage: LocalStorage, upper: LocalUpper, base: bytes) -> None:
    upper.close()
    storage.close()
    shutil.rmtree(base)
