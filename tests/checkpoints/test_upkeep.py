"""A store stays small and whole: retention, purging, collecting, checking, going on after damage."""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
import zlib
from pathlib import Path

import pytest

from tests.checkpoints.layers import Layers
from tests.checkpoints.test_store import check, run_git
from workbench.checkpoints import git, upkeep
from workbench.checkpoints.history import Purpose, RowKind
from workbench.checkpoints.store import Checkpoint, CheckpointStore
from workbench.checkpoints.upkeep import Retention
from workbench.errors import CheckpointError, OptionsError
from workbench.vfs.local import LocalStorage
from workbench.vfs.upper import LocalUpper


def many(layers: Layers, count: int) -> list[Checkpoint]:
    """Checkpoints that each change a file and add one."""
    taken = []
    for number in range(count):
        (layers.upper / "same").write_text(f"number {number}\n" * 50)
        (layers.upper / f"f{number}").write_bytes(os.urandom(300))
        taken.append(layers.take())
    return taken


def contents(store: CheckpointStore, checkpoint: Checkpoint) -> dict[bytes, bytes]:
    return {path: store.read(entry.blob) for path, entry in checkpoint.manifest.entries.items() if entry.blob}


def test_a_collection_keeps_all_that_checkpoints_need_in_one_pack(layers: Layers) -> None:
    (layers.upper / "big").write_bytes(b"x" * (9 << 20))
    taken = many(layers, 12)
    (layers.upper / "big").unlink()
    taken.append(layers.take())
    before = [contents(layers.store, each) for each in taken]
    collected = upkeep.collect(layers.store)
    assert collected.after < collected.before
    assert len(list(Path(layers.store.pack_directory).glob("*.pack"))) == 1
    assert [contents(layers.store, each) for each in layers.store.all("default")] == before
    with CheckpointStore(layers.store.directory) as store:
        assert [contents(store, each) for each in store.all("default")] == before
    check(layers.store)
    many(layers, 3)
    check(layers.store)


def test_a_dropped_checkpoint_leaves_and_takes_its_contents_along(layers: Layers) -> None:
    first, *_ = many(layers, 3)
    (layers.upper / "secret").write_text("only here")
    (layers.upper / "big").write_bytes(os.urandom(9 << 20))
    held = layers.take(message_id="held")
    blobs = [held.manifest.entries[path].blob for path in (b"secret", b"big")]
    (layers.upper / "secret").unlink()
    (layers.upper / "big").unlink()
    last = layers.take(message_id="last")
    upkeep.drop(layers.store, "default", held)
    upkeep.collect(layers.store)
    assert [each.message_id for each in layers.store.list("default")] == ["last", "m3", "m2", "m1"]
    assert [layers.store.has(blob) for blob in blobs] == [False, False]
    # By its old id what stays is found, and the numbers stay.
    assert layers.store.get(last.commit).message_id == "last"
    assert layers.store.get(first.commit) == layers.store.find("default", "m1")
    assert [each.number for each in layers.store.all("default")] == [1, 2, 3, 5]
    with pytest.raises(CheckpointError) as caught:
        layers.store.find("default", "held")
    assert caught.value.code == "checkpoint_not_found"
    check(layers.store)


def test_the_last_checkpoint_is_never_dropped(layers: Layers) -> None:
    *_, last = many(layers, 2)
    with pytest.raises(CheckpointError, match="needed"):
        upkeep.drop(layers.store, "default", last)


def test_an_index_lost_after_a_rewrite_is_made_anew(layers: Layers) -> None:
    taken = many(layers, 4)
    layers.take(message_id="again")
    upkeep.drop(layers.store, "default", taken[1])
    before = layers.store.all("default")
    (index,) = Path(layers.store.directory, "sessions").iterdir()
    lines = index.read_bytes().splitlines(keepends=True)
    index.write_bytes(b"".join(lines[:1]))
    with CheckpointStore(layers.store.directory) as store:
        # The line without a commit of its own stood in the index alone.
        assert store.all("default") == before[:-1]


