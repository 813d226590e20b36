"""Workspaces over storages that aren't directories: the same life, in memory, and a commit that says what it can't promise."""

from __future__ import annotations

import io
import os
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from workbench.errors import CommitError, ConflictError, SandboxError
from workbench.faces.fsspec import WorkspaceFileSystem
from workbench.protocol.commands import Command
from workbench.review import storage_commit
from workbench.review.diff import unified
from workbench.storage_workspace import StorageLanded, StorageWorkspace
from workbench.vfs.fsspec_storage import FsspecStorage
from workbench.vfs.fsspec_writer import FsspecWriter
from workbench.workspace import Workspace

pytestmark = pytest.mark.anyio

TREE = {
    "a": b"one\n",
    "b": b"two\n",
    "d/x": b"x\n",
    "d/y": b"y\n",
    "d/e/z": b"z\n",
    ".gitignore": b"*.log\n",
}


class Objects:
    """Objects in fsspec's memory filesystem, below a prefix of their own."""

    def __init__(self) -> None:
        self.fs = fsspec.filesystem("memory")
        self.base = f"/bucket-{uuid.uuid4().hex}"
        for name, content in TREE.items():
            self.put(name, content)

    def put(self, name: str, content: bytes) -> None:
        self.fs.pipe_file(f"{self.base}/{name}", content)

    def all(self) -> dict[str, bytes]:
        return {str(path).removeprefix(self.base + "/"): self.fs.cat_file(path) for path in self.fs.find(self.base)}

    def open(self) -> StorageWorkspace:
        return Workspace.open(FsspecStorage(self.fs, self.base))


@pytest.fixture
def objects() -> Objects:
    return Objects()


async def land(workspace: StorageWorkspace, **options: Any) -> StorageLanded:
    return await workspace.commit(workspace.reviewed(await workspace.changes()), **options)


async def told(workspace: StorageWorkspace) -> dict[bytes, str]:
    return {change.path: change.kind.value for change in (await workspace.changes()).shown}


async def test_all_kinds_of_changes_are_told_and_land_and_nothing_before(objects: Objects) -> None:
    async with objects.open() as workspace:
        files = workspace.files
        await files.append(b"a", b"more\n")
        await files.write(b"b", b"TWO\n")
        await files.makedirs(b"new/deep")
        await files.write(b"new/deep/file", b"new\n")
        await files.unlink(b"d/y")
        await files.rename(b"d/e", b"moved")
        await files.write(b"build.log", b"noise\n")
        await files.makedirs(b"_notes")
        await files.write(b"_notes/plan", b"scratch\n")
        assert objects.all() == TREE
        assert await told(workspace) == {
            b"a": "modified",
            b"b": "modified",
            b"d/y": "deleted",
            b"moved/z": "renamed",
            b"new/deep/file": "added",
        }
        changes = await workspace.changes()
        assert {left.path: left.reason.value for left in changes.left} == {
            b"_notes": "scratch",
            b"build.log": "ignored",
        }
        patch = b"".join(unified(changes.shown, workspace.lower, workspace.store))
        assert b"-two\n+TWO\n" in patch
        assert b"+more\n" in patch
        landed = await land(workspace)
        assert landed.committed.weak
        assert objects.all() == {
            ".gitignore": b"*.log\n",
            "a": b"one\nmore\n",
            "b": b"TWO\n",
            "d/x": b"x\n",
            "moved/z": b"z\n",
            "new/deep/file": b"new\n",
        }
        assert landed.left.changes == ()
        assert {left.path for left in landed.left.left} == {b"_notes", b"build.log"}
        assert await files.read(b"build.log") == b"noise\n"
        # What landed is the new base.
        await files.write(b"b", b"three\n")
        await files.remove_tree(b"new")
        await land(workspace)
        assert objects.all()["b"] == b"three\n"
        assert not any(name.startswith("new") for name in objects.all())


