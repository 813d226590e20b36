"""Which paths the real workspace's ignore rules ignore, and which are tracked: git's rules, read by us as files."""

from __future__ import annotations

import os
from dataclasses import dataclass

from dulwich.config import ConfigFile

from workbench.errors import WorkspaceError
from workbench.review.index import TrackedPaths
from workbench.review.repository import GitDirectory
from workbench.vfs.ignore_patterns import PatternList
from workbench.vfs.local import LocalStorage
from workbench.vfs.storage import Kind, Lower

_LIMIT = 100 << 20
"""Bytes of an ignore file that git reads, PATTERN_MAX_FILE_SIZE in its dir.c."""

OWN_RULES_BYTES = 1 << 10
"""How long a file of `ignores_all` is at most."""


@dataclass(frozen=True, slots=True)
class _Source:
    """One ignore file; `base` is the length of the directory its patterns are relative to, with its slash."""

    base: int
    patterns: PatternList


class _Repository:
    """One repository of the lower, whose index is read when somebody asks for it."""

    def __init__(self, lower: Lower, path: bytes, git_path: bytes | None) -> None:
        self._lower = lower
        self._base = len(path) + 1 if path else 0
        self.git_path = git_path
        self._tracked: TrackedPaths | None = None

    def tracks(self, path: bytes) -> bool:
        if self._tracked is None:
            self._tracked = self._read()
        return path[self._base :] in self._tracked

    def _read(self) -> TrackedPaths:
        if self.git_path is None:
            return TrackedPaths([])
        try:
            if not isinstance(self._lower, LocalStorage):
                return TrackedPaths(None)
            found = GitDirectory.open(self._lower, self.git_path)
            if found is None:
                return TrackedPaths([])
            with found:
                return found.tracked()
        except (WorkspaceError, OSError):
            # Where the index can't be read nothing is hidden as ignored: a change too many is shown, none too few.
            return TrackedPaths(None)


class Directory:
    """The rules that hold in one directory; see `IgnoreRules.directory`."""

    __slots__ = ("exists", "ignored", "path", "repository", "sources")

    def __init__(
        self, path: bytes, repository: _Repository, sources: tuple[_Source, ...], *, ignored: bool, exists: bool
    ) -> None:
        self.path = path
        self.ignored = ignored
        self.exists = exists
        self.repository = repository
        self.sources = sources

    def ignores(self, path: bytes, name: bytes, *, is_dir: bool) -> bool:
        """Whether the rules ignore an entry of this directory, tracked or not; `path` is the whole path."""
        if self.ignored:
            return True
        for source in self.sources:
            said = source.patterns.match(path[source.base :], name, is_dir=is_dir)
            if said is not None:
                return said
        return False

    def tracks(self, path: bytes) -> bool:
        """Whether the index has an entry of this directory that the lower has, or something below it."""
        return self.repository.tracks(path)

    @property
    def is_active(self) -> bool:
        """Whether a `.gitignore` further down means anything."""
        return bool(self.sources) or self.repository.git_path is not None


