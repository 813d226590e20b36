"""A person who edits while a commit is on its way loses nothing, and the commit never writes outside."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.review.landing import Landing, Make, count_of, freshly_made
from tests.trees import Node, snapshot
from workbench.errors import ConflictError
from workbench.review.recovery import pending
from workbench.vfs import syscalls

Edit = Callable[[Landing, bytes], None]

TYPED = b"what a person typed meanwhile"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with freshly_made(tmp_path) as fresh:
        yield fresh


def save(landing: Landing, path: bytes) -> None:
    target = landing.at("lower", path)
    with open(landing.base / "saving", "wb") as file:
        file.write(TYPED)
    os.rename(landing.base / "saving", target)


def overwrite(landing: Landing, path: bytes) -> None:
    fd = os.open(landing.at("lower", path), os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW)
    os.write(fd, TYPED)
    os.close(fd)


def overwrite_with_old_times(landing: Landing, path: bytes) -> None:
    """The same size and mtime as before: only reading it tells."""
    target = landing.at("lower", path)
    status = os.stat(target)
    fd = os.open(target, os.O_WRONLY | os.O_NOFOLLOW)
    os.write(fd, TYPED[: status.st_size])
    os.close(fd)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def delete(landing: Landing, path: bytes) -> None:
    os.unlink(landing.at("lower", path))


def turn_into_directory(landing: Landing, path: bytes) -> None:
    target = landing.at("lower", path)
    os.unlink(target)
    os.mkdir(target)
    with open(os.path.join(target, b"in it"), "wb") as file:
        file.write(TYPED)


def turn_into_fifo(landing: Landing, path: bytes) -> None:
    target = landing.at("lower", path)
    os.unlink(target)
    os.mkfifo(target)


EDITS: list[tuple[bytes, Edit]] = [
    (b"replaced", turn_into_fifo),
    (b"deleted", turn_into_fifo),
    (b"mode", turn_into_fifo),
    (b"mode", turn_into_directory),
    (b"replaced", turn_into_directory),
    (b"deleted", turn_into_directory),
    (b"d/added", turn_into_directory),
    (b"to-file/child", turn_into_directory),
    (b"replaced", save),
    (b"replaced", overwrite),
    (b"replaced", overwrite_with_old_times),
    (b"replaced", delete),
    (b"deleted", save),
    (b"deleted", overwrite),
    (b"mode", save),
    (b"renamed", save),
    (b"renamed-to", save),
    (b"to-dir", save),
    (b"to-link", save),
    (b"link", save),
    (b"to-file/child", save),
    (b"to-file/added", save),
    (b"gone/deep/file", overwrite),
    (b"gone/deep/er/added", save),
    (b"d/changed", save),
    (b"d/added", save),
    (b"fresh/mine", save),
    (b"fresh/tree/of/files", overwrite),
]


def at_and_below(tree: dict[bytes, Node], path: bytes) -> dict[bytes, Node]:
    return {found: node for found, node in tree.items() if found == path or found.startswith(path + b"/")}


@pytest.mark.parametrize(("path", "edit"), EDITS)
def test_an_edit_at_any_step_is_never_lost(make: Make, path: bytes, edit: Edit) -> None:
    steps = count_of(lambda hook: make().land(on_step=hook))
    for at in range(0, steps, 3):
        landing = make()
        old, new, reviewed = landing.tree(), landing.merged(), landing.review()
        count = 0
        edited: dict[bytes, Node] = {}
        is_edited = False

        def hook(_: str) -> None:
            nonlocal count, edited, is_edited
            if count == at:  # noqa: B023
                with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    edit(landing, path)  # noqa: B023
                    edited = at_and_below(snapshot(landing.lower_path, times=False), path)  # noqa: B023
                    is_edited = True
            count += 1

        conflict = False
        with contextlib.suppress(ConflictError):
            conflict = True
            landing.land(reviewed, hook)
            conflict = False
        landing.assert_tidy()
        tree = landing.tree()
        if is_edited:
            assert at_and_below(tree, path) == edited, (at, conflict)
        above = {path[:end] for end, byte in enumerate(path) if byte == ord("/")}
        expected = old if conflict else new

        def rest(tree: dict[bytes, Node], above: set[bytes] = above) -> dict[bytes, Node]:
            return {
                found: node
                for found, node in tree.items()
                if found != path and found not in above and not found.startswith(path + b"/")
            }

        assert rest(tree) == rest(expected), (at, conflict)


def swap_for_symlink(landing: Landing, path: bytes, outside: Path) -> None:
    target = landing.at("lower", path)
    os.rename(target, os.fsencode(outside / "moved"))
    os.symlink(os.fsencode(outside / "other"), target)


def move_away(landing: Landing, path: bytes, outside: Path) -> None:
    os.rename(landing.at("lower", path), os.fsencode(outside / "moved"))


@pytest.mark.parametrize("swap", [swap_for_symlink, move_away])
def test_a_directory_taken_away_at_any_step_is_never_written_to(
    make: Make, tmp_path: Path, swap: Callable[[Landing, bytes, Path], None]
) -> None:
    steps = count_of(lambda hook: make().land(on_step=hook))
    for at in range(steps):
        landing = make()
        outside = tmp_path / f"outside{at}"
        (outside / "other").mkdir(parents=True)
        (outside / "other" / "changed").write_text("another's")
        other = snapshot(outside / "other")
        reviewed = landing.review()
        before = snapshot(landing.at("lower", b"d"), times=False)
        moved_as: list[dict[bytes, Node]] = []
        count = 0

        def hook(_: str) -> None:
            nonlocal count
            if count == at:  # noqa: B023
                moved_as.append(snapshot(landing.at("lower", b"d"), times=False))  # noqa: B023
                swap(landing, b"d", outside)  # noqa: B023
            count += 1

        landed = True
        try:
            landing.land(reviewed, hook)
        except ConflictError:
            landed = False
        assert not pending(landing.commits)
        assert snapshot(outside / "other") == other
        # Where it was moved before anything in it was changed, nothing in it was; else it's as it was when it was moved, or
        # the one change that was on its way was taken back.
        after = snapshot(outside / "moved", times=False)
        assert after == moved_as[0] or after == before, at
        if landed:
            assert after == moved_as[0]


def test_an_edit_while_an_edit_is_put_back_stands_in_the_end(make: Make) -> None:
    """A person saves between the check and the exchange, and again between the exchange and the one that takes it back."""
    landing = make()
    reviewed = landing.review()
    target = landing.at("lower", b"replaced")
    state = {"exchanges": 0, "armed": False}

    def saving(content: bytes) -> None:
        with open(landing.base / "saving", "wb") as file:
            file.write(content)
        os.rename(landing.base / "saving", target)

    real = syscalls.renameat2

    def renameat2(*arguments: object) -> None:
        exchanging = len(arguments) > 4 and arguments[4] == syscalls.RENAME_EXCHANGE and arguments[3] == b"replaced"
        if exchanging:
            state["exchanges"] += 1
            saving(b"save %d" % state["exchanges"]) if state["exchanges"] <= 3 else None
        real(*arguments)  # type: ignore[arg-type]

    syscalls.renameat2 = renameat2  # type: ignore[assignment]
    try:
        with pytest.raises(ConflictError) as caught:
            landing.land(reviewed)
    finally:
        syscalls.renameat2 = real
    assert landing.read(b"replaced") == b"save %d" % min(state["exchanges"], 3)
    # The saves before are named where they're kept.
    assert "kept as" in caught.value.message


@pytest.mark.parametrize("seed", range(4))
def test_a_racing_person_never_loses_a_save(make: Make, seed: int) -> None:
    """Saves by rename, deletes and creates as fast as can be, in another process, while commit after commit is tried."""
    chance = random.Random(seed)
    landing = make()
    paths = [b"replaced", b"d/changed", b"deleted", b"d/added", b"link", b"empty", b"mode"]
    log, stop = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(stop[1])
            os.set_blocking(stop[0], False)
            number = 0
            while True:
                path = chance.choice(paths)
                number += 1
                content = b"%d %d" % (number, chance.randrange(1 << 30))
                temporary = os.fsencode(landing.base / "saving")
                with open(temporary, "wb") as file:
                    file.write(content)
                with contextlib.suppress(OSError):
                    os.rename(temporary, landing.at("lower", path))
                    os.write(log[1], path + b"=" + content + b"\n")
                if select.select([stop[0]], [], [], chance.random() * 0.01)[0]:
                    break
        finally:
            os._exit(0)
    os.close(log[1])
    lines: list[bytes] = []

    def read() -> None:
        with os.fdopen(log[0], "rb") as stream:
            lines.extend(stream)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(25):
        reviewed = landing.review()
        # Any other error fails the test.
        with contextlib.suppress(ConflictError):
            landing.land(reviewed)
    os.close(stop[1])
    os.waitpid(pid, 0)
    reader.join()
    os.close(stop[0])
    landing.assert_tidy()
    last = dict(line.rstrip(b"\n").split(b"=", 1) for line in lines)
    assert last
    for path, content in last.items():
        # What the person saved last stands, unless a review saw it and what was reviewed then landed over it.
        if landing.read(path) != content:
            kept = snapshot(landing.commits, times=False)
            assert hashlib.sha256(content).hexdigest() in {node.content for node in kept.values()}, path