def test_retention_keeps_the_newest_within_count_age_and_size_and_steps_go_first(layers: Layers) -> None:
    for number in range(4):
        (layers.upper / "f").write_bytes(os.urandom(1000))
        layers.take(message_id=f"m{number}")
        for step in (1, 2):
            (layers.upper / "f").write_bytes(os.urandom(1000))
            layers.take(message_id=f"m{number}", purpose=Purpose(step=step))
        layers.take(message_id=None, purpose=Purpose(RowKind.UPKEEP))
    last = layers.take(message_id="last")
    origin = layers.store.find("default", "m0", 1)
    upkeep.retain(layers.store, "default", Retention(count=7), [origin.commit])

    def kept() -> list[tuple[str, int]]:
        return [(each.message_id, each.purpose.step) for each in layers.store.list("default") if each.is_listed]

    assert kept() == [("last", 0), ("m3", 2), ("m3", 0), ("m2", 0), ("m1", 0), ("m0", 1), ("m0", 0)]
    upkeep.retain(layers.store, "default", Retention(size=2500))
    assert kept() == [("last", 0), ("m3", 0)]
    upkeep.retain(layers.store, "default", Retention(days=0))
    assert kept() == [("last", 0)]
    assert contents(layers.store, layers.store.find("default", "last")) == contents(layers.store, last)
    check(layers.store)


