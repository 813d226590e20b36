"""A container engine of a test's own, to be killed and started again; the shared one is never touched."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import wait_until

# As `sandbox_images/engine` starts one: it needs nothing of this machine's network.
_FLAGS = ("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false")
_STARTS = 3


class PrivateEngine:
    """A dockerd with its containerd over a directory of its own; `host` is what DOCKER_HOST has to be."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.host = f"unix://{directory}/engine.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers. A killed one's containerd sometimes isn't gone yet: then once more."""
        at = self._directory
        argv = ["dockerd", "-H", self.host, "--data-root", f"{at}/data", "--exec-root", f"{at}/exec", "-p", f"{at}/pid"]
        for _ in range(_STARTS):
            (at / "pid").unlink(missing_ok=True)
            with open(at / "log", "ab") as log:
                process = subprocess.Popen(
                    [*argv, *_FLAGS], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            self._process = process
            wait_until(lambda: self._answers() or process.poll() is not None, "the engine answers")  # noqa: B023
            if process.poll() is None:
                return
        raise AssertionError((at / "log").read_text()[-2000:])

    def _answers(self) -> bool:
        return self.docker("version", check=False).returncode == 0

    def end(self, number: signal.Signals) -> None:
        """Send it a signal, and wait until it's gone."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(timeout=120)

    def docker(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["docker", "-H", self.host, *arguments], capture_output=True, check=check)

    def load(self, image: str) -> None:
        """Take over an image of the shared engine."""
        with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saving:
            subprocess.run(
                ["docker", "-H", self.host, "load"], stdin=saving.stdout, stdout=subprocess.DEVNULL, check=True
            )
        assert saving.returncode == 0

    def clear(self) -> None:
        """End it with everything it started, and unmount whatever it left."""
        if self._process is not None and self._process.poll() is None:
            self.end(signal.SIGTERM)
        for process in _processes_of(self._directory):
            os.kill(process, signal.SIGKILL)
        wait_until(lambda: not _processes_of(self._directory), "the engine's processes are gone")
        for place in sorted(_mounts_below(self._directory), reverse=True):
            subprocess.run(["umount", "-l", place], check=True)
        shutil.rmtree(self._directory)


def _processes_of(directory: Path) -> list[int]:
    """What the engine over a directory started (containerd and its shims name it in their arguments)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                argv = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"containerd" in argv and os.fsencode(directory) + b"/exec" in argv:
                found.append(int(entry.name))
    return found


def _mounts_below(directory: Path) -> list[str]:
    table = Path("/proc/self/mounts").read_text()
    places = [
        re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), line.split()[1]) for line in table.splitlines()
    ]
    return [place for place in places if Path(place).is_relative_to(directory)]


@contextmanager
def private_engine(image: str) -> Iterator[PrivateEngine]:
    """An engine of one's own that has an image; skips where none can be started."""
    if os.geteuid() != 0:
        pytest.skip("starting an engine takes root")
    if shutil.which("dockerd") is None:
        pytest.skip("dockerd isn't installed")
    # Not below pytest's own directory: a socket's path must be short.
    engine = PrivateEngine(Path(tempfile.mkdtemp(prefix="wb-engine-")))
    try:
        engine.start()
        engine.load(image)
        yield engine
    finally:
        engine.clear()
