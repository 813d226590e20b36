"""Layers made by hand on disk, in the kernel's own format, and the change sets between them."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workbench.checkpoints.manifest import Manifest
from workbench.checkpoints.store import CheckpointStore
from workbench.review.changeset import Change, ChangeSet, Left
from workbench.review.compare import change_set
from workbench.vfs.local import LocalStorage
from workbench.vfs.storage import Kind
from workbench.vfs.upper import LocalUpper

GIT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.com",
}


class Layers:
    """A lower and an upper directory. Paths are bytes relative to either."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.lower_path = os.fsencode(base / "lower")
        self.upper_path = os.fsencode(base / "upper")
        os.makedirs(self.lower_path)
        os.makedirs(self.upper_path)
        self.lower = LocalStorage(self.lower_path)
        self.store = CheckpointStore(base / "store")

    def close(self) -> None:
        self.lower.close()
        self.store.close()

    def at(self, layer: str, path: bytes) -> bytes:
        return os.path.join(self.lower_path if layer == "lower" else self.upper_path, path)

    def write(self, layer: str, path: bytes, content: bytes = b"", mode: int = 0o644) -> None:
        """Write a file; directories above it come as they would by a copy-up, with the lower's mode."""
        self.parents(layer, path)
        full = self.at(layer, path)
        with open(full, "wb") as file:
            file.write(content)
        os.chmod(full, mode)

    def mkdir(self, layer: str, path: bytes, mode: int = 0o755, *, opaque: bool = False) -> None:
        self.parents(layer, path)
        full = self.at(layer, path)
        os.makedirs(full, exist_ok=True)
        os.chmod(full, mode)
        if opaque:
            os.setxattr(full, b"user.overlay.opaque", b"y")

    def symlink(self, layer: str, path: bytes, target: bytes) -> None:
        self.parents(layer, path)
        os.symlink(target, self.at(layer, path))

    def whiteout(self, path: bytes) -> None:
        self.parents("upper", path)
        os.mknod(self.at("upper", path), stat.S_IFCHR | 0o600, 0)

    def parents(self, layer: str, path: bytes) -> None:
        above = b""
        for part in path.split(b"/")[:-1]:
            above = os.path.join(above, part)
            if not os.path.isdir(self.at(layer, above)):
                os.mkdir(self.at(layer, above))
                below = self.at("lower", above)
                if os.path.isdir(below):
                    os.chmod(self.at(layer, above), stat.S_IMODE(os.lstat(below).st_mode))

    def git(self, *arguments: str, cwd: bytes | None = None) -> bytes:
        """Run the real git in the lower, with nothing of this machine's configuration."""
        directory = self.lower_path if cwd is None else cwd
        return subprocess.run(["git", *arguments], cwd=directory, env=GIT, check=True, capture_output=True).stdout

    def manifest(self) -> Manifest:
        """A checkpoint of the upper as it is, with all bases known."""
        with LocalUpper(self.upper_path) as upper:
            taken = self.store.take("test", upper, self.lower, message_id=f"m{id(upper)}", epoch_ns=None, replace=True)
        return taken.manifest

    def changes(self, manifest: Manifest | None = None, *, scratch: bytes = b"_notes") -> ChangeSet:
        return change_set("c", manifest or self.manifest(), self.lower, self.store, scratch=scratch)

    def told(self, *, implied: bool = False) -> dict[bytes, str]:
        """The kinds of the changes by path."""
        return {change.path: change.kind.value for change in self.changes().changes if implied or not change.implied}

    def change(self, path: bytes) -> Change:
        return next(change for change in self.changes().changes if change.path == path)

    def left(self) -> dict[bytes, tuple[Left, int]]:
        return {one.path: (one.reason, one.count) for one in self.changes().left}


@pytest.fixture
def layers(tmp_path: Path) -> Iterator[Layers]:
    made = Layers(tmp_path)
    yield made
    made.close()


@pytest.fixture
def apply_changes() -> Callable[..., None]:
    """Do a change set to a directory, in the plainest way: all that goes, then all that comes."""

    def apply(changes: ChangeSet, target: bytes, store: CheckpointStore) -> None:
        steps = [step for change in changes.changes for step in change.steps()]
        for path, old, new in sorted(steps, key=lambda step: step[0], reverse=True):
            full = os.path.join(target, path)
            if old is None or (new is not None and new.kind is old.kind and new.kind is not Kind.SYMLINK):
                continue
            if old.kind is Kind.DIR:
                os.rmdir(full)
            else:
                os.unlink(full)
        for path, old, new in sorted(steps, key=lambda step: (step[0], step[2] is not None)):
            full = os.path.join(target, path)
            if new is None:
                continue
            if new.kind is Kind.DIR:
                if old is None or old.kind is not Kind.DIR:
                    os.mkdir(full)
                os.chmod(full, new.mode)
            elif new.kind is Kind.SYMLINK:
                os.symlink(store.read(new.blob), full)
            else:
                with open(full, "wb") as file:
                    file.write(store.read(new.blob))
                os.chmod(full, new.mode)

    return apply
