"""What histories, lockers and stores keep in files: killed, torn, full, unreadable, and used by several processes."""

from __future__ import annotations

import errno
import functools
import itertools
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import anyio
import pytest

from tests.conftest import ROOT
from tests.review.landing import CHANGING, calls, fail_at, in_child, kill_at
from tests.waiting import until
from workbench.agent.history import FileHistory, StoreHistory
from workbench.agent.locks import FileLocker, LocalLocker
from workbench.agent.stores import FileSessionStore, MemorySessionStore
from workbench.errors import HistoryError, LockError, OptionsError, StoreError
from workbench.protocol.messages import ChatMessage
from workbench.protocol.session_ids import file_name
from workbench.protocol.sessions import SessionDetail
from workbench.testing.conversations import SESSION_IDS, message, run, session

pytestmark = pytest.mark.anyio
forking = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

# What is tested goes on in other processes, or takes long and has nothing to do with the loop.
one_loop = pytest.mark.parametrize("anyio_backend", ["asyncio"])

T = TypeVar("T")
_STEPS = (*CHANGING, "write")


def ids(messages: tuple[ChatMessage, ...]) -> list[str]:
    return [each.id for each in messages]


def do(function: Callable[..., Awaitable[T]], *arguments: object) -> T:
    """Run it to its end, in a test that forks: a loop can't."""
    return anyio.run(function, *arguments)


def killed(count: int, act: Callable[[], Awaitable[object]]) -> bool:
    """Do it in a process that is killed at its changing call of that number; False where it ended before."""

    def once() -> None:
        with calls(kill_at(count), _STEPS):
            anyio.run(act)

    end = in_child(once)
    assert end in (0, -signal.SIGKILL)
    return end != 0


def _only(step: str) -> tuple[str, ...]:
    """The calls to listen to for one step to fail; a file that is made is always heard of."""
    return (step,) if step in ("fsync", "rename") else ()


