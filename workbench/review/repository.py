"""Git repositories in a workspace, read as plain files and compared by what they mean; the host's git is never run."""

from __future__ import annotations

import errno
import hashlib
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from dulwich.config import ConfigFile

from workbench.checkpoints.manifest import Entry, Manifest
from workbench.errors import WorkspaceError
from workbench.review.index import TrackedPaths, UnreadableIndexError, read_index
from workbench.review.names import REPOSITORY_NAMES, folded, is_git, is_repository
from workbench.review.nearest import Nearest
from workbench.vfs import paths
from workbench.vfs.local import LocalStorage
from workbench.vfs.storage import Kind

_POINTER_LIMIT = 1 << 16
"""Bytes of a `.git` or `commondir` file that are read: a path and its word."""

# A directory that isn't there, isn't one, or is a loop of symlinks holds no repository.
_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV)


@dataclass(slots=True)
class GitDirectory:
    """An open git directory: `private_fd` has HEAD and the index, `common_fd` refs and objects; mostly one directory.

    A context manager that closes both.
    """

    private_fd: int
    common_fd: int
    is_linked: bool
    """Whether a `commondir` file names the common directory, as a linked worktree's does."""

    @classmethod
    def open(cls, lower: LocalStorage, path: bytes = b".git") -> Self | None:
        """Open the repository at a path of the lower: a directory, a symlink, or a file that points to one.

        Only for the real directory: what it points to is the person's own, and followed as git would. None where there
        is no repository. Raises WorkspaceError (workspace_unreadable).
        """
        parent_fd = private_fd = -1
        try:
            parent_fd = lower.open_directory(paths.parent(path))
            private_fd = _open_pointed(parent_fd, paths.name(path))
            if _read(private_fd, b"HEAD") is None:
                return None
            pointer = _read(private_fd, b"commondir")
            common_fd = os.dup(private_fd) if pointer is None else _open_directory(private_fd, pointer.strip(b"\r\n"))
            opened, private_fd = cls(private_fd, common_fd, pointer is not None), -1
            return opened
        except OSError as error:
            if error.errno in _NOTHING:
                return None
            raise _unreadable(path, error) from error
        finally:
            for fd in (parent_fd, private_fd):
                if fd >= 0:
                    os.close(fd)

    def close(self) -> None:
        """Close both descriptors."""
        os.close(self.private_fd)
        os.close(self.common_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def index(self) -> bytes:
        """The index file, empty where there's none. Raises OSError."""
        return _read(self.private_fd, b"index") or b""

    def exclude(self) -> bytes:
        """`info/exclude`, empty where there's none. Raises OSError."""
        return _read(self.common_fd, b"info/exclude") or b""

    def shallow(self) -> bytes:
        """The commits at which a shallow clone ends, as git keeps them, empty where it isn't one. Raises OSError."""
        return _read(self.common_fd, b"shallow") or b""

    def config(self) -> ConfigFile:
        """The repository's own configuration, without what it includes. Raises OSError, and ValueError on a bad one."""
        return ConfigFile.from_file(io.BytesIO(_read(self.common_fd, b"config") or b""))

    def tracked(self) -> TrackedPaths:
        """The paths in the index; all of them where it can't be parsed. Raises OSError."""
        data = self.index()
        try:
            return TrackedPaths(read_index(data) if data else [])
        except UnreadableIndexError:
            return TrackedPaths(None)

    def fingerprint(self) -> str:
        """64 hex digits over HEAD, every ref and the index's entries. Raises OSError.

        Packing refs and refreshing the index's stat data don't change it.
        """
        found = hashlib.sha256(b"repository 1\0")
        for field in self._facts():
            found.update(b"%d:" % len(field))
            found.update(field)
        return found.hexdigest()

    def _facts(self) -> Iterator[bytes]:
        yield (_read(self.private_fd, b"HEAD") or b"").strip()
        refs = dict(packed_refs(_read(self.common_fd, b"packed-refs") or b""))
        for fd in (self.common_fd, self.private_fd) if self.is_linked else (self.common_fd,):
            refs.update(_loose_refs(fd))
        for name in sorted(refs):
            yield name
            yield refs[name]
        # A reftable's files never change; this one lists those in use.
        yield _read(self.common_fd, b"reftable/tables.list") or b""
        data = self.index()
        try:
            for entry in read_index(data) if data else ():
                yield b"%o %d %s %s" % (entry.mode, entry.flags, entry.id, entry.path)
        except UnreadableIndexError:
            # Its bytes say more changes than there are, never fewer.
            yield data


def fingerprint(lower: LocalStorage, path: bytes = b".git") -> str:
    """What a repository of the lower means at this moment, 64 hex digits; empty where there is none.

    Covers HEAD, refs, packed refs and the index's entries, not the index's stat data, so that a `git status` or a
    `git gc` doesn't change it. Raises WorkspaceError (workspace_unreadable).
    """
    found = GitDirectory.open(lower, path)
    if found is None:
        return ""
    with found:
        try:
            return found.fingerprint()
        except OSError as error:
            raise _unreadable(path, error) from error


def shared_repositories(manifest: Manifest, lower: LocalStorage) -> tuple[bytes, ...]:
    """The repositories of the lower of which the upper holds a part, deletions counted, each by its topmost path.

    A repository that only the upper has isn't one of them, nor one that was hidden together with the directory around
    it. Raises OSError.
    """
    merged = {b""}
    found: list[bytes] = []
    inside: set[bytes] = set()
    for path in sorted(manifest.entries):
        entry = manifest.entries[path]
        parent, _, name = path.rpartition(b"/")
        if path and parent in inside:
            inside.add(path)
        elif path and parent not in merged:
            continue
        elif _is_shared(path, name, entry, lower):
            found.append(path)
            inside.add(path)
        elif entry.kind is Kind.DIR and not entry.opaque:
            merged.add(path)
    return tuple(found)


def without_repositories(manifest: Manifest, lower: LocalStorage) -> Manifest:
    """The manifest without what it holds of the lower's own repositories, so that both sides agree on them again.

    The entries and bases at and below each of `shared_repositories` go; the root's own entry always stays. Raises
    OSError.
    """
    dropped = shared_repositories(manifest, lower)
    if not dropped:
        return manifest
    gone = Nearest(dict.fromkeys(dropped, True))
    return manifest.with_entries(
        {path: entry for path, entry in manifest.entries.items() if not path or not gone.at(path)},
        {path: base for path, base in manifest.bases.items() if not path or not gone.at(path)},
    )


def common_directory(root: bytes, lower: LocalStorage) -> bytes | None:
    """The git directory outside the workspace that git inside needs, absolute, or None where there is none.

    `root` is the workspace's absolute path, `lower` the same opened. It's the common directory of a linked worktree,
    the git directory of a submodule or of `--separate-git-dir`. Only one that knows this workspace counts: a worktree's
    `gitdir` and a submodule's `core.worktree` must lead back here, else a `.git` file that came with a download could
    show the sandbox any repository of this machine. Raises WorkspaceError (workspace_unreadable).
    """
    try:
        if lower.stat(b".git").kind is not Kind.FILE:
            return None
        found = GitDirectory.open(lower)
        if found is None:
            return None
        with found:
            if not _is_git_directory(found.common_fd) or not _leads_back(found, lower):
                return None
            directory = os.readlink(b"/proc/self/fd/%d" % found.common_fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(b".git", error) from error
    above = paths.parts(os.path.realpath(root).strip(b"/"))
    return None if paths.parts(directory.strip(b"/"))[: len(above)] == above else directory


def _is_shared(path: bytes, name: bytes, entry: Entry, lower: LocalStorage) -> bool:
    if path and is_git(name):
        return lower.exists(path)
    if entry.kind is Kind.DIR or entry.kind is Kind.WHITEOUT:
        return has_repository_shape(lower, path)
    return False


def has_repository_shape(lower: LocalStorage, path: bytes) -> bool:
    """Whether a path of the lower is a directory that git would take for a repository. Raises OSError."""
    below = path + b"/" if path else b""
    if not lower.exists(below + b"HEAD"):
        return False
    return is_repository({folded(name) for name in REPOSITORY_NAMES if lower.exists(below + name)})


def _is_git_directory(fd: int) -> bool:
    return all(_exists(fd, name) for name in (b"HEAD", b"objects", b"refs"))


def _exists(fd: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=fd)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _leads_back(found: GitDirectory, lower: LocalStorage) -> bool:
    if found.is_linked:
        back = _read(found.private_fd, b"gitdir") or b""
        directory = os.path.dirname(back.strip(b"\r\n"))
    else:
        try:
            directory = found.config().get((b"core",), b"worktree")
        except KeyError:
            return True
        except ValueError:
            return False
    try:
        fd = _open_directory(found.private_fd, directory or b".")
    except OSError as error:
        if error.errno in _NOTHING:
            return False
        raise
    try:
        return os.path.samestat(os.fstat(fd), os.fstat(lower.root_fd))
    finally:
        os.close(fd)


def _open_pointed(parent_fd: int, name: bytes) -> int:
    """Open what `.git` is or points to: a directory, or the one that a file with `gitdir: PATH` names."""
    try:
        return _open_directory(parent_fd, name or b".")
    except NotADirectoryError:
        content = _read(parent_fd, name, _POINTER_LIMIT) or b""
        if not content.startswith(b"gitdir: "):
            raise
        return _open_directory(parent_fd, content.removeprefix(b"gitdir: ").strip(b"\r\n"))


def _open_directory(dir_fd: int, path: bytes) -> int:
    return os.open(path or b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=dir_fd)


def _read(dir_fd: int, name: bytes, limit: int = -1) -> bytes | None:
    """A regular file's content, None where there is none."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with io.FileIO(fd, "rb") as file:
        return file.read(limit)


def packed_refs(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The names and ids in the content of a `packed-refs` file."""
    for line in content.split(b"\n"):
        identity, _, name = line.partition(b" ")
        if name and not line.startswith((b"#", b"^")):
            yield name.strip(), identity


def _loose_refs(fd: int) -> Iterator[tuple[bytes, bytes]]:
    waiting = [b"refs"]
    while waiting:
        directory = waiting.pop()
        try:
            directory_fd = _open_directory(fd, directory)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            with os.scandir(directory_fd) as entries:
                for entry in entries:
                    path = directory + b"/" + os.fsencode(entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(path)
                    elif not path.endswith(b".lock"):
                        yield path, (_read(directory_fd, os.fsencode(entry.name)) or b"").strip()
        finally:
            os.close(directory_fd)


def _unreadable(path: bytes, error: OSError) -> WorkspaceError:
    return WorkspaceError(
        f"The repository at '{paths.display(path)}' can't be read: {error.strerror}.",
        code="workspace_unreadable",
        hint="Make it readable for the user who runs workbench.",
    )
