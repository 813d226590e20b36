from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from workbench.errors import OverlayError, StateError
from workbench.protocol.records import OverlayRecord
from workbench.vfs import session
from workbench.vfs.local import LocalStorage
from workbench.vfs.overlay_lock import OverlayLock
from workbench.vfs.session import OverlayDirectory, tick


@pytest.fixture
def overlay(tmp_path: Path) -> OverlayDirectory:
    return OverlayDirectory.create(str(tmp_path / "overlays" / "default"), "default", scratch="_notes-2")


def test_a_new_overlay_is_private_and_empty(overlay: OverlayDirectory) -> None:
    assert os.stat(overlay.path).st_mode & 0o7777 == 0o700
    assert sorted(os.listdir(overlay.path)) == ["lock", "overlay.json", "upper", "work"]
    assert overlay.record() == OverlayRecord(session="default", scratch="_notes-2")
    with overlay.upper() as upper:
        assert upper.list(b"") == []


def test_an_overlay_that_exists_is_opened_as_it_is(overlay: OverlayDirectory) -> None:
    again = OverlayDirectory.create(overlay.path, "default", scratch="other")
    assert again.record().scratch == "_notes-2"
    assert OverlayDirectory.open(overlay.path).record() == again.record()


def test_a_half_made_overlay_is_completed(tmp_path: Path) -> None:
    (tmp_path / "upper").mkdir()
    overlay = OverlayDirectory.create(str(tmp_path), "s")
    assert overlay.record().session == "s"
    assert os.path.isdir(overlay.work_path)


def test_an_overlay_that_never_was_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        OverlayDirectory.open(str(tmp_path / "missing"))


def test_many_makers_make_one_overlay(tmp_path: Path) -> None:
    path = str(tmp_path / "overlay")
    threads = [threading.Thread(target=OverlayDirectory.create, args=(path, "s", f"_{n}")) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert OverlayDirectory.open(path).record().scratch in {f"_{n}" for n in range(8)}


def test_a_lost_record_is_an_error_and_a_save_mends_it(overlay: OverlayDirectory) -> None:
    record = os.path.join(overlay.path, "overlay.json")
    Path(record).write_text("{")
    for _ in range(2):
        with pytest.raises(StateError) as caught:
            overlay.record()
        assert caught.value.code == "state_corrupt"
    overlay.save(OverlayRecord(session="default"))
    assert overlay.record().session == "default"


def test_a_held_lock_is_refused_to_everybody_else(overlay: OverlayDirectory) -> None:
    other = OverlayDirectory.open(overlay.path)
    with overlay.lock():
        with pytest.raises(OverlayError) as caught, other.lock():
            pytest.fail("two hold one lock")
        assert caught.value.code == "overlay_busy"
    with other.lock():
        pass


def test_who_waits_for_a_lock_gets_it(overlay: OverlayDirectory) -> None:
    held = overlay.take_lock()
    waiting = threading.Event()
    got = threading.Event()

    def wait() -> None:
        waiting.set()
        with overlay.lock(timeout=120):
            got.set()

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    assert not got.is_set()
    held.close()
    thread.join()
    assert got.is_set()


def _child(fd: int) -> subprocess.Popen[bytes]:
    script = "import sys; print('ready', flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", script], pass_fds=[fd], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    return child


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
def test_a_lock_passed_to_a_child_is_held_until_the_child_is_gone(
    overlay: OverlayDirectory, sig: signal.Signals
) -> None:
    with overlay.lock() as held:
        child = _child(held.fd)
    with child:
        with pytest.raises(OverlayError):
            overlay.take_lock()
        child.send_signal(sig)
        child.wait()
        overlay.take_lock().close()


def test_an_ordinary_child_does_not_inherit_a_lock(overlay: OverlayDirectory) -> None:
    with overlay.lock() as held:
        child = subprocess.run([sys.executable, "-c", f"import os; os.fstat({held.fd})"], capture_output=True)
        assert b"Bad file descriptor" in child.stderr


def test_an_inherited_lock_is_adopted_and_another_descriptor_is_not(overlay: OverlayDirectory, tmp_path: Path) -> None:
    held = overlay.take_lock()
    inherited = os.dup(held.fd)
    held.close()
    adopted = OverlayLock.adopt(overlay.path, inherited)
    with pytest.raises(OverlayError):
        overlay.take_lock()
    adopted.close()
    (tmp_path / "file").write_text("")
    fd = os.open(tmp_path / "file", os.O_RDWR)
    with pytest.raises(OverlayError) as caught:
        OverlayLock.adopt(overlay.path, fd)
    assert caught.value.code == "overlay_busy"
    os.close(fd)


def test_a_lock_file_made_anew_locks_in_place_of_the_old_one(overlay: OverlayDirectory) -> None:
    old = overlay.take_lock()
    os.unlink(os.path.join(overlay.path, "lock"))
    with overlay.lock(), pytest.raises(OverlayError):
        OverlayLock.adopt(overlay.path, old.fd)
    old.close()


def test_a_tick_parts_what_was_before_from_what_comes_after(overlay: OverlayDirectory, tmp_path: Path) -> None:
    for number in range(30):
        before = tmp_path / f"before-{number}"
        before.write_text("x")
        now = overlay.tick()
        after = tmp_path / f"after-{number}"
        after.write_text("x")
        assert before.stat().st_ctime_ns < now <= after.stat().st_ctime_ns
    assert sorted(os.listdir(overlay.path)) == ["lock", "overlay.json", "upper", "work"]


def test_a_clock_that_stands_still_is_an_error(overlay: OverlayDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_probe", lambda _: 5)
    monkeypatch.setattr(session, "_TICK_LIMIT", 0.0)
    fd = os.open(overlay.path, os.O_RDONLY)
    with pytest.raises(StateError, match="stands still") as caught:
        tick(fd)
    os.close(fd)
    assert caught.value.code == "state_forbidden"


def test_the_upper_root_takes_after_the_lower_until_the_sandbox_changes_it(
    overlay: OverlayDirectory, tmp_path: Path
) -> None:
    lower_path = tmp_path / "lower"
    lower_path.mkdir()
    lower_path.chmod(0o2751)
    os.utime(lower_path, ns=(1, 2))
    with LocalStorage(os.fsencode(lower_path)) as lower:
        assert overlay.adopt_root(lower).root_mode == 0o2751
        found = os.stat(overlay.upper_path)
        assert found.st_mode & 0o7777 == 0o2751
        assert found.st_mtime_ns == 2
        assert (found.st_uid, found.st_gid) == (lower_path.stat().st_uid, lower_path.stat().st_gid)
        # The person's change is taken over,
        lower_path.chmod(0o755)
        assert overlay.adopt_root(lower).root_mode == 0o755
        assert overlay.record().root_mode == 0o755
        # but not over the sandbox's own.
        os.chmod(overlay.upper_path, 0o700)
        lower_path.chmod(0o711)
        assert overlay.adopt_root(lower).root_mode == 0o755
        assert os.stat(overlay.upper_path).st_mode & 0o7777 == 0o700


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_upper_root_belongs_to_the_owner_of_the_lower(overlay: OverlayDirectory, tmp_path: Path) -> None:
    (tmp_path / "lower").mkdir()
    os.chown(tmp_path / "lower", 1234, 4321)
    with LocalStorage(os.fsencode(tmp_path / "lower")) as lower:
        overlay.adopt_root(lower)
    assert (os.stat(overlay.upper_path).st_uid, os.stat(overlay.upper_path).st_gid) == (1234, 4321)
