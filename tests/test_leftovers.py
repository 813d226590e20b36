"""However a sandbox ends, on whatever it worked: no container, volume, mount, process, socket or directory stays of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench import Bench
from tests.conftest import ROOT
from tests.test_untouched import everything_about, ours, processes_about
from tests.waiting import wait_until
from workbench.sandbox.engine import Engine
from workbench.sandbox.runtime import find_socket

WAYS = ("mounted", "copied", "plain", "namespace")
COMMAND = "echo kept > kept; rm README.md; echo there > started; exec sleep 1000"


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The backend, or how an engine gets at our files."""
    if request.param == "namespace":
        monkeypatch.setenv("WORKBENCH_BACKEND", "namespace")
    else:
        monkeypatch.setenv("WORKBENCH_BACKEND", "docker")
        monkeypatch.setenv("WORKBENCH_SHARING", request.param)
    return str(request.param)


class Ends:
    """A sandbox with a command in it, over and over, and what there is of it on the machine."""

    def __init__(self, workspace: Path, state: Path, temporary: Path) -> None:
        self.bench = Bench(workspace)
        self._workspace = workspace
        self._state = state
        self._temporary = temporary
        self._before = everything_about(workspace)
        self.overlay = self.bench.overlay

    def begin(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "workbench", "exec", "-w", str(self._workspace), "--", "sh", "-c", COMMAND]
        with (self._state / "said").open("wb") as said:
            process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=said, start_new_session=True)

        def started() -> bool:
            assert process.poll() is None, (self._state / "said").read_text()
            keeper = self.bench.keeper()
            return keeper is not None and keeper.jobs > 0

        wait_until(started, "the command runs")
        self.bench.sh("until [ -s started ]; do :; done")
        return process

    def kill_keeper(self) -> None:
        os.kill(self.bench.running()[0], signal.SIGKILL)

    def over(self) -> None:
        """Nothing may be left, but what the command did; that is taken back for the next time."""
        assert self.bench.told() == {b"kept": "added", b"README.md": "deleted", b"started": "added"}
        self.bench.stop()
        assert find_socket(self.overlay) is None
        wait_until(lambda: not processes_about(self.overlay), "every process has ended")
        assert not mounts_of(self.overlay)
        assert ours(Engine(), self._state) == ([], [])
        assert list(self._temporary.iterdir()) == []
        assert everything_about(self._workspace) == self._before
        self.bench.discard()


def mounts_of(overlay: str) -> list[int]:
    """The processes in whose mount namespaces the overlay's upper layer is mounted."""
    found = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if f"upperdir={overlay}/" in Path("/proc", entry, "mountinfo").read_text(errors="surrogateescape"):
                found.append(int(entry))
        except OSError:
            continue
    return found


@pytest.fixture
def ends(
    engine: None, way: str, repo: Path, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ends]:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    # Not below pytest's own directory: a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="wb-run-") as sockets:
        monkeypatch.setenv("XDG_RUNTIME_DIR", sockets)
        yield Ends(repo, state, temporary)
        assert [path for path in Path(sockets).rglob("*") if not path.is_dir()] == []


@pytest.mark.engine
def test_however_a_sandbox_ends_nothing_of_it_is_left(ends: Ends) -> None:
    # Stopped, as it should be.
    process = ends.begin()
    ends.bench.stop()
    process.wait(timeout=120)
    ends.over()
    # ^C, which a terminal sends to all in its foreground.
    process = ends.begin()
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=120) == 130
    ends.over()
    # The command line is killed.
    process = ends.begin()
    process.kill()
    process.wait()
    ends.over()
    # The keeper is killed.
    process = ends.begin()
    ends.kill_keeper()
    assert process.wait(timeout=120) == 125
    ends.over()


@pytest.mark.engine
def test_a_machine_that_starts_again_has_nothing_left_of_a_sandbox_after_the_next_command(ends: Ends) -> None:
    process = ends.begin()
    socket = Path(find_socket(ends.overlay) or "")
    ends.kill_keeper()
    process.wait(timeout=120)
    wait_until(lambda: not processes_about(ends.overlay), "everything has ended")
    # Nothing below /run is left, and another kernel has another id.
    record = Path(ends.overlay, "overlay.json")
    written = json.loads(record.read_text())
    for mount in written["mounts"]:
        mount["boot_id"] = "another"
    record.write_text(json.dumps(written))
    shutil.rmtree(socket.parent)
    ends.over()