def test_what_was_taken_for_ourselves_stays_for_an_hour_and_takes_nobodys_place(
    layers: Layers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that runs is compared with what was there before it."""
    for number in range(3):
        (layers.upper / "f").write_text(f"{number}")
        layers.take(message_id=f"m{number}")
        (layers.upper / "f").write_text(f"before a command {number}")
        before = layers.take(message_id=None, purpose=Purpose(RowKind.UPKEEP))
    layers.take(message_id="last")
    assert upkeep.retain(layers.store, "default", Retention(count=2)) == 2
    assert contents(layers.store, layers.store.get(before.commit)) == {b"f": b"before a command 2"}
    assert [each.message_id for each in layers.store.list("default") if each.is_listed] == ["last", "m2"]
    later = time.time_ns() + 2 * 3_600_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: later)
    assert upkeep.retain(layers.store, "default", Retention(count=2)) == 0
    assert [each.message_id for each in layers.store.list("default")] == ["last", "m2"]
    check(layers.store)


def test_a_collection_goes_on_beside_who_adds_all_the_time(layers: Layers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time it has packed all there is, there is more; it ends all the same, and nothing is missing."""
    many(layers, 3)
    real, rounds = git.run, list[Checkpoint]()

    def more(*arguments: str, stdin: bytes = b"") -> bytes:
        packed = real(*arguments, stdin=stdin)
        if len(rounds) < upkeep._ROUNDS:
            (layers.upper / "f").write_bytes(os.urandom(50))
            rounds.append(layers.take())
        return packed

    monkeypatch.setattr(git, "run", more)
    upkeep.collect(layers.store)
    assert len(rounds) == upkeep._ROUNDS
    assert upkeep.verify(layers.store).broken == []
    assert layers.store.list("default")[: len(rounds)] == rounds[::-1]
    check(layers.store)


def test_a_purged_path_leaves_every_checkpoint_of_every_session(layers: Layers) -> None:
    (layers.upper / "d").mkdir()
    (layers.upper / "d" / "token").write_text("a secret of the agent's")
    (layers.lower / "d").mkdir()
    (layers.lower / "d" / "token").write_text("a secret of the person's")
    (layers.upper / "f").write_text("stays")
    layers.take(message_id="a")
    layers.take(message_id="b")
    layers.store.name("other", layers.store.find("default", "a"), message_id="o")
    (layers.upper / "f").write_text("stays, too")
    layers.take(message_id="c")
    assert upkeep.purge(layers.store, b"d/token") == 4
    for session in ("default", "other"):
        for checkpoint in layers.store.all(session):
            assert b"d/token" not in checkpoint.manifest.entries
            assert contents(layers.store, checkpoint)[b"f"].startswith(b"stays")
    objects = run_git(layers.store, "cat-file", "--batch-all-objects", "--batch")
    assert b"stays" in objects
    assert b"secret" not in objects
    check(layers.store)
    assert upkeep.purge(layers.store, b"d/token") == 0
    # What the overlay holds is kept again with the next one.
    assert b"d/token" in layers.take().manifest.entries


@pytest.mark.parametrize("path", [b"", b".", b"a/../b"])
def test_what_names_nothing_is_not_purged(layers: Layers, path: bytes) -> None:
    with pytest.raises(OptionsError):
        upkeep.purge(layers.store, path)


def test_collections_and_writers_of_other_sessions_do_not_disturb_each_other(layers: Layers, tmp_path: Path) -> None:
    """What a writer relies on stays, though the last reference to it goes at that moment."""
    failures: list[BaseException] = []
    stop = threading.Event()

    def write(session: str) -> None:
        place = tmp_path / session
        place.mkdir()
        own = Layers(place, CheckpointStore(layers.store.directory))
        for name in ("lower", "upper", "work"):
            (place / name).mkdir()
        try:
            number = 0
            while not stop.is_set() and number < 60:
                number += 1
                # The same few contents come and go.
                (own.upper / "f").write_text(f"content {number % 3}" * 100)
                with LocalUpper(bytes(own.upper)) as upper, LocalStorage(bytes(own.lower)) as lower:
                    taken = own.store.take(session, upper, lower, epoch_ns=None)
                assert contents(own.store, taken)[b"f"].startswith(b"content")
                if number % 5 == 0:
                    upkeep.retain(own.store, session, Retention(count=2))
        except BaseException as error:  # noqa: BLE001
            failures.append(error)
        finally:
            own.store.close()

    writers = [threading.Thread(target=write, args=(f"s{number}",)) for number in range(2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        upkeep.collect(layers.store)
    stop.set()
    for writer in writers:
        writer.join()
    assert failures == []
    assert upkeep.verify(layers.store).broken == []
    check(layers.store)


def test_nobody_waits_while_the_store_is_packed_together(layers: Layers, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = many(layers, 3)
    real = git.run
    during: list[Checkpoint] = []

    def theirs() -> None:
        with CheckpointStore(layers.store.directory) as store, LocalUpper(bytes(layers.upper)) as upper:
            during.append(store.take("other", upper, upper, message_id="theirs", epoch_ns=0))

    def meanwhile(*arguments: str, stdin: bytes = b"") -> bytes:
        monkeypatch.setattr(git, "run", real)
        thread = threading.Thread(target=theirs, daemon=True)
        thread.start()
        thread.join(300)
        assert during, "the other session waits"
        return real(*arguments, stdin=stdin)

    monkeypatch.setattr(git, "run", meanwhile)
    upkeep.collect(layers.store)
    with CheckpointStore(layers.store.directory) as store:
        assert store.list("other") == during
        assert store.find("other", "theirs").manifest == during[0].manifest
        assert store.list("default") == taken[::-1]
    assert upkeep.verify(layers.store).broken == []
    check(layers.store)


@pytest.mark.root
@pytest.mark.usefixtures("root")
def test_a_store_of_another_owner_is_packed_without_any_directory_being_declared_safe(layers: Layers) -> None:
    taken = many(layers, 3)
    for path in (Path(layers.store.directory), *Path(layers.store.directory).rglob("*")):
        os.chown(path, 65534, 65534)
    upkeep.collect(layers.store)
    assert len(list(Path(layers.store.pack_directory).glob("*.pack"))) == 1
    assert layers.store.list("default") == taken[::-1]


def test_a_full_disk_is_said_before_anything_is_packed(layers: Layers, monkeypatch: pytest.MonkeyPatch) -> None:
    many(layers, 3)
    real = os.statvfs(layers.store.directory)

    class Full:
        f_bavail, f_frsize = 1, real.f_frsize

    monkeypatch.setattr(os, "statvfs", lambda _: Full)
    before = sorted(os.listdir(layers.store.pack_directory))
    with pytest.raises(CheckpointError, match="no room"):
        upkeep.collect(layers.store)
    assert sorted(os.listdir(layers.store.pack_directory)) == before


def damage(store: CheckpointStore, how: str, checkpoint: Checkpoint) -> None:
    """Spoil the pack that a checkpoint made."""
    name = run_git(store, "rev-parse", checkpoint.commit).decode().strip()
    for pack in Path(store.pack_directory).glob("*.pack"):
        with open(pack.with_suffix(".idx"), "rb") as index:
            listed = subprocess.run(["git", "show-index"], stdin=index, capture_output=True, check=True)
        if name.encode() in listed.stdout:
            pack.chmod(0o600)
            content = pack.read_bytes()
            if how == "truncated":
                pack.write_bytes(content[: len(content) // 2])
            elif how == "missing":
                pack.unlink()
            else:
                at = len(content) // 2
                pack.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
            return
    raise AssertionError("no pack has it")


@pytest.mark.parametrize("how", ["truncated", "missing", "flipped"])
def test_what_can_still_be_restored_is_told_and_taken_over(layers: Layers, how: str) -> None:
    taken = many(layers, 5)
    before = {each.message_id: contents(layers.store, each) for each in taken}
    damage(layers.store, how, taken[3])
    with CheckpointStore(layers.store.directory) as store:
        found = upkeep.verify(store)
        broken = {message for _, message, _ in found.broken}
        # What the fourth wrote, the fifth relies on.
        assert "m4" in broken or how == "flipped"
        assert broken <= {"m4", "m5"}
        assert found.whole == 5 - len(broken)
        aside, again = upkeep.start_afresh(store)
        assert (again.whole, len(again.broken)) == (found.whole, len(found.broken))
        assert os.path.isdir(aside)
        kept = store.all("default")
        assert {each.message_id for each in kept} == before.keys() - broken
        for checkpoint in kept:
            assert contents(store, checkpoint) == before[checkpoint.message_id]
        assert store.get(taken[0].commit).message_id == "m1"
        check(store)
    layers.store.close()
    layers.store = CheckpointStore(layers.store.directory)
    # It goes on.
    assert contents(layers.store, layers.take(message_id="next")) == before["m5"]
    check(layers.store)


def test_a_stale_lock_of_git_stops_nothing(layers: Layers) -> None:
    taken = many(layers, 3)
    for name in ("refs/workbench/default/tip.lock", "packed-refs.lock", "HEAD.lock", "gc.pid", "config.lock"):
        Path(layers.store.directory, name).touch()
    many(layers, 1)
    upkeep.collect(layers.store)
    assert layers.store.get(taken[0].commit) == taken[0]


def test_nothing_of_the_callers_configuration_is_run_or_heeded(
    layers: Layers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    trap = home / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {home}/sprung\nexit 1\n")
    trap.chmod(0o755)
    (home / ".gitconfig").write_text(
        f"[core]\n\thooksPath={home}\n\tfsmonitor={trap}\n\tpager={trap}\n\tsshCommand={trap}\n\tautocrlf=true\n"
        f"[commit]\n\tgpgSign=true\n[gpg]\n\tprogram={trap}\n[credential]\n\thelper={trap}\n"
        f'[filter "x"]\n\tclean={trap}\n\tsmudge={trap}\n[pack]\n\tpackSizeLimit=1\n[init]\n\ttemplateDir={home}\n'
    )
    for hook in ("reference-transaction", "post-checkout", "pre-auto-gc", "post-index-change"):
        (home / hook).symlink_to(trap)
    (layers.upper / ".gitattributes").write_text("* filter=x text eol=crlf ident working-tree-encoding=UTF-16\n")
    for name, value in {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home),
        "GIT_DIR": str(home),
        "GIT_INDEX_FILE": str(home / "index"),
        "GIT_OBJECT_DIRECTORY": str(home),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(home),
        "GIT_EXEC_PATH": str(home),
        "GIT_TEMPLATE_DIR": str(home),
        "GIT_TRACE": str(home / "trace"),
        "GIT_CONFIG_PARAMETERS": f"'core.hooksPath={home}'",
        "GIT_EXTERNAL_DIFF": str(trap),
        "GIT_PAGER": str(trap),
    }.items():
        monkeypatch.setenv(name, value)
    taken = many(layers, 4)
    before = [contents(layers.store, each) for each in taken]
    upkeep.drop(layers.store, "default", taken[1])
    upkeep.collect(layers.store)
    assert [contents(layers.store, each) for each in layers.store.all("default")] == [before[0], *before[2:]]
    assert not (home / "sprung").exists()
    assert not (home / "trace").exists()
    assert len(list(Path(layers.store.pack_directory).glob("*.pack"))) == 1
    with pytest.raises(CheckpointError):
        git.run(layers.store.directory, "cat-file", "-p", "0" * 40)


def test_a_store_of_many_small_changes_packs_to_about_their_compressed_size(layers: Layers) -> None:
    """Not a time: the bytes that a hundred checkpoints of two files take, against those files' own."""
    compressed = 0
    for number in range(100):
        for name in ("a", "b"):
            text = "".join(f"line {number} {name} {os.urandom(8).hex()}\n" for _ in range(40)).encode()
            compressed += len(zlib.compress(text, 6))
            (layers.upper / name).write_bytes(text)
        layers.take()
    upkeep.collect(layers.store)
    assert sum(path.stat().st_size for path in Path(layers.store.pack_directory).glob("*.pack")) < 1.6 * compressed


def test_a_store_of_files_of_ordinary_size_packs_to_their_compressed_size(layers: Layers) -> None:
    """As above, of text that has nothing in common with what was there before: no delta helps."""
    dice = random.Random(0)
    words = [f"{dice.choice('bcdfgklmnprst')}{dice.choice('aeiou')}" * dice.randrange(1, 5) for _ in range(400)]
    compressed = 0
    for _ in range(40):
        for name in ("a", "b", "c"):
            text = "\n".join(" ".join(dice.choices(words, k=8)) for _ in range(200)).encode()
            compressed += len(zlib.compress(text, 6))
            (layers.upper / name).write_bytes(text)
        layers.take()
    upkeep.collect(layers.store)
    assert sum(path.stat().st_size for path in Path(layers.store.pack_directory).glob("*.pack")) < 1.12 * compressed
    # What is packed tightly already is left as it is.
    many(layers, 2)
    upkeep.collect(layers.store)
    assert len(list(Path(layers.store.pack_directory).glob("*.pack"))) == 1
    check(layers.store)
