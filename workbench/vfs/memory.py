"""An upper layer in memory, for tests and for use without a disk; a lower layer, too, of what was made in one."""

from __future__ import annotations

import builtins
import errno
import io
import itertools
import os
import stat as stat_module
import threading
import time
from typing import BinaryIO

from workbench.vfs import handles, paths
from workbench.vfs.content import Content
from workbench.vfs.layers import Entry, Found, OpenMode
from workbench.vfs.marks import PREFIX
from workbench.vfs.storage import DIR, FILE, WHITEOUT, Kind, Stat

_NAME_MAX = 255
_NEW_FILE = 0o666
_READING = handles.open_mode("rb")


class _Node:
    """An inode: `children` and `bare` are a directory's, `content` a file's, `target` a symlink's."""

    __slots__ = (
        "bare",
        "children",
        "content",
        "ctime_ns",
        "inode",
        "kind",
        "mode",
        "mtime_ns",
        "nlink",
        "opaque",
        "owner",
        "target",
        "xattrs",
    )

    def __init__(self, kind: Kind, mode: int, owner: tuple[int, int], inode: int, content: Content | None) -> None:
        self.kind = kind
        self.mode = mode
        self.owner = owner
        self.inode = inode
        self.content = content
        self.nlink = 1
        self.opaque = False
        self.bare: object = None
        self.mtime_ns = self.ctime_ns = time.time_ns()
        self.target = b""
        self.xattrs: dict[bytes, bytes] = _NO_XATTRS
        self.children: dict[bytes, _Node] = {} if kind is DIR else _NO_CHILDREN

    def stat(self) -> Stat:
        size = self.content.size if self.content is not None else len(self.target)
        times = (self.mtime_ns, self.ctime_ns)
        return Stat(self.kind, self.mode, *self.owner, size, *times, self.inode, self.nlink, 0)

    def touched(self) -> None:
        self.mtime_ns = self.ctime_ns = time.time_ns()


_NO_CHILDREN: dict[bytes, _Node] = {}
_NO_XATTRS: dict[bytes, bytes] = {}
_WHITEOUT = _Node(WHITEOUT, 0, (0, 0), 0, None)


