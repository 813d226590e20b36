from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workbench.vfs import syscalls


@pytest.fixture(params=["openat2", "walk"])
def resolver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Paths are opened by the kernel's openat2, or by the walk that stands in for it."""
    if request.param == "walk":
        monkeypatch.setattr(syscalls, "_has_openat2", lambda: False)
    elif not syscalls._has_openat2():
        pytest.skip("this kernel, or a filter, has no openat2")
    return str(request.param)


@pytest.fixture
def nest() -> Iterator[Callable[[Path, bytes, int], int]]:
    """Makes directories of one name in each other, however deep; returns a descriptor of the innermost.

    They are removed afterwards: Python's own way of removing trees, and so pytest's, ends at a thousand levels.
    """
    made = []

    def make(root: Path, name: bytes, levels: int) -> int:
        made.append(os.path.join(os.fsencode(root), name))
        fd = os.open(root, os.O_RDONLY)
        for _ in range(levels):
            os.mkdir(name, dir_fd=fd)
            below = os.open(name, os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = below
        return fd

    yield make
    subprocess.run([b"rm", b"-rf", b"--", *made], check=True)
