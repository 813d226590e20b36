"""An overlay on disk that keepers hold in the tests, under either backend."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio

from tests.sandbox.supervised import UID
from tests.sandbox.support import IMAGE, LABEL
from workbench.errors import OverlayError
from workbench.sandbox import leftovers, runtime
from workbench.sandbox.backend import Limits, OverlayMount, SandboxSpec
from workbench.sandbox.client import KeeperClient
from workbench.vfs.session import OverlayDirectory


class Place:
    """An overlay over a small directory, and what a sandbox over it takes."""

    def __init__(self, path: Path, backend: str, **options: str) -> None:
        """`options` are further fields of its specs."""
        self.backend = backend
        self._options = options
        path.chmod(0o755)
        lower = path / "lower"
        lower.mkdir()
        (lower / "old").write_text("old\n")
        self.path = path
        self.overlay = OverlayDirectory.create(str(path / "overlay"), "default")
        uid = os.geteuid()
        if uid == 0:
            uid = UID
            for directory in (str(lower), self.overlay.upper_path):
                os.chown(directory, uid, uid)
        self.upper = Path(self.overlay.upper_path)
        self.mount = OverlayMount(str(lower), self.overlay.upper_path, self.overlay.work_path, "/workspace")
        self.uid = uid

    def spec(self, idle_seconds: float = 60, backend: str = "", limits: Limits | None = None) -> SandboxSpec:
        return SandboxSpec(
            backend or self.backend,
            "" if self.backend == "namespace" else IMAGE,
            (self.mount,),
            self.uid,
            self.uid,
            environment={"PATH": "/usr/local/bin:/usr/bin:/bin"},
            limits=limits or Limits(),
            labels={LABEL: "1"},
            idle_seconds=idle_seconds,
            **self._options,  # type: ignore[arg-type]
        )

    async def ensure(self, idle_seconds: float = 60, limits: Limits | None = None) -> KeeperClient:
        return await KeeperClient.ensure(self.overlay, self.spec(idle_seconds, limits=limits), lambda sentence: None)

    def is_free(self) -> bool:
        try:
            with self.overlay.lock():
                return True
        except OverlayError:
            return False

    def is_mounted(self) -> bool:
        for entry in os.listdir("/proc"):
            try:
                if (
                    entry.isdigit()
                    and os.fsencode(self.overlay.upper_path) in Path(f"/proc/{entry}/mountinfo").read_bytes()
                ):
                    return True
            except OSError:
                continue
        return False


@contextlib.contextmanager
def a_place(backend: str, directory: Path | None = None, **options: str) -> Iterator[Place]:
    """A place of one's own, in a directory; afterwards nothing may be mounted, or it fails."""
    path = Path(tempfile.mkdtemp(prefix="workbench-test-", dir=directory))
    try:
        place = Place(path, backend, **options)
        try:
            yield place
        finally:
            if runtime.find_socket(place.overlay.path) is not None:
                anyio.run(_stop, place.overlay.path)
        assert place.is_free()
        assert not place.is_mounted()
        # A killed keeper leaves what isn't a process for whoever takes the lock next.
        with place.overlay.lock():
            leftovers.unmount(place.overlay, "")
    finally:
        # The kernel's work directory is closed to everybody but root.
        leftovers.remove_tree(str(path))


async def _stop(path: str) -> None:
    client = await KeeperClient.connect(path)
    if client is not None:
        async with client:
            await client.stop(force=True)
