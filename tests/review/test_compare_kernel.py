"""What a change set says equals what the kernel shows, on random histories made through a real mount."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.review.changeset import Left

_HISTORY = Path(__file__).parent.parent / "vfs" / "kernel_history.py"
_UNSHARE = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
_SETID = 0o6000


def _can_mount(base: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    script = "mkdir -p p/l p/u p/w p/m && mount -t overlay o -o lowerdir=p/l,upperdir=p/u,workdir=p/w,userxattr p/m"
    return subprocess.run([*_UNSHARE, "sh", "-c", script], cwd=base, capture_output=True).returncode == 0


def _tree(top: bytes) -> dict[bytes, tuple[int, str]]:
    """Mode and content of every path."""
    found: dict[bytes, tuple[int, str]] = {}
    for parent, directories, files in os.walk(top):
        for name in directories + files:
            path = os.path.join(parent, name)
            status = os.lstat(path)
            content = ""
            if stat.S_ISLNK(status.st_mode):
                content = os.readlink(path).decode("latin-1")
            elif stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    content = hashlib.sha256(file.read()).hexdigest()
            found[os.path.relpath(path, top)] = (status.st_mode, content)
    return found


def _shown(told: dict[str, dict[str, object]]) -> dict[bytes, tuple[int, str]]:
    return {
        path.encode("latin-1"): (int(one["mode"]), str(one.get("sha256", one.get("target", ""))))
        for path, one in told.items()
        if path
    }


@pytest.mark.parametrize("seed", range(12))
def test_a_lower_with_the_change_set_done_to_it_is_the_merged_view(layers, apply_changes, tmp_path, seed) -> None:
    if not _can_mount(tmp_path):
        pytest.skip("no overlay can be mounted in a mount namespace here")
    for name in ("work", "merged"):
        (tmp_path / name).mkdir()
    process = subprocess.Popen(
        [*_UNSHARE, sys.executable, str(_HISTORY), str(seed), "3", "60"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        for _ in range(3):
            merged = _shown(json.loads(process.stdout.readline()))
            changes = layers.changes(scratch=b"no scratch here")
            target = os.fsencode(tmp_path / "landed")
            subprocess.run(["rm", "-rf", target], check=True)
            subprocess.run(["cp", "-a", layers.lower_path, target], check=True)
            apply_changes(changes, target, layers.store)
            landed = _tree(target)
            assert {one.reason for one in changes.left} <= {Left.FIFO, Left.SETID}
            stays = {one.path for one in changes.left if one.reason is Left.FIFO}
            # A FIFO that took the place of something leaves that as it was.
            for path in [path for path in landed if any((path + b"/").startswith(fifo + b"/") for fifo in stays)]:
                del landed[path]
            for path in stays:
                merged.pop(path, None)
            assert landed.keys() == merged.keys()
            lower = _tree(layers.lower_path)
            for path, (mode, content) in merged.items():
                landed_mode, landed_content = landed[path]
                assert landed_content == content, path
                assert landed_mode & ~_SETID == mode & ~_SETID, path
                assert landed_mode & _SETID & ~lower.get(path, (0, ""))[0] == 0, path
            process.stdin.write(b"\n")
            process.stdin.flush()
    (tmp_path / "work" / "work").chmod(0o700)


def test_the_merged_view_of_a_mounted_overlay_is_compared_again_after_landing(layers, apply_changes) -> None:
    layers.write("lower", b"d/a", b"1")
    layers.write("lower", b"b", b"2", 0o755)
    layers.mkdir("upper", b"d", opaque=True)
    layers.write("upper", b"d/new", b"3")
    layers.write("upper", b"b", b"2", 0o644)
    manifest = layers.manifest()
    apply_changes(layers.changes(manifest), layers.lower_path, layers.store)
    assert layers.changes(manifest).changes == ()
