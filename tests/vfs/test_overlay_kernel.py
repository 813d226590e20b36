"""What Overlay computes equals what the kernel shows, on random histories made through a real mount."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import workbench
from tests.needed import unavailable
from workbench.vfs.local import LocalStorage
from workbench.vfs.overlay import Overlay
from workbench.vfs.storage import Kind
from workbench.vfs.syscalls import file_handle
from workbench.vfs.upper import LocalUpper

_FORMATS = {
    Kind.FILE: stat.S_IFREG,
    Kind.DIR: stat.S_IFDIR,
    Kind.SYMLINK: stat.S_IFLNK,
    Kind.FIFO: stat.S_IFIFO,
}
_UNSHARE = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]


def _can_mount(base: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    script = "mount -t overlay o -o lowerdir=lower,upperdir=upper,workdir=work,userxattr merged"
    return subprocess.run([*_UNSHARE, "sh", "-c", script], cwd=base, capture_output=True).returncode == 0


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    if not _can_mount(tmp_path):
        refused = "no overlay can be mounted in a mount namespace here"
        if os.geteuid() == 0:
            unavailable(refused)
        pytest.skip(refused)
    yield tmp_path
    inner = tmp_path / "work" / "work"
    if inner.exists():
        inner.chmod(0o700)


def _in_user_namespace() -> bool:
    return Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]


def _describe(overlay: Overlay, path: bytes) -> dict[str, object]:
    found = overlay.stat(path)
    told: dict[str, object] = {"mode": _FORMATS[found.kind] | found.mode, "mtime": found.mtime_ns, "uid": found.uid}
    if found.kind is Kind.SYMLINK:
        told["target"] = overlay.readlink(path).decode("latin-1")
    elif found.kind is Kind.FILE:
        with overlay.open(path) as file:
            told["sha256"] = hashlib.sha256(file.read()).hexdigest()
        told["size"] = found.size
    if found.kind is not Kind.SYMLINK:
        told["xattrs"] = _xattrs(overlay, path)
    return told


def _xattrs(overlay: Overlay, path: bytes) -> list[list[str]]:
    storage = overlay.upper if overlay.upper.exists(path) else overlay.lower
    assert isinstance(storage, LocalStorage)
    fd = os.open(path or b".", os.O_PATH | os.O_NOFOLLOW, dir_fd=storage.root_fd)
    try:
        return [[os.fsdecode(name), value.decode("latin-1")] for name, value in overlay.upper.xattrs_of(fd)]
    finally:
        os.close(fd)


def _tree(overlay: Overlay) -> dict[str, dict[str, object]]:
    shown = {"": _describe(overlay, b"")}
    for parent, directories, others in overlay.walk():
        for name in directories + others:
            path = b"/".join(filter(None, (parent, name)))
            shown[path.decode("latin-1")] = _describe(overlay, path)
    return shown


def _marks(upper: LocalUpper) -> Counter[str]:
    marks: Counter[str] = Counter()
    waiting = [b""]
    while waiting:
        here = waiting.pop()
        marks["opaque"] += upper.is_opaque(here)
        for name, kind in upper.entries(here):
            marks[kind] += 1
            if kind is Kind.DIR:
                waiting.append(b"/".join(filter(None, (here, name))))
    return marks


@pytest.mark.parametrize("seed", range(6))
def test_the_merged_view_equals_the_kernels_on_a_random_history(base: Path, seed: int) -> None:
    command = [*_UNSHARE, sys.executable, str(Path(__file__).with_name("kernel_history.py")), str(seed), "6", "60"]
    lines = 0
    kernels: dict[str, dict[str, object]] = {}
    with (
        subprocess.Popen(command, cwd=base, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child,
        LocalStorage(os.fsencode(base / "lower")) as lower,
        LocalUpper(os.fsencode(base / "upper")) as upper,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        overlay = Overlay(lower, upper, scratch=b"no-scratch-here")
        # While it's mounted, after every batch, and once more when it isn't.
        for line in child.stdout:
            kernels = json.loads(line)
            for told in kernels.values():
                # Without root the mount is in a user namespace, in which we are 0.
                told["uid"] = told["uid"] or os.geteuid()
            assert _tree(overlay) == kernels
            lines += 1
            child.stdin.write("\n")
            child.stdin.flush()
        assert child.wait() == 0
        assert lines == 6
        assert _tree(overlay) == kernels
        # The history was worth it.
        marks = _marks(upper)
        assert marks["opaque"]
        assert marks[Kind.WHITEOUT]


def test_an_origin_is_the_handle_of_the_lower_entry_it_was_copied_from(base: Path) -> None:
    (base / "lower" / "file").write_text("lower")
    (base / "lower" / "directory").mkdir()
    (base / "lower" / "directory" / "inner").write_text("lower")
    script = (
        "mount -t overlay o -o lowerdir=lower,upperdir=upper,workdir=work,userxattr,index=off,xino=off merged &&"
        " echo more >> merged/file && touch merged/directory/inner && echo new > merged/new && umount merged"
    )
    subprocess.run([*_UNSHARE, "sh", "-c", script], cwd=base, check=True)
    with LocalStorage(os.fsencode(base / "lower")) as lower, LocalUpper(os.fsencode(base / "upper")) as upper:
        origins = {}
        for name in (b"file", b"directory", b"directory/inner", b"new"):
            fd = os.open(name, os.O_PATH, dir_fd=upper.root_fd)
            origins[name] = upper.origin_of(fd)
            assert upper.attributes_of(fd).origin == origins[name]
            os.close(fd)
        assert origins.pop(b"new") == b""
        # In a user namespace the kernel can't tell, and says so with an empty one.
        if any(origins.values()):
            assert origins == {name: lower.handle(name) for name in origins}
            assert file_handle(lower.root_fd, b"file") == origins[b"file"]
        else:
            assert os.geteuid() != 0 or _in_user_namespace()


def test_the_kernel_reads_the_whiteouts_and_opaque_directories_that_we_write(base: Path) -> None:
    for name in ("gone", "kept"):
        (base / "lower" / name).write_text("lower")
    (base / "lower" / "hidden").mkdir()
    (base / "lower" / "hidden" / "below").write_text("lower")
    (base / "upper" / "hidden").mkdir()
    with LocalUpper(os.fsencode(base / "upper")) as upper:
        upper.make_whiteout(upper.root_fd, b"gone")
        fd = upper.open_directory(b"hidden")
        upper.set_opaque(fd, True)
        os.close(fd)
    script = "mount -t overlay o -o lowerdir=lower,upperdir=upper,workdir=work,userxattr merged && find merged"
    shown = subprocess.run([*_UNSHARE, "sh", "-c", script], cwd=base, check=True, capture_output=True, text=True)
    assert sorted(shown.stdout.split()) == ["merged", "merged/hidden", "merged/kept"]


_MOUNT_POINT = """
import os
from workbench.vfs.local import LocalStorage
from workbench.vfs.overlay import Overlay
from workbench.vfs.upper import LocalUpper
with LocalStorage(b"lower") as lower, LocalUpper(b"upper") as upper:
    overlay = Overlay(lower, upper)
    assert os.listdir(b"lower/point") == [b"secret"]
    assert os.listdir(b"merged/point") == overlay.list(b"point") == []
    assert not overlay.exists(b"point/secret")
    assert lower.mount_points() == [b"point"]
