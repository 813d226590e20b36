"""A file of gigabytes is never in memory: read, appended to, copied up, copied, checkpointed and landed under a limit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.suites.fetched import CACHE, FULL, Apt, run
from tests.waiting import unmount
from workbench.checkpoints.store import CheckpointStore
from workbench.review.commit import commit
from workbench.review.compare import change_set
from workbench.vfs import syscalls
from workbench.vfs.local import LocalStorage
from workbench.vfs.overlay import Overlay
from workbench.vfs.upper import LocalUpper

GIGABYTE = 1 << 30

# In a process of its own, whose address space may grow by a fraction of the file.
_PREPARE = """
import os, resource, sys
from workbench.checkpoints.store import CheckpointStore
from workbench.review import diff
from workbench.review.commit import commit
from workbench.review.compare import change_set
from workbench.vfs import search
from workbench.vfs.fsspec_face import OverlayFileSystem
from workbench.vfs.local import LocalStorage
from workbench.vfs.memory import MemoryUpper
from workbench.vfs.overlay import Overlay
from workbench.vfs.upper import LocalUpper

base, size, room = os.fsencode(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for name in (b"lower", b"upper", b"work"):
    os.mkdir(os.path.join(base, name))
with open(base + b"/lower/big", "wb") as file:
    file.truncate(size)
    file.seek(size // 2)
    file.write(b"middle")
lower = LocalStorage(base + b"/lower")
upper = LocalUpper(base + b"/upper", work=base + b"/work")
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + room, taken + room))
try:
    bytearray(size)
except MemoryError:
    pass
else:
    sys.exit("the limit doesn't hold")

def read(file):
    length = 0
    while piece := file.read(1 << 20):
        length += len(piece)
    return length

def has_holes(path):
    status = os.stat(path)
    return status.st_blocks * 512 < 1 << 20
"""

_WORK = """
for layer in (upper, MemoryUpper()):
    overlay = Overlay(lower, layer)
    with overlay.open(b"big") as file:
        # Reading nothing but holes takes its time, too.
        assert layer is not upper or read(file) == size
    with overlay.open(b"big", "ab") as file:
        file.write(b"tail")
    assert overlay.stat(b"big").size == size + 4
    with overlay.open(b"big", "r+b") as file:
        file.write(b"head")
        file.seek(size // 2)
        assert file.read(8) == b"middle" + bytes(2)
        file.seek(size)
        assert file.read() == b"tail"
    overlay.copy(b"big", b"copy")
    overlay.rename(b"copy", b"moved")
    assert overlay.stat(b"moved").size == size + 4
    assert search.grep(overlay, b"tail", literal=True).binary == 2
    face = OverlayFileSystem(overlay)
    face.cp_file("moved", "again")
    with face.open("again") as file:
        file.seek(size)
        assert file.read() == b"tail"
    overlay.truncate(b"again", 4)
    assert overlay.read_bytes(b"again") == b"head"
assert has_holes(base + b"/upper/big") and has_holes(base + b"/upper/moved")
assert has_holes(base + b"/lower/big") and os.stat(base + b"/lower/big").st_size == size
"""

_LAND = """
overlay = Overlay(lower, upper)
with overlay.open(b"big", "ab") as file:
    file.write(b"tail")
overlay.copy(b"big", b"copy")
store = CheckpointStore(os.fsdecode(base + b"/store"))
checkpoint = store.take("s", upper, lower, message_id="m", epoch_ns=None)
entries = checkpoint.manifest.entries
assert entries[b"big"].blob.startswith("big:") and not entries[b"big"].omitted and entries[b"big"].holes
changes = change_set("c", checkpoint.manifest, lower, store, scratch=b"_notes")
assert [change.path for change in changes.changes] == [b"big", b"copy"]
assert b"".join(diff.stat(changes.changes, lower, store))
assert len(b"".join(diff.unified(changes.changes, lower, store, binary=False))) < 1 << 20
commit(lower, os.fsdecode(base + b"/commits"), changes, checkpoint.manifest, store)
for name in (b"/lower/big", b"/lower/copy"):
    assert os.stat(base + name).st_size == size + 4 and has_holes(base + name)
    with open(base + name, "rb") as file:
        file.seek(size // 2)
        assert file.read(6) == b"middle"
        file.seek(size)
        assert file.read() == b"tail"
"""


@pytest.mark.parametrize(
    ("script", "size"),
    [
        pytest.param(_WORK, 4 * GIGABYTE, id="read-append-copy-up-copy"),
        pytest.param(_LAND, (4 * GIGABYTE - 4) if FULL else GIGABYTE, id="checkpoint-diff-commit"),
    ],
)
def test_a_file_of_gigabytes_is_never_in_memory_and_keeps_its_holes(script: str, size: int, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", _PREPARE + script, tmp_path, str(size), str(192 << 20)]
    done = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr[-4000:]


def _mkfs() -> tuple[Path, Path]:
    """mkfs.btrfs, and where the libraries are that it may need; from the machine, else from Debian's package, unpacked."""
    found = shutil.which("mkfs.btrfs", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if found is not None:
        return Path(found), Path("/nonexistent")
    place = CACHE / "btrfs-progs"
    if not sorted(place.glob("*bin/mkfs.btrfs")):
        status = Path("/var/lib/dpkg/status")
        apt = Apt(CACHE / "apt-of-this-machine", status.read_text() if status.exists() else "")
        for package in apt.packages(["btrfs-progs"]):
            run(["dpkg", "-x", package, place], f"unpacking {package.name}")
    return sorted(place.glob("*bin/mkfs.btrfs"))[0], sorted(place.glob("lib/*-linux-gnu"))[0]


@pytest.fixture
def reflinks(tmp_path: Path) -> Iterator[Path]:
    """A small filesystem on which a copy can share its blocks with the original."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a filesystem")
    if "btrfs" not in Path("/proc/filesystems").read_text().split():
        pytest.skip("this kernel has no btrfs")
    program, libraries = _mkfs()
    place, image = tmp_path / "filesystem", tmp_path / "image"
    place.mkdir()
    image.touch()
    os.truncate(image, 512 << 20)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries)}
    subprocess.run([program, "-q", image], env=environment, check=True)
    if subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=False, capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a filesystem")
    try:
        yield place
    finally:
        unmount(place)


def test_where_a_filesystem_can_share_blocks_no_copy_takes_any(reflinks: Path) -> None:
    size = 32 << 20
    for name in ("lower", "upper", "work"):
        (reflinks / name).mkdir()
    (reflinks / "lower" / "big").write_bytes(os.urandom(size))

    def used() -> int:
        fd = os.open(reflinks, os.O_RDONLY)
        syscalls.syncfs(fd)
        os.close(fd)
        found = os.statvfs(reflinks)
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    before = used()
    with (
        LocalStorage(os.fsencode(reflinks / "lower")) as lower,
        LocalUpper(os.fsencode(reflinks / "upper"), work=os.fsencode(reflinks / "work")) as upper,
        CheckpointStore(reflinks / "store") as store,
    ):
        overlay = Overlay(lower, upper)
        with overlay.open(b"big", "ab") as file:
            file.write(b"tail")
        overlay.copy(b"big", b"copy")
        assert used() - before < size / 2
        checkpoint = store.take("s", upper, lower, message_id="m", epoch_ns=None)
        assert used() - before < size / 2
        changes = change_set("c", checkpoint.manifest, lower, store, scratch=b"_notes")
        commit(lower, str(reflinks / "commits"), changes, checkpoint.manifest, store)
        assert (reflinks / "lower" / "copy").stat().st_size == size + 4
        assert used() - before < size / 2