async def test_what_somebody_else_changed_is_a_conflict_and_nothing_lands(objects: Objects) -> None:
    async with objects.open() as workspace:
        files = workspace.files
        await files.append(b"a", b"agent\n")
        await files.write(b"b", b"agent\n")
        await files.remove_tree(b"d")
        await files.write(b"fresh", b"agent\n")
        await files.write(b"calm", b"agent\n")
        objects.put("a", b"person\n")
        objects.put("b", b"person, more\n")
        objects.put("d/added", b"person\n")
        objects.put("d/x", b"person\n")
        objects.put("fresh", b"person\n")
        before = objects.all()
        with pytest.raises(ConflictError) as caught:
            await land(workspace)
        assert {b"a", b"b", b"d/added", b"d/x", b"fresh"} <= set(caught.value.paths)
        assert b"calm" not in caught.value.paths
        assert objects.all() == before
        await workspace.discard()
        assert await told(workspace) == {}
        assert await files.read(b"a") == b"person\n"


async def test_a_change_departs_from_what_was_read(objects: Objects) -> None:
    async with objects.open() as workspace:
        files = workspace.files
        assert await files.read(b"a") == b"one\n"
        objects.put("a", b"person\n")
        await files.write(b"a", b"agent\n")
        objects.put("b", b"person\n")
        assert await files.read(b"b") == b"person\n"
        await files.write(b"b", b"agent\n")
        with pytest.raises(ConflictError) as caught:
            await land(workspace)
        assert caught.value.paths == (b"a",)


async def test_what_comes_after_a_review_stays_for_the_next_one(objects: Objects) -> None:
    async with objects.open() as workspace:
        await workspace.files.write(b"a", b"1\n")
        await workspace.files.write(b"n", b"1\n")
        digest = workspace.reviewed(await workspace.changes())
        await workspace.files.write(b"a", b"2\n")
        await workspace.files.unlink(b"n")
        await workspace.files.write(b"later", b"2\n")
        landed = await workspace.commit(digest)
        assert objects.all()["a"] == b"1\n"
        assert objects.all()["n"] == b"1\n"
        assert {change.path: change.kind.value for change in landed.left.shown} == {
            b"a": "modified",
            b"later": "added",
            b"n": "deleted",
        }
        await land(workspace)
        assert objects.all() == {**TREE, "a": b"2\n", "later": b"2\n"}
        with pytest.raises(CommitError) as caught:
            await workspace.commit("0" * 64)
        assert caught.value.code == "digest_unknown"


async def test_checkpoints_bring_back_the_view_exactly(objects: Objects) -> None:
    async with objects.open() as workspace:
        files = workspace.files
        await files.write(b"a", b"1\n")
        await files.symlink(b"a", b"pointer")
        await files.link(b"a", b"hard")
        await files.chmod(b"b", 0o755)
        await files.remove_tree(b"d")
        await files.mkdir(b"d")
        await files.write(b"d/\xff\n", bytes(9 << 20))
        first = await workspace.checkpoint("m1")

        async def view() -> dict[bytes, tuple[str, int, bytes]]:
            found = {}
            for path, kind in await files.walk():
                content = await files.read(path) if kind == "file" else b""
                content = await files.readlink(path) if kind == "symlink" else content
                found[path] = (str(kind), (await files.stat(path)).mode, content)
            return found

        then, changes = await view(), await told(workspace)
        await files.write(b"a", b"2\n")
        await files.remove_tree(b"d")
        await files.unlink(b"pointer")
        await files.rename(b"b", b"c")
        later = await view()
        before = await workspace.restore(first)
        assert await view() == then
        assert await told(workspace) == changes
        assert (await files.stat(b"a")).nlink == 2
        await files.append(b"hard", b"+")
        assert await files.read(b"a") == b"1\n+"
        await workspace.restore(before)
        assert await view() == later
        assert [taken.message_id for taken in await workspace.checkpoints()][-1] == "m1"
        # A base is restored with what it belongs to.
        await workspace.restore(first)
        objects.put("a", b"person\n")
        await files.chmod(b"b", 0o644)
        await files.unlink(b"pointer")
        with pytest.raises(ConflictError):
            await land(workspace)


async def test_no_command_runs_over_a_storage(objects: Objects) -> None:
    async with objects.open() as workspace:
        with pytest.raises(SandboxError) as caught:
            await workspace.exec(Command(("true",)))
        assert caught.value.code == "sandbox_unsupported"
        assert caught.value.hint


