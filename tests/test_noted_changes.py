"""Where the Python API alone wrote since the last checkpoint, only that is looked at; anything else is found by looking."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoints.layers import NAMES, fill
from workbench.blocking import Workspace as Blocking
from workbench.checkpoints import layer, upkeep
from workbench.checkpoints.store import Checkpoint
from workbench.live import LiveOverlay
from workbench.protocol.commands import Command
from workbench.vfs.session import OverlayDirectory
from workbench.vfs.storage import Kind
from workbench.workspace import Workspace

pytestmark = pytest.mark.anyio


class Scans:
    """Counts the looks at a whole layer, and at what was noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.whole = self.some = 0
        scan, scan_some = layer.scan, layer.scan_some

        def whole(*arguments: object, **options: object) -> object:
            self.whole += 1
            return scan(*arguments, **options)  # type: ignore[arg-type]

        def some(*arguments: object, **options: object) -> object:
            self.some += 1
            return scan_some(*arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(layer, "scan", whole)
        monkeypatch.setattr(layer, "scan_some", some)

    def since(self) -> tuple[int, int]:
        found = self.whole, self.some
        self.whole = self.some = 0
        return found


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> Scans:
    return Scans(monkeypatch)


@pytest.fixture
def root(tmp_path: Path, state: Path) -> Path:
    path = tmp_path / "w"
    path.mkdir()
    fill(path)
    return path


class Calls:
    """Random calls of the API, of which some fail as they should."""

    def __init__(self, view: LiveOverlay, seed: int, *, links: bool) -> None:
        self.view = view
        self.random = random.Random(seed)
        self.steps: list[Callable[[], None]] = [
            self.write,
            self.write,
            self.write,
            lambda: self.view.append(self.some(), b"more"),
            lambda: self.view.makedirs(self.new() + b"/in/side", exist_ok=True),
            lambda: self.view.mkdir(self.new()),
            lambda: self.view.unlink(self.some()),
            lambda: self.view.remove_tree(self.some()),
            lambda: self.view.rmdir(self.some()),
            lambda: self.view.rename(self.some(), self.new()),
            lambda: self.view.copy(self.some(), self.new()),
            lambda: self.view.symlink(b"target", self.new()),
            lambda: self.view.chmod(self.some(), self.random.choice((0o600, 0o755))),
            lambda: self.view.utime(self.some(), self.random.randrange(10**18)),
            lambda: self.view.setxattr(self.some(), b"user.a", self.random.randbytes(3)),
            self.rewrite,
        ]
        if links:
            self.steps.append(lambda: self.view.link(self.some(), self.new()))

    def run(self, count: int) -> None:
        for _ in range(count):
            with contextlib.suppress(OSError):
                self.random.choice(self.steps)()

    def some(self) -> bytes:
        return self.random.choice(sorted(self.view.find()))

    def new(self) -> bytes:
        above = [b"", *sorted(self.view.find(kind=Kind.DIR))]
        return b"/".join(part for part in (self.random.choice(above), self.random.choice(NAMES)) if part)

    def write(self) -> None:
        self.view.write_bytes(self.new(), self.random.randbytes(50))

    def rewrite(self) -> None:
        with self.view.open(self.some(), "r+b") as file:
            file.write(b"X")


@pytest.mark.parametrize("links", [False, True], ids=["without links", "with links"])
@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_missed_whatever_the_api_did(root: Path, scans: Scans, seed: int, links: bool) -> None:
    spared = 0
    async with Workspace.open(root) as workspace:
        calls = Calls(workspace.view, seed, links=links)
        await workspace.checkpoint()
        for _ in range(8):
            calls.run(6)
            scans.since()
            noted = await workspace.checkpoint()
            spared += scans.since()[0] == 0
            # Nothing was noted since: the whole layer is looked at.
            looked = await workspace.checkpoint()
            assert scans.since()[0] == 1
            assert looked.commit == noted.commit
            now, then = looked.manifest, noted.manifest
            assert (now.entries, now.bases, list(now.entries)) == (then.entries, then.bases, list(then.entries))
        async with Workspace.open(root) as again:
            assert again.store.get(noted.commit).manifest.entries == noted.manifest.entries
    assert spared or links


async def test_a_few_writes_in_another_process_are_all_that_is_looked_at(root: Path, scans: Scans) -> None:
    async with Workspace.open(root) as workspace:
        await workspace.files.write(b"src/new.py", b"new")
        first = await workspace.checkpoint()
    script = f"""
import workbench.blocking
with workbench.blocking.Workspace.open({str(root)!r}) as workspace:
    workspace.view.write_bytes(b"src/new.py", b"changed")
    workspace.view.unlink(b"README")
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    async with Workspace.open(root) as workspace:
        scans.since()
        second = await workspace.checkpoint()
        assert scans.since() == (0, 1)
        before, after = first.manifest.entries, second.manifest.entries
        assert {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)} == {
            b"",
            b"README",
            b"src",
            b"src/new.py",
        }


async def test_what_a_killed_writer_began_is_looked_at(root: Path, scans: Scans) -> None:
    async with Workspace.open(root) as workspace:
        await workspace.checkpoint()
        script = f"""
import os, signal
import workbench.blocking
from workbench.vfs.overlay import Overlay
write = Overlay.write_bytes
def killed(self, path, data):
    write(self, path, data)
    os.kill(os.getpid(), signal.SIGKILL)
Overlay.write_bytes = killed
with workbench.blocking.Workspace.open({str(root)!r}) as workspace:
    workspace.view.write_bytes(b"written", b"by who was killed")
"""
        assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
        scans.since()
        taken = await workspace.checkpoint()
        assert scans.since() == (0, 1)
        assert b"written" in taken.manifest.entries


async def _somebody_takes_the_lock(workspace: Workspace, noted: Checkpoint) -> None:
    with OverlayDirectory.open(workspace.overlay_path).lock():
        Path(workspace.overlay_path, "upper", "quietly").write_text("written")


async def _a_purge(workspace: Workspace, noted: Checkpoint) -> None:
    workspace.purge(b"quietly")


async def _a_collection(workspace: Workspace, noted: Checkpoint) -> None:
    upkeep.collect(workspace.store)


@pytest.mark.parametrize("what", [_somebody_takes_the_lock, _a_purge, _a_collection], ids=lambda f: f.__name__[1:])
async def test_whatever_may_have_changed_the_rest_has_all_of_it_looked_at(
    root: Path, scans: Scans, what: Callable[..., object]
) -> None:
    async with Workspace.open(root) as workspace:
        await workspace.checkpoint()
        await workspace.files.write(b"quietly", b"first")
        await workspace.files.write(b"noted", b"first")
        noted = await workspace.checkpoint()
        await what(workspace, noted)  # type: ignore[misc]
        await workspace.files.write(b"noted", b"second")
        scans.since()
        taken = await workspace.checkpoint()
        assert scans.since()[0] == 1
        assert {b"quietly", b"noted"} <= taken.manifest.entries.keys()


async def test_what_commands_write_is_found_though_the_api_wrote_too(engine: object, root: Path, scans: Scans) -> None:
    async with Workspace.open(root) as workspace:
        await workspace.files.write(b"noted", b"first")
        await workspace.checkpoint()
        await workspace.exec(Command(("sh", "-c", "echo command > commands")))
        await workspace.stop()
        scans.since()
        await workspace.files.write(b"noted", b"second")
        taken = await workspace.checkpoint()
        assert scans.since()[0]
        assert {b"noted", b"commands"} <= taken.manifest.entries.keys()


def test_what_is_kept_before_something_is_taken_away_goes_by_no_note(root: Path, scans: Scans) -> None:
    with Blocking.open(str(root)) as workspace:
        workspace.checkpoint("first")
        workspace.view.write_bytes(b"noted", b"x")
        scans.since()
        workspace.rewind("first")
        assert scans.since()[0] == 1
        workspace.view.write_bytes(b"noted", b"x")
        scans.since()
        workspace.discard()
        assert scans.since()[0]
