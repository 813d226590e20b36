"""An ordinary user to run things as: neither root, nor in anybody's group but its own."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import secrets
import shutil
import signal
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import workbench
from tests.needed import need_program, unavailable
from tests.waiting import wait_until


class OrdinaryUser:
    """A user of this machine with an empty directory, and a Python that has this project in it."""

    def __init__(self, name: str, directory: Path, python: str) -> None:
        entry = pwd.getpwnam(name)
        self.name, self.uid, self.gid = name, entry.pw_uid, entry.pw_gid
        self.directory = directory
        self._python = python

    def run(
        self, source: str, *arguments: str, check: bool = True, before: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run Python source as this user, in its directory, after a command that starts others."""
        result = self._run("-c", source, *arguments, before=before, text=True)
        assert not check or result.returncode == 0, result.stderr
        return result

    def workbench(
        self, *arguments: str, code: int | None = 0, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the command line as this user."""
        result = self._run("-m", "workbench", *arguments, cwd=cwd or self.directory)
        assert code is None or result.returncode == code, (arguments, result.returncode, result.stdout, result.stderr)
        return result

    def pytest(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run tests as this user, with these variables."""
        told = {**environment(self.directory), "TMPDIR": str(self.directory), **variables}
        source = self.directory / "source"
        return self._run("-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, cwd=source, env=told, text=True)

    def _run(self, *arguments: str, before: tuple[str, ...] = (), **options: Any) -> subprocess.CompletedProcess[Any]:
        wanted: dict[str, Any] = {"cwd": self.directory, "env": environment(self.directory), **options}
        return subprocess.run(
            [*before, self._python, *arguments],
            user=self.uid,
            group=self.gid,
            extra_groups=os.getgrouplist(self.name, self.gid),
            umask=0o022,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=600,
            check=False,
            **wanted,
        )


def environment(directory: Path) -> dict[str, str]:
    libraries = [str(directory / "source"), str(Path(__file__).parents[2]), *site.getsitepackages()]
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": str(directory),
        "PYTHONPATH": os.pathsep.join(libraries),
        "WORKBENCH_TEST_IMAGE": os.environ.get("WORKBENCH_TEST_IMAGE", "workbench/python"),
    }


def _works(user: OrdinaryUser) -> bool:
    try:
        return user.run("import anyio, docker, pydantic, pytest, rich, typer, workbench", check=False).returncode == 0
    except PermissionError:
        return False


def _copy_dependencies(target: Path) -> None:
    """Copy what this project depends on out of the environment that we run in."""
    waiting, seen = (
        ["overlay-workbench", "anyio", "docker", "dulwich", "pathspec", "pydantic", "pytest", "rich", "typer"],
        set(),
    )
    while waiting:
        name = waiting.pop()
        with contextlib.suppress(metadata.PackageNotFoundError):
            found = metadata.distribution(name)
            needs = [need for need in found.requires or () if "extra ==" not in need]
            waiting += {re.match(r"[\w.-]+", need)[0] for need in needs} - seen  # type: ignore[index]
            tops = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
            for top in tops - {"workbench"}:
                source = Path(str(found.locate_file(top)))
                if source.is_dir():
                    shutil.copytree(source, target / top, dirs_exist_ok=True)
                elif source.exists():
                    shutil.copy(source, target / top)
        seen.add(name)


def _processes_of(uid: int) -> list[int]:
    found = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{entry}").st_uid == uid and not _is_zombie(entry):
                found.append(int(entry))
    return found


def _is_zombie(process: str) -> bool:
    return Path("/proc", process, "stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"


def change_users(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command that changes the users of this machine; again where another process has their database locked."""

    def run() -> subprocess.CompletedProcess[str] | None:
        environment = {**os.environ, "LC_ALL": "C"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        return None if done.returncode and "lock" in done.stderr else done

    done = wait_until(run, "the users of this machine can be changed")
    assert done is not None
    return done


@contextmanager
def ordinary_user(group: str = "") -> Iterator[OrdinaryUser]:
    """Make a user, in one more `group` where it's given; skips where that can't be done."""
    if os.geteuid() != 0:
        pytest.skip("making a user takes root")
    need_program("useradd")
    name = f"wbtest{secrets.token_hex(4)}"
    groups = ["--groups", group] if group else []
    made = change_users("useradd", "--no-create-home", *groups, name)
    if made.returncode:
        unavailable(f"useradd fails: {made.stderr.strip()}")
    directory = Path(tempfile.mkdtemp(prefix="workbench-user-"))
    try:
        # The checkout may be in a directory that only root can enter.
        shutil.copytree(workbench.__path__[0], directory / "source" / "workbench")
        for tree in ("tests", "sandbox_images"):
            shutil.copytree(Path(__file__).parents[2] / tree, directory / "source" / tree)
        entry = pwd.getpwnam(name)
        os.chown(directory, entry.pw_uid, entry.pw_gid)
        users = [OrdinaryUser(name, directory, python) for python in (sys.executable, "/usr/bin/python3")]
        user = next(filter(_works, users), None)
        if user is None:
            # So may be the environment that this runs in.
            _copy_dependencies(directory / "source")
            user = next(filter(_works, users), None)
        if user is None:
            unavailable("no Python that an ordinary user can run has what this project depends on")
        yield user
    finally:
        uid = pwd.getpwnam(name).pw_uid
        # A test that failed leaves keepers, which need their overlays to end well.
        for process in _processes_of(uid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        wait_until(lambda: not _processes_of(uid), f"the processes of {name} have ended")
        shutil.rmtree(directory)
        shutil.rmtree(f"/tmp/workbench-{uid}", ignore_errors=True)
        # It stays for as long as the kernel has anything left of its processes.
        wait_until(lambda: not change_users("userdel", name).returncode, f"{name} is removed")