async def test_what_can_not_be_written_is_worked_on_and_refused_at_the_commit(tmp_path: Path) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("a", b"one\n")
    (tmp_path / "a.zip").write_bytes(content.getvalue())
    async with Workspace.open(fsspec.filesystem("zip", fo=str(tmp_path / "a.zip"))) as workspace:
        await workspace.files.append(b"a", b"more\n")
        assert await told(workspace) == {b"a": "modified"}
        with pytest.raises(CommitError) as caught:
            await land(workspace)
        assert caught.value.code == "storage_read_only"
        assert await workspace.files.read(b"a") == b"one\nmore\n"


@pytest.mark.parametrize("what", ["mode", "executable", "symlink"])
async def test_what_a_storage_has_no_words_for_is_refused_whole(objects: Objects, what: str) -> None:
    async with objects.open() as workspace:
        await workspace.files.write(b"fine", b"fine\n")
        if what == "mode":
            await workspace.files.chmod(b"a", 0o600)
        elif what == "executable":
            await workspace.files.create(b"tool", mode=0o755)
        else:
            await workspace.files.symlink(b"a", b"link")
        with pytest.raises(CommitError) as caught:
            await land(workspace)
        assert caught.value.code == "not_landable"
        assert objects.all() == TREE


async def test_kinds_may_change_and_empty_directories_come_and_go(objects: Objects) -> None:
    async with objects.open() as workspace:
        files = workspace.files
        await files.unlink(b"a")
        await files.makedirs(b"a/in")
        await files.write(b"a/in/file", b"1\n")
        await files.remove_tree(b"d")
        await files.write(b"d", b"file now\n")
        await files.mkdir(b"empty")
        await land(workspace)
        assert objects.all() == {".gitignore": b"*.log\n", "a/in/file": b"1\n", "b": b"two\n", "d": b"file now\n"}
        assert objects.fs.isdir(f"{objects.base}/empty")
        assert await told(workspace) == {}
        await files.rmdir(b"empty")
        await land(workspace)
        assert not objects.fs.exists(f"{objects.base}/empty")


async def test_a_directory_that_is_called_as_the_scratch_one_is_an_ordinary_one(objects: Objects) -> None:
    objects.put("_notes/mine", b"mine\n")
    async with objects.open() as workspace:
        assert workspace.view.scratch == b"_notes-2"
        await workspace.files.append(b"_notes/mine", b"more\n")
        await workspace.files.makedirs(workspace.view.scratch)
        await workspace.files.write(workspace.view.scratch + b"/plan", b"plan\n")
        assert workspace.view.list(b"") == [b".gitignore", b"_notes", b"a", b"b", b"d"]
        assert await told(workspace) == {b"_notes/mine": "modified"}
        await land(workspace)
        assert objects.all() == {**TREE, "_notes/mine": b"mine\nmore\n"}
        assert await workspace.files.read(workspace.view.scratch + b"/plan") == b"plan\n"


async def test_risky_paths_need_a_yes(objects: Objects) -> None:
    async with objects.open() as workspace:
        await workspace.files.write(b".envrc", b"x\n")
        with pytest.raises(CommitError) as caught:
            await land(workspace)
        assert caught.value.code == "risky_paths"
        await land(workspace, allow_risky=True)
        assert objects.all()[".envrc"] == b"x\n"


async def test_a_tenants_scope_is_all_that_a_commit_writes_to(objects: Objects) -> None:
    objects.put("tenant-7/a", b"mine\n")
    objects.put("tenant-7-evil/x", b"theirs\n")
    storage = FsspecStorage(objects.fs, objects.base).scope(b"tenant-7")
    async with Workspace.open(storage) as workspace:
        await workspace.files.write(b"a", b"changed\n")
        await workspace.files.write(b"b", b"new\n")
        await land(workspace)
    assert objects.all() == {
        **TREE,
        "tenant-7-evil/x": b"theirs\n",
        "tenant-7/a": b"changed\n",
        "tenant-7/b": b"new\n",
    }


# What goes wrong half way


class FaultError(Exception):
    pass