print("done")
"""


def test_a_mount_point_in_the_lower_is_empty_for_both_though_it_is_on_the_same_filesystem(base: Path) -> None:
    (base / "lower" / "point").mkdir()
    (base / "outside").mkdir()
    (base / "outside" / "secret").write_text("secret")
    script = (
        "mount --bind outside lower/point &&"
        " mount -t overlay o -o lowerdir=lower,upperdir=upper,workdir=work,userxattr merged &&"
        ' exec "$0" -c "$1"'
    )
    package = os.path.dirname(next(iter(workbench.__path__)))
    run = subprocess.run(
        [*_UNSHARE, "sh", "-c", script, sys.executable, _MOUNT_POINT],
        cwd=base,
        env={**os.environ, "PYTHONPATH": package},
        capture_output=True,
        text=True,
    )
    assert run.stdout == "done\n", run.stderr


def test_the_root_shows_the_lower_whatever_mark_it_carries(base: Path) -> None:
    (base / "lower" / "file").write_text("lower")
    os.setxattr(base / "upper", "user.overlay.opaque", b"y")
    script = "mount -t overlay o -o lowerdir=lower,upperdir=upper,workdir=work,userxattr merged && ls merged"
    shown = subprocess.run([*_UNSHARE, "sh", "-c", script], cwd=base, check=True, capture_output=True, text=True)
    with LocalStorage(os.fsencode(base / "lower")) as lower, LocalUpper(os.fsencode(base / "upper")) as upper:
        assert Overlay(lower, upper).list(b"") == [b"file"] == [os.fsencode(name) for name in shown.stdout.split()]