def python(source: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", source, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


# Names


def test_every_id_has_a_name_of_its_own_that_is_one_plain_component() -> None:
    names = [file_name(id) for id in SESSION_IDS]
    assert len(set(names)) == len(SESSION_IDS)
    for name in names:
        assert len(name.encode()) <= 200
        assert name.isascii()
        assert "/" not in name
        assert not name.startswith(".")


def test_an_id_that_looks_like_a_hash_has_another_name_than_what_it_is_the_hash_of() -> None:
    """An id unfit for a file name is percent-encoded, beyond 200 bytes replaced by its SHA-256."""
    long = file_name("x" * 201)
    assert file_name(long) != long
    assert file_name(long.removeprefix("sha256=")) != long
    assert file_name("tenant-7/conversation-1") == "tenant-7%2Fconversation-1"
    assert file_name("x" * 200) == "x" * 200


@pytest.mark.parametrize("id", ["", "x" * 257, "\ud800"])
async def test_what_can_not_be_an_id_is_refused(id: str, tmp_path: Path) -> None:
    for attempt in (
        lambda: FileHistory(tmp_path).read(id),
        lambda: FileHistory(tmp_path).append(id, message("m")),
        lambda: FileSessionStore(tmp_path).load(id),
        lambda: FileSessionStore(tmp_path).delete(id),
    ):
        with pytest.raises(OptionsError):
            await attempt()
    with pytest.raises(OptionsError):
        async with FileLocker(tmp_path).lock(id):
            pass


# Histories


@one_loop
async def test_a_history_is_torn_at_any_byte_and_keeps_every_run_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A torn last line is set aside and reported."""
    history = FileHistory(tmp_path)
    await history.append("s", message("a"), message("b"))
    path = tmp_path / "s.jsonl"
    before = path.read_bytes()
    await history.append("s", message("c", "🙂"))
    whole = path.read_bytes()
    for end in (*range(len(before) + 1, len(whole), 5), len(whole) - 1):
        path.write_bytes(whole[:end])
        caplog.clear()
        assert ids(await history.read("s")) == ["a", "b"]
        assert "torn" in caplog.text
        await history.append("s", message("d"))
        assert ids(await history.read("s")) == ["a", "b", "d"]
        aside = tmp_path / "s.jsonl.torn-1"
        assert aside.read_bytes() == whole[len(before) : end]
        assert str(aside) in caplog.text
        aside.unlink()


async def test_a_line_that_can_not_be_read_is_left_out_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history = FileHistory(tmp_path)
    for name in ("a", "b", "c"):
        await history.append("s", message(name))
    path = tmp_path / "s.jsonl"
    first, _, last = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join((first, b"\0" * 10, last, b"")))
    assert ids(await history.read("s")) == ["a", "c"]
    assert "Line 2 of the history" in caplog.text
    await history.append("s", message("d"))
    assert ids(await history.read("s")) == ["a", "c", "d"]


@forking
def test_a_history_killed_at_any_step_has_the_run_whole_or_not_at_all(tmp_path: Path) -> None:
    """One append a run, all or nothing; kill -9 in the middle of every write leaves a readable history."""
    found = set()
    for count in itertools.count():
        history = FileHistory(tmp_path / str(count))

        async def act(history: FileHistory = history) -> None:
            await history.append("s", *run("a"))
            await history.append("s", *run("b"))

        was_killed = killed(count, act)
        kept = do(history.read, "s")
        assert kept in ((), run("a"), (*run("a"), *run("b")))
        found.add(len(kept))
        do(history.append, "s", *run("c"))
        assert do(history.read, "s") == (*kept, *run("c"))
        if not was_killed:
            break
    assert found == {0, len(run("a")), 2 * len(run("a"))}


@forking
def test_a_write_that_is_cut_short_by_a_kill_is_no_run(tmp_path: Path) -> None:
    history = FileHistory(tmp_path)
    do(history.append, "s", *run("a"))
    real = os.write

    def act() -> None:
        def half(fd: int, data: bytes) -> int:
            if data[:1] != b"{":
                return real(fd, data)
            real(fd, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
            return 0

        os.write = half
        anyio.run(history.append, "s", *run("b"))

    assert in_child(act) == -signal.SIGKILL
    assert do(history.read, "s") == run("a")
    do(history.append, "s", *run("c"))
    assert do(history.read, "s") == (*run("a"), *run("c"))
    assert (tmp_path / "s.jsonl.torn-1").exists()


@pytest.mark.parametrize("failing", ["write", "fsync", "create"])
async def test_a_disk_that_is_full_leaves_the_history_as_it_was(failing: str, tmp_path: Path) -> None:
    history = FileHistory(tmp_path)
    if failing != "create":
        await history.append("s", *run("a"))
    before = await history.read("s")
    real = os.write

    def full(fd: int, data: bytes) -> int:
        """What still fits is written."""
        if data[:1] == b"{":
            return real(fd, data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch, calls(fail_at(0, errno.ENOSPC), _only(failing)):
        if failing == "write":
            patch.setattr(os, "write", full)
        with pytest.raises(HistoryError, match="No space left"):
            await history.append("s", *run("b"))
    assert await history.read("s") == before
    await history.append("s", *run("c"))
    assert await history.read("s") == (*before, *run("c"))


async def test_threads_that_hang_keep_nothing_from_being_stored(tmp_path: Path) -> None:
    end = threading.Event()
    busy = anyio.to_thread.current_default_thread_limiter()
    async with anyio.create_task_group() as tasks:
        for _ in range(int(busy.total_tokens)):
            tasks.start_soon(anyio.to_thread.run_sync, end.wait, 600)
        await until(lambda: not busy.available_tokens)
        try:
            with anyio.fail_after(120):
                await FileHistory(tmp_path).append("s", *run("a"))
                assert await FileHistory(tmp_path).read("s") == run("a")
                store = FileSessionStore(tmp_path)
                await store.save(session("s"))
                assert await store.load("s") == session("s")
        finally:
            end.set()


async def test_a_symlink_in_a_historys_place_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("precious\n")
    (tmp_path / "h").mkdir()
    (tmp_path / "h" / "s.jsonl").symlink_to(outside)
    history = FileHistory(tmp_path / "h")
    with pytest.raises(HistoryError):
        await history.append("s", message("m"))
    with pytest.raises(HistoryError):
        await history.read("s")
    assert outside.read_text() == "precious\n"


async def test_what_is_kept_is_for_its_owner_alone(tmp_path: Path) -> None:
    await FileHistory(tmp_path / "history").append("s", message("m"))
    await FileSessionStore(tmp_path / "store").save(session("s"))
    async with FileLocker(tmp_path / "locks").lock("s"):
        pass
    for path in tmp_path.rglob("*"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


_APPENDING = """
import sys, anyio
from workbench.agent.history import FileHistory
from workbench.testing.conversations import run
async def main():
    for number in range(25):
        await FileHistory(sys.argv[1]).append("s", *run(f"{sys.argv[2]}.{number}"))
anyio.run(main)
"""


@one_loop
async def test_processes_append_to_one_history_and_no_run_is_lost_or_mixed(tmp_path: Path) -> None:
    """ "implementations must be safe for concurrent use", across processes with files, too."""
    children = [python(_APPENDING, tmp_path, name) for name in "ab"]
    for child in children:
        await anyio.to_thread.run_sync(child.communicate)
        assert child.returncode == 0
    found = await FileHistory(tmp_path).read("s")
    size = len(run("x"))
    names = [found[start].id.removesuffix("-user") for start in range(0, len(found), size)]
    assert sorted(names) == sorted(f"{name}.{number}" for name in "ab" for number in range(25))
    for start, name in zip(range(0, len(found), size), names, strict=True):
        assert found[start : start + size] == run(name)


# Lockers


_HOLDING = """
import sys, anyio
from workbench.agent.locks import FileLocker
async def main():
    async with FileLocker(sys.argv[1]).lock("s"):
        print("held", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)
anyio.run(main)
"""


@pytest.mark.parametrize("way", ["ends", "is killed"])
@one_loop
async def test_a_process_holds_the_lock_until_it_ends_however_it_does(way: str, tmp_path: Path) -> None:
    """ "With several replicas, implement Locker ...: without it, two replicas can interleave a transcript"."""
    child = python(_HOLDING, tmp_path)
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == "held\n"
    had = False
    with anyio.move_on_after(0.2):
        async with FileLocker(tmp_path).lock("s"):
            had = True
    assert not had
    async with FileLocker(tmp_path).lock("another"):
        pass
    if way == "ends":
        child.stdin.close()
    else:
        child.kill()
    with anyio.fail_after(120):
        async with FileLocker(tmp_path).lock("s"):
            pass
    child.wait()
    child.stdout.close()
    if way != "ends":
        child.stdin.close()


_COUNTING = """
import sys, anyio, pathlib
from workbench.agent.locks import FileLocker
async def main():
    file = pathlib.Path(sys.argv[2])
    locker = FileLocker(sys.argv[1])
    for number in range(40):
        async with locker.lock("s"):
            before = int(file.read_text())
            await anyio.lowlevel.checkpoint()
            file.write_text(str(before + 1))
        if number % 7 == 3:
            locker.forget("s")
anyio.run(main)
"""


@one_loop
async def test_processes_that_count_up_one_number_lose_none_even_where_the_lock_is_forgotten_meanwhile(
    tmp_path: Path,
) -> None:
    number = tmp_path / "number"
    number.write_text("0")
    children = [python(_COUNTING, tmp_path / "locks", number) for _ in range(2)]
    for child in children:
        await anyio.to_thread.run_sync(child.communicate)
        assert child.returncode == 0
    assert number.read_text() == "80"


async def test_a_locker_grows_with_the_ids_it_has_seen_and_forgets_one_when_told() -> None:
    """ "its memory grows with the session IDs it has seen, Forget(id) drops one after its last run"."""
    locker = LocalLocker()
    for number in range(10):
        async with locker.lock(str(number)):
            pass
    assert len(locker._entries) == 10
    for number in range(5):
        locker.forget(str(number))
    locker.forget("never seen")
    assert sorted(locker._entries) == ["5", "6", "7", "8", "9"]


async def test_forgetting_a_held_lock_lets_nobody_in_beside_its_holder() -> None:
    locker = LocalLocker()
    inside: list[int] = []

    async def hold(number: int) -> None:
        async with locker.lock("s"):
            inside.append(number)
            locker.forget("s")
            await anyio.lowlevel.checkpoint()
            assert inside == [number]
            inside.clear()

    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(hold, number)
    assert not locker._entries


async def test_forgetting_a_file_removes_it_unless_it_is_held(tmp_path: Path) -> None:
    locker = FileLocker(tmp_path)
    async with locker.lock("s"):
        FileLocker(tmp_path).forget("s")
        assert (tmp_path / "s.lock").exists()
    locker.forget("s")
    assert not (tmp_path / "s.lock").exists()
    locker.forget("s")


async def test_a_lock_in_a_place_that_can_not_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LockError) as raised:
        async with FileLocker(tmp_path / "file").lock("s"):
            pass
    assert raised.value.code == "lock_failed"
    (tmp_path / "s.lock").symlink_to(tmp_path / "file")
    with pytest.raises(LockError):
        async with FileLocker(tmp_path).lock("s"):
            pass


# Stores


async def test_a_session_is_in_a_directory_of_its_name(tmp_path: Path) -> None:
    """ "FileSessionStore writes <directory>/sessions/<id>/session.json"; "constructor(directory: string)"."""
    await FileSessionStore(tmp_path).save(session("tenant-7/one", "a"))
    path = tmp_path / "sessions" / "tenant-7%2Fone" / "session.json"
    assert json.loads(path.read_text())["id"] == "tenant-7/one"
    assert [each.name for each in path.parent.iterdir()] == ["session.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\0" * 100, b'{"id": "bad"}', b'{"id": 7}', b"\xff\xfe"])
async def test_a_corrupt_file_is_set_aside_and_reported_and_the_others_load(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """ "It ignores corrupt files rather than failing startup"."""
    store = FileSessionStore(tmp_path)
    for id in ("bad", "good"):
        await store.save(session(id, "a"))
    path = tmp_path / "sessions" / "bad" / "session.json"
    path.write_bytes(content)
    assert [each.id for each in await store.list()] == ["good"]
    assert "session.json.corrupt-1" in caplog.text
    assert (path.parent / "session.json.corrupt-1").read_bytes() == content
    assert await store.load("bad") is None
    await store.save(session("bad", "b"))
    assert await store.load("bad") == session("bad", "b")
    path.write_bytes(content)
    assert await store.load("bad") is None
    assert (path.parent / "session.json.corrupt-2").read_bytes() == content


async def test_what_is_no_session_is_left_alone(tmp_path: Path) -> None:
    store = FileSessionStore(tmp_path)
    await store.save(session("good"))
    sessions = tmp_path / "sessions"
    (sessions / "file").write_text("kept")
    (sessions / "empty").mkdir()
    (sessions / "directory" / "session.json").mkdir(parents=True)
    assert [each.id for each in await store.list()] == ["good"]
    assert await store.load("file") is None
    assert await store.load("empty") is None
    with pytest.raises(StoreError):
        await store.load("directory")
    assert (sessions / "file").read_text() == "kept"


@forking
def test_a_store_killed_at_any_step_of_a_save_has_the_old_session_or_the_new_one(tmp_path: Path) -> None:
    """ "via a temporary file and rename": a kill during a save loses nothing."""
    before, after = session("s", "a"), session("s", "a", "b", title="another")
    store = FileSessionStore(tmp_path)

    async def act() -> None:
        await store.save(after)
        await store.save(session("new", "c"))

    async def prepare() -> None:
        await store.delete("new")
        await store.save(before)

    async def look() -> tuple[SessionDetail | None, SessionDetail | None, set[str]]:
        return await store.load("s"), await store.load("new"), {each.id for each in await store.list()}

    found = set()
    for count in itertools.count():
        do(prepare)
        was_killed = killed(count, act)
        old, new, listed = do(look)
        assert old in (before, after)
        assert new in (None, session("new", "c"))
        assert listed == ({"s"} if new is None else {"s", "new"})
        found.add((old == after, new is not None))
        if not was_killed:
            break
    assert found == {(False, False), (True, False), (True, True)}


@forking
def test_a_store_killed_at_any_step_of_a_deletion_has_the_session_or_has_not(tmp_path: Path) -> None:
    store = FileSessionStore(tmp_path)

    async def prepare() -> None:
        await store.save(session("s", "a"))
        await store.save(session("kept", "b"))

    async def look() -> tuple[SessionDetail | None, SessionDetail | None]:
        await store.list()
        return await store.load("s"), await store.load("kept")

    found = set()
    for count in itertools.count():
        do(prepare)
        was_killed = killed(count, functools.partial(store.delete, "s"))
        state, kept = do(look)
        assert state in (None, session("s", "a"))
        assert kept == session("kept", "b")
        assert not [path for path in (tmp_path / "sessions").iterdir() if path.name.startswith(".removed")]
        found.add(state is None)
        if not was_killed:
            break
    assert found == {False, True}


async def test_a_full_disk_leaves_the_session_that_was_there(tmp_path: Path) -> None:
    store = FileSessionStore(tmp_path)
    await store.save(session("s", "a"))
    for step in ("create", "fsync", "rename"):
        with calls(fail_at(0, errno.ENOSPC), _only(step)), pytest.raises(StoreError) as raised:
            await store.save(session("s", "b"))
        assert raised.value.code == "store_failed"
        assert await store.load("s") == session("s", "a")
        assert [path.name for path in (tmp_path / "sessions" / "s").iterdir()] == ["session.json"]


async def test_a_deleted_session_leaves_nothing_behind(tmp_path: Path) -> None:
    store = FileSessionStore(tmp_path)
    history = StoreHistory(store)
    await history.append("s", *run("a"))
    await history.delete("s")
    assert [path for path in (tmp_path / "sessions").rglob("*") if path.is_file()] == []


# Whole sessions as a history


_CHANGING_ONE = """
import sys, anyio
from workbench.agent.history import StoreHistory
from workbench.agent.stores import FileSessionStore
from workbench.testing.conversations import run
async def main():
    history = StoreHistory(FileSessionStore(sys.argv[1]))
    for number in range(15):
        await history.append("s", *run(f"{sys.argv[2]}.{number}"))
        await history.change("s", lambda session: session.model_copy(update={"title": session.title + sys.argv[2]}))
anyio.run(main)
"""


@one_loop
async def test_processes_change_one_stored_session_and_no_change_is_lost(tmp_path: Path) -> None:
    children = [python(_CHANGING_ONE, tmp_path, name) for name in "ab"]
    for child in children:
        await anyio.to_thread.run_sync(child.communicate)
        assert child.returncode == 0
    found = await FileSessionStore(tmp_path).load("s")
    assert found is not None
    assert sorted(found.title) == sorted("ab" * 15)
    assert len(found.messages) == found.message_count == 30 * len(run("x"))


@pytest.mark.parametrize("kind", ["memory", "files"])
async def test_changes_side_by_side_lose_nothing(kind: str, tmp_path: Path) -> None:
    store = MemorySessionStore() if kind == "memory" else FileSessionStore(tmp_path)

    async def add(letter: str) -> None:
        await StoreHistory(store).change("s", lambda found: found.model_copy(update={"title": found.title + letter}))

    async with anyio.create_task_group() as tasks:
        for letter in "abcdefghij":
            tasks.start_soon(add, letter)
            tasks.start_soon(StoreHistory(store).append, "s", message(letter))
    found = await store.load("s")
    assert found is not None
    assert sorted(found.title) == list("abcdefghij")
    assert sorted(ids(found.messages)) == list("abcdefghij")


async def test_a_change_that_raises_changes_nothing_and_lets_go(tmp_path: Path) -> None:
    history = StoreHistory(FileSessionStore(tmp_path))
    await history.append("s", *run("a"))

    def refuse(found: SessionDetail) -> SessionDetail:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await history.change("s", refuse)
    assert await history.read("s") == run("a")
    await history.append("s", *run("b"))
    assert await history.read("s") == (*run("a"), *run("b"))


async def test_a_change_keeps_what_it_does_not_touch(tmp_path: Path) -> None:
    store = FileSessionStore(tmp_path)
    before = session("s", "a", is_running=True, pending=run("p"))
    await store.save(before)
    changed = await StoreHistory(store).change("s", lambda found: found.model_copy(update={"messages": run("b")}))
    after = before.model_copy(
        update={"messages": run("b"), "message_count": len(run("b")), "is_running": False, "pending": ()}
    )
    assert changed == after
    assert await store.load("s") == after


async def test_a_history_that_can_not_be_stored_says_so(tmp_path: Path) -> None:
    (tmp_path / "sessions").write_text("in the way")
    history = StoreHistory(FileSessionStore(tmp_path))
    with pytest.raises(HistoryError) as raised:
        await history.append("s", message("m"))
    assert raised.value.code == "history_failed"
    (tmp_path / "sessions").unlink()
    (tmp_path / "sessions" / "s" / "session.json").mkdir(parents=True)
    with pytest.raises(HistoryError):
        await history.read("s")