class MemoryUpper:
    """An upper layer in memory: implements `layers.Upper`, and `DetailedStorage`, so that it may be a lower one too.

    What is made belongs to the caller, with modes less the `umask`; nothing is refused for want of permission. A file
    of more than `spill` bytes goes to an unnamed temporary file. A directory has a size of 0 and one link.
    """

    def __init__(self, *, umask: int = 0o022, spill: int = 16 << 20) -> None:
        self.lock = threading.RLock()
        self._umask = umask
        self._spill = spill
        self._inodes = itertools.count(1)
        self._owner = (os.geteuid(), os.getegid())
        self._root = self._new(DIR, 0o755)

    # Reading

    def look(self, path: bytes, above: Found | None = None) -> Found:
        """As `layers.Upper.look`."""
        node = self._root
        lower = below = True
        bare: object = None
        names = path.split(b"/") if path else ()
        for depth, name in enumerate(names):
            if node.kind is not DIR:
                paths.parts(path)
                raise paths.error(errno.ENOENT if node.kind is WHITEOUT else errno.ENOTDIR, path)
            lower = below
            child = node.children.get(name)
            if child is None:
                # Only here can it be an impossible one.
                paths.parts(path)
                return Found(None, depth, lower, lower, bare=bare)
            node = child
            bare = node.bare or bare
            below = below and node.kind is DIR and not node.opaque
        return Found(node.kind, len(names), lower, below, node.inode, node.stat, bare)

    def stat(self, path: bytes) -> Stat:
        """As `Storage.stat`."""
        return self._node(path).stat()

    def list(self, path: bytes) -> builtins.list[bytes]:
        """As `Storage.list`."""
        return sorted(self._directory(path).children)

    def entries(self, path: bytes) -> builtins.list[tuple[bytes, Kind]]:
        """As `layers.Upper.entries`, sorted bytewise."""
        # A copy first, which no thread can change meanwhile.
        return sorted((name, node.kind) for name, node in self._directory(path).children.copy().items())

    def names(self, path: bytes) -> builtins.list[bytes]:
        """As `layers.Upper.names`."""
        return sorted(name for name, node in self._directory(path).children.copy().items() if node is not _WHITEOUT)

    def content(self, path: bytes) -> bytes | Found:
        """As `layers.Upper.content`."""
        node = self._find(path)
        return self.look(path) if node is None or node.content is None else node.content.read()

    def open(self, path: bytes) -> BinaryIO:
        """As `Storage.open`."""
        return io.BufferedReader(self._opened(path, _READING))

    def read_bytes(self, path: bytes) -> bytes:
        """As `DetailedStorage.read_bytes`."""
        with self.open(path) as file:
            return file.read()

    def readlink(self, path: bytes) -> bytes:
        """As `Storage.readlink`."""
        node = self._node(path)
        if node.kind is not Kind.SYMLINK:
            raise paths.error(errno.EINVAL, path)
        return node.target

    def xattrs(self, path: bytes) -> dict[bytes, bytes]:
        """As `layers.Upper.xattrs`."""
        return dict(self._node(path).xattrs)

    def is_opaque(self, path: bytes) -> bool:
        """Whether a directory hides what the lower has in it. Raises as `stat`."""
        return self._directory(path).opaque

    # Writing

    def exchange(self, other: MemoryUpper) -> None:
        """Hold from now on, in one step, what another holds, and the other what this one did; files that are open stay."""
        with self.lock:
            self._root, other._root = other._root, self._root
            self._inodes, other._inodes = other._inodes, self._inodes

    def edit(self, path: bytes, mode: OpenMode) -> io.RawIOBase:
        """As `layers.Upper.edit`."""
        file = self._opened(path, mode)
        if mode.truncate:
            file.truncate(0)
        return file

    def write(self, path: bytes, data: bytes, bare: object) -> bool:
        """As `layers.Upper.write`."""
        names = path.split(b"/")
        name = names.pop()
        parent = self._root
        hides = False
        for each in names:
            below = parent.children.get(each)
            if below is None:
                return False
            parent = below
            hides = hides or parent.opaque or parent.bare is bare
        old = parent.children.get(name)
        if old is None:
            if not hides or parent.kind is not DIR:
                return False
            _check_name(path, name)
            node = self._new(FILE, _NEW_FILE & ~self._umask, Content(bytes(data), self._spill))
            self._inherit(node, parent)
        elif old.kind is FILE:
            node = self._successor(old, data)
        else:
            return False
        parent.children[name] = node
        parent.mtime_ns = parent.ctime_ns = node.mtime_ns
        return True

    def make_file(self, path: bytes, mode: int, data: bytes = b"") -> None:
        """As `layers.Upper.make_file`."""
        self._make(path, FILE, mode & ~self._umask, Content(bytes(data), self._spill))

    def make_directory(self, path: bytes, mode: int, *, opaque: bool, bare: object = None) -> None:
        """As `layers.Upper.make_directory`."""
        node = self._make(path, DIR, mode & 0o1777 & ~self._umask)
        node.opaque, node.bare = opaque, bare

    def make_symlink(self, path: bytes, target: bytes) -> None:
        """As `layers.Upper.make_symlink`."""
        self._make(path, Kind.SYMLINK, 0o777).target = target

    def _make(self, path: bytes, kind: Kind, mode: int, content: Content | None = None) -> _Node:
        parent, name = self._place(path)
        if parent.children.get(name, _WHITEOUT) is not _WHITEOUT:
            raise paths.error(errno.EEXIST, path)
        node = self._new(kind, mode, content)
        self._inherit(node, parent)
        parent.children[name] = node
        parent.touched()
        return node

    def link(self, src: bytes, dst: bytes) -> None:
        """As `layers.Upper.link`."""
        node = self._node(src)
        parent, name = self._place(dst)
        if parent.children.get(name, _WHITEOUT) is not _WHITEOUT:
            raise paths.error(errno.EEXIST, dst)
        parent.children[name] = node
        node.nlink += 1
        node.ctime_ns = time.time_ns()
        parent.touched()

    def put(self, path: bytes, entry: Entry, *, copy_up: bool = False) -> None:
        """As `layers.Upper.put`."""
        parent, name = self._place(path)
        content = None
        if entry.kind is FILE:
            held = entry.content
            content = Content(held if isinstance(held, bytes) else b"", self._spill)
            if not isinstance(held, bytes):
                content.fill(held)
        there = parent.children.get(name, _WHITEOUT)
        if there.kind is DIR:
            raise paths.error(errno.EISDIR, path)
        if there is not _WHITEOUT and entry.kind is DIR:
            raise paths.error(errno.ENOTDIR, path)
        node = self._new(entry.kind, entry.mode, content)
        if entry.owner is None:
            self._inherit(node, parent)
        else:
            node.owner = entry.owner
        node.target = entry.target
        if entry.xattrs:
            node.xattrs = dict(entry.xattrs)
        if entry.mtime_ns is not None:
            node.mtime_ns = entry.mtime_ns
        self._drop(there)
        parent.children[name] = node
        if not copy_up:
            parent.touched()

    def replace(self, path: bytes, data: bytes) -> None:
        """As `layers.Upper.replace`."""
        parent, name = self._place(path)
        parent.children[name] = self._successor(self._file(path), data)
        parent.touched()

    def _successor(self, old: _Node, data: bytes) -> _Node:
        """A file with this content, and otherwise as another, whose place it takes."""
        node = self._new(FILE, old.mode, Content(bytes(data), self._spill))
        node.owner = old.owner
        node.xattrs = dict(old.xattrs) if old.xattrs else _NO_XATTRS
        self._drop(old)
        return node

    def remove(self, path: bytes, *, whiteout: bool) -> None:
        """As `layers.Upper.remove`."""
        parent, name = self._place(path)
        node = parent.children.get(name)
        if node is None and not whiteout:
            raise paths.error(errno.ENOENT, path)
        if whiteout:
            parent.children[name] = _WHITEOUT
        else:
            del parent.children[name]
        parent.touched()
        if node is not None:
            self._drop_tree(node)

    def move(self, src: bytes, dst: bytes, *, whiteout: bool, opaque: bool) -> None:
        """As `layers.Upper.move`."""
        node = self._node(src)
        parent, name = self._place(src)
        new_parent, new_name = self._place(dst)
        if opaque:
            node.opaque = True
        # It was known of the other place.
        node.bare = None
        self._drop(new_parent.children.get(new_name, _WHITEOUT))
        new_parent.children[new_name] = node
        if whiteout:
            parent.children[name] = _WHITEOUT
        else:
            del parent.children[name]
        node.ctime_ns = time.time_ns()
        parent.touched()
        new_parent.touched()

    def make_opaque(self, path: bytes) -> None:
        """As `layers.Upper.make_opaque`."""
        top = self._directory(path)
        top.opaque = True
        waiting = [top]
        while waiting:
            children = waiting.pop().children
            for name in [name for name, node in children.items() if node is _WHITEOUT]:
                del children[name]
            waiting.extend(node for node in children.values() if node.kind is DIR)

    def chmod(self, path: bytes, mode: int) -> None:
        """As `layers.Upper.chmod`."""
        node = self._node(path)
        node.mode = mode & 0o7777
        node.ctime_ns = time.time_ns()

    def utime(self, path: bytes, atime_ns: int, mtime_ns: int) -> None:
        """As `layers.Upper.utime`; there is no access time."""
        node = self._node(path)
        node.mtime_ns = mtime_ns
        node.ctime_ns = time.time_ns()

    def setxattr(self, path: bytes, name: bytes, value: bytes) -> None:
        """As `layers.Upper.setxattr`. Only `user.` attributes, of files and directories."""
        node = self._node(path)
        if not name.startswith(b"user.") or name.startswith(PREFIX):
            raise paths.error(errno.ENOTSUP, path)
        if node.kind not in (FILE, DIR):
            raise paths.error(errno.EPERM, path)
        node.xattrs = {**node.xattrs, name: bytes(value)}
        node.ctime_ns = time.time_ns()

    def removexattr(self, path: bytes, name: bytes) -> None:
        """As `layers.Upper.removexattr`."""
        node = self._node(path)
        if name not in node.xattrs:
            raise paths.error(errno.ENODATA, path)
        node.xattrs = {key: value for key, value in node.xattrs.items() if key != name}
        node.ctime_ns = time.time_ns()

    def _new(self, kind: Kind, mode: int, content: Content | None = None) -> _Node:
        return _Node(kind, mode, self._owner, next(self._inodes), content)

    def _inherit(self, node: _Node, parent: _Node) -> None:
        if parent.mode & stat_module.S_ISGID:
            node.owner = (node.owner[0], parent.owner[1])
            if node.kind is DIR:
                node.mode |= stat_module.S_ISGID

    def _drop(self, node: _Node) -> None:
        if node is not _WHITEOUT:
            node.nlink -= 1
            node.ctime_ns = time.time_ns()

    def _drop_tree(self, top: _Node) -> None:
        if not top.children:
            self._drop(top)
            return
        waiting = [top]
        while waiting:
            node = waiting.pop()
            self._drop(node)
            if node.children:
                waiting.extend(node.children.values())
                # Else a deep one is taken apart by as many calls in each other.
                node.children = _NO_CHILDREN

    def _find(self, path: bytes) -> _Node | None:
        node = self._root
        for name in path.split(b"/") if path else ():
            below = node.children.get(name)
            if below is None:
                return None
            node = below
        return node

    def _node(self, path: bytes) -> _Node:
        node = self._find(path)
        if node is None:
            self.look(path)
            raise paths.error(errno.ENOENT, path)
        return node

    def _directory(self, path: bytes) -> _Node:
        node = self._node(path)
        if node.kind is not DIR:
            raise paths.error(errno.ENOTDIR, path)
        return node

    def _file(self, path: bytes) -> _Node:
        node = self._node(path)
        if node.kind is not FILE:
            codes = {DIR: errno.EISDIR, Kind.SYMLINK: errno.ELOOP, WHITEOUT: errno.ENOENT}
            raise paths.error(codes.get(node.kind, errno.EINVAL), path)
        return node

    def _opened(self, path: bytes, mode: OpenMode) -> handles.ContentFile:
        node = self._file(path)
        assert node.content is not None
        return handles.ContentFile(path, mode, node.content, node.touched)

    def _place(self, path: bytes) -> tuple[_Node, bytes]:
        above, slash, name = path.rpartition(b"/")
        if slash and not above:
            paths.parts(path)
        _check_name(path, name)
        return self._directory(above), name


def _check_name(path: bytes, name: bytes) -> None:
    """Refuse a last component that no entry can have."""
    if name in (b"", b".", b"..") or b"\0" in name:
        paths.parts(path)
        raise paths.error(errno.EBUSY, path)
    if len(name) > _NAME_MAX:
        raise paths.error(errno.ENAMETOOLONG, path)
