"""What suites need and a machine may lack: fetched once, with the machine's own apt and pip, into `.cache/suites`."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.needed import unavailable

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "suites"
FULL = os.environ.get("WORKBENCH_SUITES") == "full"

_ONE_LINE = re.compile(r"^deb(?=\s)", re.MULTILINE)
_DEB822 = re.compile(r"^Types:.*$", re.MULTILINE)


def run(argv: Sequence[str | Path], what: str, cwd: Path | None = None) -> str:
    """What a command prints; where it fails, what was wanted can't be had."""
    try:
        done = subprocess.run(argv, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        unavailable(f"{what}: {error.filename} isn't installed")
    if done.returncode:
        unavailable(f"{what}: {(done.stderr + done.stdout).strip()[-2000:]}")
    return done.stdout


class Apt:
    """apt with a configuration of its own: this machine's sources, also for source packages, and the packages of an image."""

    def __init__(self, directory: Path, status: str) -> None:
        """Args:
        directory: where its files are.
        status: dpkg's status file of the image; what is installed there isn't downloaded.
        """
        self._directory = directory
        for name in ("sources", "lists/partial", "archives/partial"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / "status").write_text(status)
        found = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
        for file in found:
            if file.suffix == ".sources":
                text = _DEB822.sub("Types: deb deb-src", file.read_text())
            elif file.suffix == ".list" and file.is_file():
                text = file.read_text() + _ONE_LINE.sub("deb-src", file.read_text())
            else:
                continue
            (directory / "sources" / file.name).write_text(text)
        self("apt-get", "-q", "update")

    def __call__(self, command: str, *arguments: str, cwd: Path | None = None) -> str:
        at = self._directory
        options = {
            "Dir::Etc::sourcelist": "/dev/null",
            "Dir::Etc::sourceparts": at / "sources",
            "Dir::State::lists": at / "lists",
            "Dir::State::status": at / "status",
            "Dir::Cache": at,
            # Whose user couldn't enter a directory of ours.
            "APT::Sandbox::User": "root",
        }
        words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        return run([command, *words, *arguments], f"{command} {' '.join(arguments)}", cwd)

    def packages(self, names: Iterable[str]) -> list[Path]:
        """The packages, with all they need that the image lacks."""
        shutil.rmtree(self._directory / "archives")
        (self._directory / "archives" / "partial").mkdir(parents=True)
        self("apt-get", "-q", "-y", "--no-install-recommends", "--download-only", "install", *names)
        return sorted((self._directory / "archives").glob("*.deb"))

    def source(self, name: str) -> Path:
        """The upstream tarball of a source package."""
        place = self._directory / "source"
        place.mkdir(exist_ok=True)
        self("apt-get", "-q", "--download-only", "source", name, cwd=place)
        return sorted(place.glob(f"{name}_*.orig.tar.*"))[-1]


def environment(name: str, *requirements: str) -> Path:
    """The Python of a virtual environment with these packages in it, made where it's missing or was made of others."""
    place = CACHE / "environments" / name
    # An editable installation of the project depends on what this says.
    project = (ROOT / "pyproject.toml").read_text()
    wanted = hashlib.sha256("\n".join([sys.version, project, *requirements]).encode()).hexdigest()
    note, python = place / "made-of", place / "bin" / "python"
    if not note.exists() or note.read_text() != wanted:
        shutil.rmtree(place, ignore_errors=True)
        run([sys.executable, "-m", "venv", place], f"a virtual environment for {name}")
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        run([*pip, *requirements], f"pip install {' '.join(requirements)}")
        note.write_text(wanted)
    return python


def source_distribution(requirement: str) -> Path:
    """The directory of a source distribution of PyPI, unpacked."""
    place = CACHE / "sources" / re.sub(r"[^\w.=-]", "-", requirement)
    if not sorted(place.glob("*/PKG-INFO")):
        shutil.rmtree(place, ignore_errors=True)
        download = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        run([*download, "--no-binary", ":all:", "-d", place, requirement], f"pip download {requirement}")
        # Not by shutil, which trusts an archive's paths before Python 3.11.4.
        run(["tar", "-xzf", sorted(place.glob("*.tar.gz"))[0], "-C", place], f"unpacking {requirement}")
    return sorted(place.glob("*/PKG-INFO"))[0].parent
