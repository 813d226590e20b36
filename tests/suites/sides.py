"""A suite on two sides: in the sandbox's mount, and in an equal container on the plain disk below it."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.bench import Bench
from tests.needed import unavailable
from tests.suites.fetched import CACHE, Apt
from workbench.sandbox.backend import Limits

IMAGE = "workbench-tests/suites:1"
BASE = "workbench/python:1"
_PACKAGES = ("fio", "libpython3.11-testsuite", "python3-gdbm", "stress-ng", "zlib1g-dev")
_DOCKERFILE = f"""\
FROM {BASE}
COPY *.deb /tmp/packages/
RUN dpkg -i /tmp/packages/*.deb >/dev/null && rm -r /tmp/packages
ADD git.tar /opt/
RUN mv /opt/git-* /opt/git && make -s -j2 -C /opt/git CFLAGS=-O0 NO_CURL=1 NO_EXPAT=1 NO_GETTEXT=1 NO_OPENSSL=1 NO_PCRE=1 \
    NO_PERL=1 NO_PYTHON=1 NO_TCLTK=1 NO_INSTALL_HARDLINKS=1 >/dev/null 2>&1
"""
_RECIPE_LABEL = "workbench.test.recipe"
_TRIES = 3

Outcomes = dict[str, dict[str, str]]
"""Of each unit (a module, a script), how each of its cases ended."""


def build_image() -> str:
    """The image with the suites in it, over the sandbox's own; built where it's missing or of another recipe."""
    base = _docker("image", "inspect", "-f", "{{.Id}}", BASE).strip()
    recipe = hashlib.sha256(" ".join((base, _DOCKERFILE, *_PACKAGES)).encode()).hexdigest()
    wanted = ["image", "inspect", "-f", f'{{{{.Id}}}} {{{{index .Config.Labels "{_RECIPE_LABEL}"}}}}', IMAGE]
    there = subprocess.run(["docker", *wanted], capture_output=True, text=True, check=False).stdout.split()
    if there[1:] == [recipe]:
        return IMAGE
    status = _docker("run", "--rm", "--network", "none", "--entrypoint", "cat", BASE, "/var/lib/dpkg/status")
    apt = Apt(CACHE / "apt", status)
    with tempfile.TemporaryDirectory(prefix="workbench-image-") as directory:
        context = Path(directory)
        for package in apt.packages(_PACKAGES):
            shutil.copy(package, context)
        with lzma.open(apt.source("git")) as packed, open(context / "git.tar", "wb") as tar:
            shutil.copyfileobj(packed, tar)
        (context / "Dockerfile").write_text(_DOCKERFILE)
        options = ["--network", "none", "--force-rm", "--label", f"{_RECIPE_LABEL}={recipe}", "-t", IMAGE]
        _docker("build", "-q", *options, directory)
    if there:
        # A sandbox that still runs in it keeps it.
        subprocess.run(["docker", "image", "rm", there[0]], capture_output=True, check=False)
    return IMAGE


def _docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        unavailable(f"docker {arguments[0]}: {(done.stderr + done.stdout)[-3000:]}")
    return done.stdout


@dataclass
class Sides:
    """Two directories at paths of one length: one is a workspace, the other is plain; `image` is that with the suites."""

    directory: Path
    image: str = ""

    def __post_init__(self) -> None:
        self.image = self.image or build_image()
        self.plain, self.mount = self.directory / "plain", self.directory / "mount"
        for path in (self.plain, self.mount):
            path.mkdir()
        self.bench = Bench(self.mount, image=self.image)

    def run(self, source: str, *arguments: str) -> tuple[str, str]:
        """What a Python program prints on each side, run on both at once; its first argument is the directory."""
        with ThreadPoolExecutor() as threads:
            plain = threads.submit(self._on_plain_disk, source, *arguments)
            mounted = self.bench.python(source, str(self.mount), *arguments)
            return plain.result(), mounted.decode()

    def _on_plain_disk(self, source: str, *arguments: str) -> str:
        # As `DockerBackend` makes its containers, but for the mount.
        limits = Limits()
        options = [
            *("--network", "none", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--read-only"),
            *("--user", f"{os.getuid()}:{os.getgid()}", "--pids-limit", str(limits.pids)),
            *(
                "--memory",
                str(limits.memory_bytes),
                "--tmpfs",
                f"/tmp:exec,size={limits.tmp_bytes}",
                "--tmpfs",
                "/home/workbench:exec,mode=0777",
            ),
            *("--env", "HOME=/home/workbench", "--hostname", "workbench", "--workdir", str(self.plain)),
            *("--label", "workbench.test=1", "--volume", f"{self.plain}:{self.plain}"),
        ]
        done = subprocess.run(
            ["docker", "run", "--rm", "-i", *options, self.image, "python3", "-I", "-", str(self.plain), *arguments],
            input=source,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    def outcomes(self, source: str, units: Sequence[str]) -> tuple[Outcomes, Outcomes]:
        """How each case of each unit ended, on plain disk and in the mount.

        `source` prints it as JSON. A unit that differs runs again by itself, so that a busy machine's timing isn't taken
        for the filesystem's doing.
        """
        plain, mounted = (json.loads(text) for text in self.run(source, *units))
        for unit in units:
            tries = 0
            while plain[unit] != mounted[unit] and tries < _TRIES:
                tries += 1
                again = [json.loads(text) for text in self.run(source, unit)]
                plain[unit], mounted[unit] = (outcomes[unit] for outcomes in again)
        return plain, mounted


def differences(plain: Outcomes, mounted: Outcomes) -> list[str]:
    """Each case that ended differently, with both ends."""
    return [
        f"{unit}: {case}: on disk {_of(plain, unit, case)}, in the mount {_of(mounted, unit, case)}"
        for unit in plain
        for case in sorted({*plain[unit], *mounted[unit]})
        if _of(plain, unit, case) != _of(mounted, unit, case)
    ]


def _of(outcomes: Mapping[str, Mapping[str, str]], unit: str, case: str) -> str:
    return outcomes[unit].get(case, "not run")