class IgnoreRules:
    """The ignore rules of the lower.

    As git: every `.gitignore` from the repository's root down, then `info/exclude`, then the person's own file
    (`core.excludesFile`, else `$XDG_CONFIG_HOME/git/ignore`); the last matching pattern of the first file that has one
    decides, and below an ignored directory nothing comes back. A repository inside another goes by its own rules and
    index. `core.ignoreCase` isn't consulted, nor rules above the workspace's root.

    Without a `.git`, a `.gitignore` in the root still means what it says, and nothing is tracked; without either,
    nothing is ignored.
    """

    def __init__(self, lower: Lower) -> None:
        self._lower = lower
        self._directories: dict[bytes, Directory] = {}

    def is_ignored(self, path: bytes, *, is_dir: bool) -> bool:
        """Whether the rules ignore a path, tracked or not. Raises OSError."""
        parent, _, name = path.rpartition(b"/")
        return bool(path) and self.directory(parent).ignores(path, name, is_dir=is_dir)

    def is_tracked(self, path: bytes) -> bool:
        """Whether the index of the repository around a path has it, or something below it. Raises OSError."""
        return self.directory(path.rpartition(b"/")[0]).tracks(path)

    def directory(self, path: bytes) -> Directory:
        """The rules inside a directory, which needn't exist. Raises OSError."""
        missing: list[bytes] = []
        at = path
        while at not in self._directories and at:
            missing.append(at)
            at = at.rpartition(b"/")[0]
        found = self._directories.get(at) or self._remember(self._root())
        for below in reversed(missing):
            found = self._remember(self._below(found, below))
        return found

    def _remember(self, directory: Directory) -> Directory:
        self._directories[directory.path] = directory
        return directory

    def _root(self) -> Directory:
        if self._has_git(b""):
            return self._repository_root(b"")
        return Directory(b"", _Repository(self._lower, b"", None), self._sources(b""), ignored=False, exists=True)

    def _below(self, parent: Directory, path: bytes) -> Directory:
        ignored = parent.ignores(path, path.rpartition(b"/")[2], is_dir=True)
        exists = parent.exists and self._is_directory(path)
        if exists and self._has_git(path) and not (ignored and not parent.tracks(path)):
            return self._repository_root(path)
        sources = self._sources(path) if exists and not ignored and parent.is_active else ()
        return Directory(path, parent.repository, sources + parent.sources, ignored=ignored, exists=exists)

    def _repository_root(self, path: bytes) -> Directory:
        git_path = path + b"/.git" if path else b".git"
        base = len(path) + 1 if path else 0
        sources = self._sources(path)
        try:
            found = GitDirectory.open(self._lower, git_path) if isinstance(self._lower, LocalStorage) else None
            if found is not None:
                with found:
                    sources += _source(base, found.exclude()) + _source(base, _personal(found))
        except (WorkspaceError, OSError):
            # A repository that can't be read tracks everything, so nothing is hidden by rules that are missing here.
            pass
        return Directory(path, _Repository(self._lower, path, git_path), sources, ignored=False, exists=True)

    def _sources(self, path: bytes) -> tuple[_Source, ...]:
        """The `.gitignore` of a directory; git doesn't follow a symlink there either."""
        try:
            with self._lower.open(path + b"/.gitignore" if path else b".gitignore") as file:
                return _source(len(path) + 1 if path else 0, file.read(_LIMIT))
        except OSError:
            return ()

    def _has_git(self, path: bytes) -> bool:
        try:
            return self._lower.exists(path + b"/.git" if path else b".git")
        except OSError:
            return False

    def _is_directory(self, path: bytes) -> bool:
        try:
            return self._lower.stat(path).kind is Kind.DIR
        except OSError:
            return False


def ignores_all(content: bytes) -> bool:
    """Whether an ignore file says nothing but that all beside it is ignored, itself as well.

    Tools put one into what they keep for themselves: pytest, mypy and ruff into their caches, venv and uv into
    environments.
    """
    lines = (line.rstrip() for line in content.splitlines())
    return [line for line in lines if line and not line.startswith(b"#")] == [b"*"]


def _source(base: int, content: bytes) -> tuple[_Source, ...]:
    patterns = PatternList(content)
    return (_Source(base, patterns),) if patterns else ()


def _personal(repository: GitDirectory) -> bytes:
    """The person's own ignore file, which is data to us: nothing of git runs."""
    home = os.environb.get(b"HOME", b"")
    configured = os.environb.get(b"XDG_CONFIG_HOME") or (os.path.join(home, b".config") if home else b"")
    for read in (
        repository.config,
        lambda: _config(os.path.join(home, b".gitconfig")),
        lambda: _config(os.path.join(configured, b"git", b"config")),
        lambda: _config(b"/etc/gitconfig"),
    ):
        try:
            return _read(os.path.expanduser(read().get((b"core",), b"excludesfile")))
        except (KeyError, ValueError, OSError):
            continue
    return _read(os.path.join(configured, b"git", b"ignore"))


def _config(path: bytes) -> ConfigFile:
    if not path.startswith(b"/"):
        return ConfigFile()
    with open(path, "rb") as file:
        return ConfigFile.from_file(file)


def _read(path: bytes) -> bytes:
    """The content of a file of the person's own, empty where there's none."""
    if not path.startswith(b"/"):
        return b""
    try:
        with open(path, "rb") as file:
            return file.read(_LIMIT)
    except OSError:
        return b""
