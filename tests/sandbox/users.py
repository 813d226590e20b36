"""An ordinary user to run things as: neither root, nor in anybody's group but its own."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import workbench


class OrdinaryUser:
    """A user of this machine with an empty directory, and a Python that has this project in it."""

    def __init__(self, name: str, directory: Path, python: str) -> None:
        entry = pwd.getpwnam(name)
        self.name, self.uid, self.gid = name, entry.pw_uid, entry.pw_gid
        self.directory = directory
        self._python = python

    def run(self, source: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run Python source as this user, in its directory."""
        result = subprocess.run(
            [self._python, "-c", source, *arguments],
            user=self.uid,
            group=self.gid,
            extra_groups=os.getgrouplist(self.name, self.gid),
            cwd=self.directory,
            env=environment(self.directory),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert not check or result.returncode == 0, result.stderr
        return result


def environment(directory: Path) -> dict[str, str]:
    libraries = [str(directory / "source"), str(Path(__file__).parents[2]), *site.getsitepackages()]
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": str(directory),
        "PYTHONPATH": os.pathsep.join(libraries),
        "WORKBENCH_TEST_IMAGE": os.environ.get("WORKBENCH_TEST_IMAGE", "workbench/python"),
    }


@contextmanager
def ordinary_user(group: str = "") -> Iterator[OrdinaryUser]:
    """Make a user, in one more `group` where it's given; skips where that can't be done."""
    if os.geteuid() != 0:
        pytest.skip("making a user takes root")
    if shutil.which("useradd") is None:
        pytest.skip("useradd isn't installed")
    name = f"wbtest{secrets.token_hex(4)}"
    groups = ["--groups", group] if group else []
    made = subprocess.run(["useradd", "--no-create-home", *groups, name], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"useradd fails: {made.stderr.strip()}")
    directory = Path(tempfile.mkdtemp(prefix="workbench-user-"))
    try:
        # The checkout may be in a directory that only root can enter.
        shutil.copytree(workbench.__path__[0], directory / "source" / "workbench")
        for tree in ("tests", "sandbox_images"):
            shutil.copytree(Path(__file__).parents[2] / tree, directory / "source" / tree)
        entry = pwd.getpwnam(name)
        os.chown(directory, entry.pw_uid, entry.pw_gid)
        for python in (sys.executable, "/usr/bin/python3"):
            user = OrdinaryUser(name, directory, python)
            try:
                if user.run("import anyio, docker, pydantic, workbench", check=False).returncode == 0:
                    break
            except PermissionError:
                continue
        else:
            pytest.skip("no Python that an ordinary user can run has what this project depends on")
        yield user
    finally:
        shutil.rmtree(directory)
        subprocess.run(["userdel", name], capture_output=True, check=True)