async def prepared(workspace: StorageWorkspace) -> str:
    files = workspace.files
    await files.write(b"a", b"agent\n")
    await files.unlink(b"b")
    await files.write(b"c", b"agent\n")
    await files.rename(b"d", b"moved")
    return workspace.reviewed(await workspace.changes())


AFTER = {".gitignore": b"*.log\n", "a": b"agent\n", "c": b"agent\n"} | {
    f"moved/{name.removeprefix('d/')}": content for name, content in TREE.items() if name.startswith("d/")
}


def steps_of_a_commit() -> int:
    """journal, an old content kept for each of 5, each of 9 objects changed, and all applied."""
    return 1 + 5 + 9 + 1


@pytest.mark.parametrize("kind", ["fails", "is killed"])
async def test_a_commit_that_stops_at_any_step_is_undone_at_once_or_by_recover(
    objects: Objects, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    original = storage_commit.commit_to_storage
    ended = 0
    for stop_at in range(1, steps_of_a_commit() + 1):
        count = 0

        def on_step(_: str, stop_at: int = stop_at) -> None:
            nonlocal count
            count += 1
            if count == stop_at:
                raise FaultError

        def faulty(*arguments: Any, on_step: Callable[[str], None] = on_step) -> Any:
            return original(*arguments, on_step=on_step)

        objects = Objects()
        async with objects.open() as workspace:
            digest = await prepared(workspace)
            with monkeypatch.context() as patch:
                patch.setattr("workbench.storage_workspace.commit_to_storage", faulty)
                if kind == "is killed":
                    # A process that is gone undoes nothing.
                    patch.setattr(storage_commit._Commit, "_put_back", lambda self, error: None)
                with pytest.raises(FaultError):
                    await workspace.commit(digest)
        async with objects.open() as workspace:
            if kind == "is killed":
                await workspace.files.write(b"other", b"other\n")
                with pytest.raises(CommitError) as caught:
                    await land(workspace)
                assert caught.value.code == "commit_incomplete"
                assert await workspace.recover() == ()
            assert objects.all() == TREE
            ended += 1
            await workspace.discard()
            await land_prepared(workspace)
            assert objects.all() == AFTER
    assert ended == steps_of_a_commit()


async def land_prepared(workspace: StorageWorkspace) -> None:
    await workspace.commit(await prepared(workspace))


async def test_recover_leaves_alone_what_somebody_has_changed_since(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with objects.open() as workspace:
        digest = await prepared(workspace)
        with monkeypatch.context() as patch:
            patch.setattr(storage_commit._Commit, "_put_back", lambda self, error: None)
            patch.setattr(storage_commit, "_clear", lambda *_: (_ for _ in ()).throw(FaultError()))
            with pytest.raises(FaultError):
                await workspace.commit(digest)
        objects.put("c", b"person\n")
        assert await workspace.recover() == (b"c",)
    assert objects.all() == {**TREE, "c": b"person\n"}


async def test_an_object_that_changes_in_the_middle_of_a_commit_undoes_it(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = FsspecWriter.create

    def racing(self: FsspecWriter, path: bytes, data: bytes) -> None:
        create(self, path, data)
        if path == b"c":
            # After everything was compared, before it is its turn.
            objects.put("moved/x", b"person\n")

    monkeypatch.setattr(FsspecWriter, "create", racing)
    async with objects.open() as workspace:
        digest = await prepared(workspace)
        with pytest.raises(ConflictError) as caught:
            await workspace.commit(digest)
        assert caught.value.paths == (b"moved/x",)
    assert objects.all() == {**TREE, "moved/x": b"person\n"}


async def test_a_storage_workspace_has_the_faces_of_any_overlay(objects: Objects) -> None:
    async with objects.open() as workspace:
        files = WorkspaceFileSystem(workspace.view)
        with files.transaction:
            files.pipe("docs/new", b"1")
        assert sorted(files.find("/docs")) == ["/docs/new"]
        assert await told(workspace) == {b"docs/new": "added"}


async def test_nothing_is_left_on_this_machine(
    objects: Objects, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with objects.open() as workspace:
        await workspace.files.write(b"a", b"x")
        await land(workspace)
        assert os.listdir(tmp_path) != []
    assert os.listdir(tmp_path) == []
