"""A workspace over an S3 bucket, whose commits are conditional requests; where s3fs and moto are installed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vfs.test_fsspec_s3 import address, bucket
from workbench.errors import CommitError, ConflictError
from workbench.review import storage_commit
from workbench.storage_workspace import StorageLanded, StorageWorkspace
from workbench.vfs.fsspec_storage import FsspecStorage
from workbench.workspace import Workspace

__all__ = ["address"]

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore")]

TREE = {"a": b"one\n", "b": b"two\n", "d/x": b"x\n"}


def contents(fs: Any, name: str) -> dict[str, bytes]:
    fs.invalidate_cache()
    return {path.removeprefix(f"{name}/"): fs.cat_file(path) for path in fs.find(name)}


async def prepared(workspace: StorageWorkspace) -> str:
    files = workspace.files
    await files.append(b"a", b"more\n")
    await files.unlink(b"b")
    await files.rename(b"d", b"moved")
    await files.mkdir(b"empty")
    await files.write(b"new", b"new\n")
    return workspace.reviewed(await workspace.changes())


async def land(workspace: StorageWorkspace) -> StorageLanded:
    return await workspace.commit(workspace.reviewed(await workspace.changes()))


async def test_a_commit_lands_by_conditional_requests(address: str) -> None:
    fs, name = bucket(address, TREE)
    async with Workspace.open(FsspecStorage(fs, name)) as workspace:
        digest = await prepared(workspace)
        assert contents(fs, name) == TREE
        landed = await workspace.commit(digest)
        assert not landed.committed.weak
        assert landed.left.changes == ()
        after = contents(fs, name)
        assert {path: content for path, content in after.items() if path.strip("/") != "empty"} == {
            "a": b"one\nmore\n",
            "moved/x": b"x\n",
            "new": b"new\n",
        }
        assert await workspace.files.read(b"moved/x") == b"x\n"
        await workspace.files.write(b"new", b"newer\n")
        await workspace.files.rmdir(b"empty")
        await land(workspace)
        assert contents(fs, name) == {"a": b"one\nmore\n", "moved/x": b"x\n", "new": b"newer\n"}


@pytest.mark.parametrize("changed", ["a", "b", "d/x", "new"])
async def test_an_object_of_somebody_elses_is_never_overwritten(
    address: str, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    fs, name = bucket(address, TREE)
    person, _ = bucket(address, {})

    keep = storage_commit._Commit._keep_old

    def racing(self: Any) -> None:
        keep(self)
        # Everything was compared by now, and our client has it in its cache.
        person.pipe_file(f"{name}/{changed}", b"person\n")

    async with Workspace.open(FsspecStorage(fs, name)) as workspace:
        digest = await prepared(workspace)
        monkeypatch.setattr(storage_commit._Commit, "_keep_old", racing)
        with pytest.raises(ConflictError) as caught:
            await workspace.commit(digest)
        assert caught.value.paths == (changed.encode(),)
    assert {path: content for path, content in contents(fs, name).items() if path.strip("/") != "empty"} == {
        **TREE,
        changed: b"person\n",
    }


async def test_a_commit_that_was_cut_short_is_undone_by_recover(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class FaultError(Exception):
        pass

    def fault(*_: Any) -> None:
        raise FaultError

    fs, name = bucket(address, TREE)
    async with Workspace.open(FsspecStorage(fs, name)) as workspace:
        digest = await prepared(workspace)
        monkeypatch.setattr(storage_commit, "_clear", fault)
        with pytest.raises(FaultError):
            await workspace.commit(digest)
    monkeypatch.undo()
    async with Workspace.open(FsspecStorage(fs, name)) as workspace:
        await workspace.files.write(b"x", b"x\n")
        with pytest.raises(CommitError) as caught:
            await land(workspace)
        assert caught.value.code == "commit_incomplete"
        assert await workspace.recover() == ()
    assert {path: content for path, content in contents(fs, name).items() if path.strip("/") != "empty"} == TREE
