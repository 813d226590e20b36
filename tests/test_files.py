"""A workspace's files, written directly and through its sandbox: the same answers, the same view, the same conflicts."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.test_conflicts import save_by_rename
from tests.trees import snapshot
from workbench.errors import ConflictError
from workbench.files import Files
from workbench.protocol.commands import Command
from workbench.sandbox.client import KeeperClient
from workbench.vfs.storage import Kind
from workbench.workspace import Workspace

pytestmark = pytest.mark.anyio

TREE = {"a": "one\n", "b": "two\n", "d/x": "x\n", "d/y": "y\n", "d/e/z": "z\n", "run.sh": "#!/bin/sh\n"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "w"
    for name, content in TREE.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(content)
    (path / "run.sh").chmod(0o755)
    (path / "link").symlink_to("d/x")
    return path


@pytest.fixture(params=["directly", "in a sandbox"])
async def workspace(
    request: pytest.FixtureRequest, state: Path, root: Path, anyio_backend: str
) -> AsyncIterator[Workspace]:
    """A workspace over `root`, with and without a sandbox that runs."""
    if request.param == "in a sandbox":
        request.getfixturevalue("engine")
    async with Workspace.open(root) as opened:
        if request.param == "in a sandbox":
            await opened.exec(Command(("true",)))
        yield opened


async def runs(workspace: Workspace) -> bool:
    client = await KeeperClient.connect(workspace.overlay_path)
    if client is None:
        return False
    async with client:
        return True


async def code_of(call: Callable[..., Any], *arguments: Any, **options: Any) -> int:
    try:
        await call(*arguments, **options)
    except OSError as error:
        return error.errno if isinstance(error.filename, bytes) and error.errno else -1
    return 0


async def land(workspace: Workspace) -> None:
    await workspace.commit(workspace.reviewed(await workspace.changes()), allow_risky=True)


async def test_every_change_shows_in_the_view_and_lands_and_nothing_before(workspace: Workspace, root: Path) -> None:
    files, before, mounted = workspace.files, snapshot(root), await runs(workspace)
    await files.write(b"a", b"ONE\n")
    await files.write(b"new", b"new\n")
    await files.append(b"b", b"more\n")
    await files.append(b"log", b"first\n")
    await files.create(b"empty")
    await files.makedirs(b"deep/er")
    await files.write(b"deep/er/file", bytes(range(256)) * 4000)
    await files.copy(b"d", b"copied")
    await files.rename(b"d", b"moved")
    await files.unlink(b"moved/y")
    await files.remove_tree(b"copied/e")
    await files.symlink(b"moved/x", b"pointer")
    await files.link(b"new", b"hard")
    await files.chmod(b"b", 0o700)
    await files.utime(b"new", 1_000_000_000)
    await files.rename(b"empty", b"link")
    async with await files.open(b"run.sh", "r+b") as file:
        await file.seek(0, os.SEEK_END)
        await file.write(b"echo hi\n")
    assert snapshot(root) == before
    expected = {
        b"a": b"ONE\n",
        b"b": b"two\nmore\n",
        b"copied/x": b"x\n",
        b"copied/y": b"y\n",
        b"deep/er/file": bytes(range(256)) * 4000,
        b"hard": b"new\n",
        b"link": b"",
        b"log": b"first\n",
        b"moved/e/z": b"z\n",
        b"moved/x": b"x\n",
        b"new": b"new\n",
        b"run.sh": b"#!/bin/sh\necho hi\n",
    }
    listed = await files.walk()
    assert {path: await files.read(path) for path, kind in listed if kind is Kind.FILE} == expected
    assert [path for path, kind in listed if kind is Kind.DIR] == [b"copied", b"deep", b"deep/er", b"moved", b"moved/e"]
    assert await files.readlink(b"pointer") == b"moved/x"
    assert (await files.stat(b"b")).mode == 0o700
    assert (await files.stat(b"run.sh")).mode == 0o755
    assert (await files.stat(b"new")).mtime_ns == 1_000_000_000
    assert (await files.stat(b"new")).inode == (await files.stat(b"hard")).inode
    assert await files.glob(b"**/x") == [b"copied/x", b"moved/x"]
    assert await files.read(b"deep/er/file", offset=1000, length=5) == bytes(range(256))[1000 % 256 :][:5]
    assert await runs(workspace) is mounted
    await land(workspace)
    landed = snapshot(root)
    assert {path: (root / os.fsdecode(path)).read_bytes() for path in expected} == expected
    assert stat.S_ISLNK(landed[b"pointer"].kind)
    assert b"d" not in landed
    assert stat.S_IMODE((root / "b").stat().st_mode) == 0o700


async def test_what_can_not_be_done_is_the_same_error_either_way(workspace: Workspace) -> None:
    files: Files = workspace.files
    assert await code_of(files.read, b"none") == errno.ENOENT
    assert await code_of(files.read, b"d") == errno.EISDIR
    assert await code_of(files.read, b"link") == errno.ELOOP
    assert await code_of(files.write, b"d", b"") == errno.EISDIR
    assert await code_of(files.write, b"link", b"") == errno.ELOOP
    assert await code_of(files.write, b"none/x", b"") == errno.ENOENT
    assert await code_of(files.write, b"a/x", b"") == errno.ENOTDIR
    assert await code_of(files.append, b"link", b"") == errno.ELOOP
    assert await code_of(files.create, b"a") == errno.EEXIST
    assert await code_of(files.mkdir, b"d") == errno.EEXIST
    assert await code_of(files.makedirs, b"a") == errno.EEXIST
    assert await code_of(files.makedirs, b"d/e") == errno.EEXIST
    assert await code_of(files.rmdir, b"d") == errno.ENOTEMPTY
    assert await code_of(files.rmdir, b"a") == errno.ENOTDIR
    assert await code_of(files.unlink, b"d") == errno.EISDIR
    assert await code_of(files.unlink, b"none") == errno.ENOENT
    assert await code_of(files.remove_tree, b"") == errno.EBUSY
    assert await code_of(files.rename, b"d", b"d/e/in") == errno.EINVAL
    assert await code_of(files.rename, b"a", b"b", replace=False) == errno.EEXIST
    assert await code_of(files.rename, b"a", b"d") == errno.EISDIR
    assert await code_of(files.copy, b"d", b"d/in") == errno.EINVAL
    assert await code_of(files.copy, b"a", b"b", replace=False) == errno.EEXIST
    assert await code_of(files.symlink, b"x", b"a") == errno.EEXIST
    assert await code_of(files.link, b"a", b"b") == errno.EEXIST
    assert await code_of(files.chmod, b"link", 0o600) == errno.ENOTSUP
    assert await code_of(files.open, b"a", "xb") == errno.EEXIST
    assert await code_of(files.open, b"none", "r+b") == errno.ENOENT
    await files.makedirs(b"d/e", exist_ok=True)
    assert (await workspace.changes()).shown == ()


async def test_names_that_are_no_text_are_written_like_any_other(workspace: Workspace, root: Path) -> None:
    files = workspace.files
    for name in (b"\xff\xfe", b"new\nline", b"n" * 255, b" -x", b"report..final.md"):
        await files.write(name, name)
        await files.rename(name, b"d/" + name)
        assert await files.read(b"d/" + name) == name
    await land(workspace)
    assert (root / "d" / os.fsdecode(b"\xff\xfe")).read_bytes() == b"\xff\xfe"


async def test_a_file_is_put_in_place_when_it_is_closed_and_not_before(workspace: Workspace) -> None:
    files = workspace.files
    async with await files.open(b"a", "wb") as file:
        await file.write(b"half")
        await file.flush()
        assert await files.read(b"a") == b"one\n"
    assert await files.read(b"a") == b"half"
    async with await files.open(b"a", "r+b") as file:
        assert await file.read() == b"half"
    async with await files.open(b"log", "ab") as one, await files.open(b"log", "ab") as two:
        await one.write(b"1")
        await two.write(b"2")
    assert sorted(await files.read(b"log")) == sorted(b"12")


async def test_what_a_person_changed_after_it_was_written_is_a_conflict(workspace: Workspace, root: Path) -> None:
    files = workspace.files
    await files.write(b"a", b"agent\n")
    await files.append(b"d/x", b"agent\n")
    await files.unlink(b"b")
    await files.rename(b"d/e", b"d/f")
    await files.write(b"fresh", b"agent\n")
    save_by_rename(root / "a", "person\n")
    save_by_rename(root / "d" / "x", "person\n")
    (root / "b").write_text("person\n")
    (root / "d" / "e" / "z").write_text("person\n")
    (root / "fresh").write_text("person\n")
    before = snapshot(root)
    with pytest.raises(ConflictError) as caught:
        await land(workspace)
    assert {b"a", b"d/x", b"b", b"d/e/z", b"fresh"} <= set(caught.value.paths)
    assert snapshot(root) == before


async def test_what_a_person_changed_before_it_was_written_is_a_conflict(workspace: Workspace, root: Path) -> None:
    files = workspace.files
    await files.write(b"first", b"agent\n")
    save_by_rename(root / "a", "person\n")
    with open(root / "d" / "x", "a") as file:
        file.write("person\n")
    await files.write(b"a", b"agent\n")
    await files.append(b"d/x", b"agent\n")
    await files.write(b"b", b"agent\n")
    with pytest.raises(ConflictError) as caught:
        await land(workspace)
    assert set(caught.value.paths) == {b"a", b"d/x"}


async def test_what_a_person_leaves_alone_lands_whatever_else_is_saved_beside_it(
    workspace: Workspace, root: Path
) -> None:
    files = workspace.files
    await files.write(b"d/x", b"agent\n")
    save_by_rename(root / "d" / "y", "person\n")
    (root / "d" / "e" / "added").write_text("person\n")
    await files.write(b"d/e/z", b"agent\n")
    await files.write(b"d/e/new", b"agent\n")
    await land(workspace)
    assert (root / "d" / "x").read_text() == (root / "d" / "e" / "z").read_text() == "agent\n"
    assert (root / "d" / "y").read_text() == (root / "d" / "e" / "added").read_text() == "person\n"
    assert (await workspace.changes()).shown == ()


async def test_direct_changes_and_commands_take_turns_without_a_false_conflict(
    engine: None, state: Path, root: Path
) -> None:
    async with Workspace.open(root) as workspace:
        files = workspace.files
        await files.write(b"a", b"1\n")
        await workspace.exec(Command(("sh", "-c", "cat a > seen; echo 2 >> a; echo 2 > d/x")))
        await files.append(b"a", b"3\n")
        await workspace.stop()
        (root / "b").write_text("person\n")
        assert await files.read(b"b") == b"person\n"
        await files.append(b"b", b"agent\n")
        await files.append(b"d/x", b"4\n")
        assert await files.read(b"seen") == b"1\n"
        await land(workspace)
    assert (root / "a").read_text() == "1\n2\n3\n"
    assert (root / "b").read_text() == "person\nagent\n"
    assert (root / "d" / "x").read_text() == "2\n4\n"


async def test_a_direct_change_departs_from_what_was_read(state: Path, root: Path) -> None:
    async with Workspace.open(root) as workspace:
        files = workspace.files
        assert await files.read(b"a") == b"one\n"
        assert await files.read(b"b") == b"two\n"
        save_by_rename(root / "a", "person\n")
        # Nothing was written yet, but what is written now was thought out over the old one.
        await files.write(b"a", b"agent\n")
        save_by_rename(root / "b", "person\n")
        # And here over the new one.
        assert await files.read(b"b") == b"person\n"
        await files.write(b"b", b"agent\n")
        with pytest.raises(ConflictError) as caught:
            await land(workspace)
        assert caught.value.paths == (b"a",)


async def test_a_directory_that_is_called_as_the_scratch_one_is_an_ordinary_one(state: Path, root: Path) -> None:
    (root / "_notes").mkdir()
    (root / "_notes" / "mine").write_text("mine\n")
    async with Workspace.open(root) as workspace:
        await workspace.files.append(b"_notes/mine", b"more\n")
        await workspace.files.makedirs(b"_notes-2")
        await workspace.files.write(b"_notes-2/plan", b"plan\n")
        assert b"_notes" in workspace.view.list(b"")
        await land(workspace)
    assert (root / "_notes" / "mine").read_text() == "mine\nmore\n"
    assert not (root / "_notes-2").exists()
    (root / "_notes" / "mine").unlink()
    (root / "_notes").rmdir()
    # It was fixed when the session began.
    async with Workspace.open(root) as workspace:
        assert workspace.view.scratch == b"_notes-2"
        assert await workspace.files.read(b"_notes-2/plan") == b"plan\n"
    async with Workspace.open(root, session="other") as workspace:
        assert workspace.view.scratch == b"_notes"


async def test_notes_are_checkpointed_and_rewound_like_everything_else(state: Path, root: Path) -> None:
    async with Workspace.open(root) as workspace:
        plan = workspace.view.scratch + b"/plan"
        await workspace.files.makedirs(workspace.view.scratch)
        await workspace.files.write(plan, b"first\n")
        await workspace.checkpoint("one")
        await workspace.files.write(plan, b"second\n")
        await workspace.files.write(workspace.view.scratch + b"/more", b"more\n")
        await workspace.rewind("one")
        assert await workspace.files.read(plan) == b"first\n"
        assert workspace.view.list(workspace.view.scratch) == [b"plan"]
        await workspace.redo()
        assert await workspace.files.read(plan) == b"second\n"
        assert workspace.view.list(workspace.view.scratch) == [b"more", b"plan"]


async def test_an_epoch_ends_with_the_checkpoint_after_it(state: Path, root: Path) -> None:
    async with Workspace.open(root) as workspace:
        await workspace.files.write(b"first", b"agent\n")
        await workspace.checkpoint("m1")
        save_by_rename(root / "a", "person\n")
        await workspace.files.append(b"a", b"agent\n")
        await land(workspace)
    assert (root / "a").read_text() == "person\nagent\n"


async def test_commands_may_change_what_was_written_directly(engine: None, state: Path, root: Path) -> None:
    os.chown(root, *((1234, 1234) if os.geteuid() == 0 else (-1, -1)))
    async with Workspace.open(root) as workspace:
        await workspace.files.makedirs(b"made/by")
        await workspace.files.write(b"made/by/tool", b"tool\n")
        await workspace.files.symlink(b"tool", b"made/by/link")
        script = "echo more >> made/by/tool && touch made/by/new && rm made/by/link"
        result = await workspace.exec(Command(("sh", "-c", script)))
        assert result.exit_code == 0, result.stderr
        assert await workspace.files.read(b"made/by/tool") == b"tool\nmore\n"


async def test_what_a_person_saved_under_a_sandbox_is_read_as_commands_see_it(
    engine: None, state: Path, root: Path
) -> None:
    async with Workspace.open(root) as workspace, await workspace.sandbox() as client:
        # Something runs, so that it isn't mounted anew before the next command.
        job = await client.spawn(Command(("cat", "a", "-"), stdin=True))
        save_by_rename(root / "a", "person, and longer\n")
        inside = (await workspace.exec(Command(("cat", "a"), output_limit=1 << 20))).stdout
        assert inside in (b"one\n", b"person, and longer\n")
        assert await workspace.files.read(b"a") == inside
        assert (await workspace.files.stat(b"a")).size == len(inside)
        await job.kill()
        await job.wait()


async def test_many_who_write_at_once_lose_nothing(workspace: Workspace, root: Path) -> None:
    files = workspace.files
    async with Workspace.open(root) as other, anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(files.append, b"log", b"a%d\n" % number)
            group.start_soon(other.files.append, b"log", b"b%d\n" % number)
            group.start_soon(files.write, b"file-%d" % number, b"%d" % number)
    assert sorted(await files.read(b"log")) == sorted(b"".join(b"a%d\nb%d\n" % (n, n) for n in range(8)))
    assert [await files.read(b"file-%d" % number) for number in range(8)] == [b"%d" % number for number in range(8)]


async def test_a_sandbox_that_is_stopped_meanwhile_costs_no_write(engine: None, state: Path, root: Path) -> None:
    async with Workspace.open(root) as workspace:
        await workspace.exec(Command(("true",)))
        async with anyio.create_task_group() as group:
            group.start_soon(workspace.stop)
            for number in range(5):
                await workspace.files.write(b"file-%d" % number, b"%d" % number)
        assert not await runs(workspace)
        await workspace.exec(Command(("sh", "-c", "cat file-* > all")))
        assert await workspace.files.read(b"all") == b"01234"


def test_a_killed_writer_leaves_all_or_nothing_and_the_lock_free(state: Path, root: Path) -> None:
    script = (
        "import os, sys\n"
        "from workbench.workspace import Workspace\n"
        "view = Workspace.open(sys.argv[1]).view\n"
        "number = 0\n"
        "while True:\n"
        "    number += 1\n"
        "    view.write_bytes(b'a', b'%d\\n' % number * 1000)\n"
        "    print(number, flush=True)\n"
    )
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", script, str(root)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        for _ in range(5):
            writer.stdout.readline()
        writer.kill()
        writer.wait()
        writer.stdout.close()
        with contextlib.closing(Workspace.open(root)) as workspace:
            lines = workspace.view.read_bytes(b"a").splitlines()
            assert len(lines) == 1000
            assert len(set(lines)) == 1
            workspace.view.write_bytes(b"b", b"free\n")
