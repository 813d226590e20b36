"""The suites of the libraries whose faces we wear and whose storages we read, each with the releases that people have."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.suites.fetched import FULL, ROOT, environment


@dataclass(frozen=True)
class Cell:
    """What is installed beside the project, which files of `tests` then run, and how many tests that is at least."""

    name: str
    requirements: tuple[str, ...]
    files: tuple[str, ...]
    at_least: int


def _oldest(requirement: str) -> str:
    """The release at the lower bound that pyproject.toml names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    everything = project["dependencies"] + project["optional-dependencies"]["pyfilesystem"]
    found = [re.fullmatch(rf"{requirement}>=([\d.]+).*", one) for one in everything]
    return next(f"{requirement}=={match[1]}" for match in found if match)


_FSSPEC = tuple(f"vfs/test_fsspec_{what}.py" for what in ("face_suite", "face", "contract", "storage"))
_PYFILESYSTEM = ("vfs/test_pyfilesystem_suite.py", "vfs/test_pyfilesystem_face.py")
_S3 = ("vfs/test_fsspec_s3.py", "test_storage_workspaces_s3.py")
_CELLS = (
    # Its suite has fixtures that pytest 9 no longer takes. Its git filesystem has no word for what isn't there (KeyError).
    Cell("fsspec-oldest", (_oldest("fsspec"), "pytest<9", "aiohttp"), _FSSPEC, 700),
    Cell("fsspec-newest", ("fsspec", "aiohttp", "pygit2"), _FSSPEC, 700),
    Cell("fs-oldest-setuptools-newest", (_oldest("fs"), "setuptools>=82"), _PYFILESYSTEM, 4 * 79),
    Cell("fs-oldest-setuptools-before-82", (_oldest("fs"), "setuptools<82"), _PYFILESYSTEM, 4 * 79),
    Cell("fs-next", ("fs-next",), _PYFILESYSTEM, 4 * 79),
    # With `boto3` said beside it, pip needn't try release after release for one that suits both.
    Cell("s3fs", ("s3fs", "aiobotocore[boto3]", "moto[s3]", "flask", "flask-cors", "trio"), _S3, 20),
)


@pytest.mark.parametrize("cell", _CELLS, ids=lambda cell: cell.name)
def test_the_suites_pass_with_each_release_that_people_have(cell: Cell, tmp_path: Path) -> None:
    python = environment(cell.name, *cell.requirements, "pytest>=8.2", f"-e{ROOT}")
    if cell.requirements[0] == "fsspec" and not FULL:
        ask = "from importlib.metadata import version; print(version('fsspec'))"
        newest = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
        if newest == version("fsspec"):
            pytest.skip(f"fsspec {newest} is what all other tests run with")
    report = tmp_path / "report.xml"
    argv = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inner'}"]
    done = subprocess.run(
        [*argv, f"--junit-xml={report}", *(f"tests/{file}" for file in cell.files)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON"))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    suite = ElementTree.parse(report).getroot()[0]
    assert int(suite.attrib["tests"]) - int(suite.attrib["skipped"]) >= cell.at_least, done.stdout[-2000:]
