"""The contracts, held by fsspec's filesystems, by scopes, and by overlays over them."""

from __future__ import annotations

import io
import os
import stat as stat_module
import subprocess
import tarfile
import zipfile
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from workbench.testing import Directory, File, Link, OverlayContract, StorageContract, Tree
from workbench.testing.trees import fill
from workbench.vfs.fsspec_storage import FsspecStorage
from workbench.vfs.local import LocalStorage
from workbench.vfs.memory import MemoryUpper
from workbench.vfs.overlay import Overlay
from workbench.vfs.scoped import ScopedStorage
from workbench.vfs.storage import Storage


def _memory(tree: Tree, below: str = "") -> MemoryFileSystem:
    fs = MemoryFileSystem(skip_instance_cache=True)
    fs.store, fs.pseudo_dirs = {}, [""]
    for path, entry in tree.items():
        name = f"{below}/{os.fsdecode(path)}"
        if isinstance(entry, Directory):
            fs.makedirs(name, exist_ok=True)
        else:
            assert isinstance(entry, File)
            fs.pipe_file(name, entry.content)
    return fs


class TestMemory(StorageContract):
    symlinks = False

    def make_storage(self, tree: Tree, tmp_path: Path) -> Storage:
        return FsspecStorage(_memory(tree))


class TestScopeOfMemory(StorageContract):
    symlinks = False

    def make_storage(self, tree: Tree, tmp_path: Path) -> Storage:
        ours = {b"a/tenant-7/" + path: entry for path, entry in tree.items()}
        return FsspecStorage(_memory({**ours, b"a/tenant-7-evil/x": File(b"theirs")})).scope(b"a/tenant-7")


class TestScopeOfLocal(StorageContract):
    def make_storage(self, tree: Tree, tmp_path: Path) -> ScopedStorage:
        fill(os.fsencode(tmp_path / "tenant-7"), tree)
        fill(os.fsencode(tmp_path / "tenant-7-evil"), tree)
        return LocalStorage(os.fsencode(tmp_path)).scope(b"tenant-7")


class TestZip(StorageContract):
    def make_storage(self, tree: Tree, tmp_path: Path) -> Storage:
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            for path, entry in tree.items():
                name = os.fsdecode(path)
                if isinstance(entry, Directory):
                    archive.mkdir(name)
                    continue
                member = zipfile.ZipInfo(name)
                member.create_system = 3
                link = isinstance(entry, Link)
                member.external_attr = (stat_module.S_IFLNK | 0o777 if link else stat_module.S_IFREG | 0o644) << 16
                archive.writestr(member, entry.target if isinstance(entry, Link) else entry.content)
        return FsspecStorage(fsspec.filesystem("zip", fo=str(tmp_path / "a.zip")))


class TestTar(StorageContract):
    def make_storage(self, tree: Tree, tmp_path: Path) -> Storage:
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            for path, entry in tree.items():
                member = tarfile.TarInfo(os.fsdecode(path))
                content = b""
                if isinstance(entry, Directory):
                    member.type = tarfile.DIRTYPE
                elif isinstance(entry, Link):
                    member.type, member.linkname = tarfile.SYMTYPE, os.fsdecode(entry.target)
                else:
                    content = entry.content
                    member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return FsspecStorage(fsspec.filesystem("tar", fo=str(tmp_path / "a.tar")))


class TestGit(StorageContract):
    empty_directories = False

    def make_storage(self, tree: Tree, tmp_path: Path) -> Storage:
        pytest.importorskip("pygit2")
        fill(os.fsencode(tmp_path / "tree"), tree)
        git = ["git", "-c", "user.name=A", "-c", "user.email=a@example.com", "-C", str(tmp_path / "tree")]
        for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
            subprocess.run([*git, *command], check=True)
        path = str(tmp_path / "tree")
        return FsspecStorage(fsspec.filesystem("git", path=path, ref="main", skip_instance_cache=True))


class TestOverlayOverMemory(OverlayContract):
    def make_overlay(self, lower: Tree, tmp_path: Path) -> Overlay:
        return Overlay(TestMemory().make_storage(lower, tmp_path), MemoryUpper())


class TestOverlayOverTar(OverlayContract):
    def make_overlay(self, lower: Tree, tmp_path: Path) -> Overlay:
        return Overlay(TestTar().make_storage(lower, tmp_path), MemoryUpper())


class TestOverlayOverAScope(OverlayContract):
    def make_overlay(self, lower: Tree, tmp_path: Path) -> Overlay:
        return Overlay(TestScopeOfMemory().make_storage(lower, tmp_path), MemoryUpper())
