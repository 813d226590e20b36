"""Every example does what it says, run as a person would run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needed import without_namespaces

ROOT = Path(__file__).parent.parent


def _quickstart(*prefix: str, code: int = 0, **environment: str) -> str:
    prepared = Path(sys.prefix) / ".prepared-dev"
    if not prepared.exists():
        pytest.skip("the quickstart would make its own environment; tests/run has one that it takes")
    result = subprocess.run(
        [*prefix, str(ROOT / "examples" / "quickstart")],
        env={**os.environ, "WORKBENCH_VENV": sys.prefix, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout + result.stderr


def test_the_library_example_lands_what_a_command_changed(engine: None, state: Path, repo: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "library.py"), str(repo), "sh", "-c", "echo said; echo x > made"]
    result = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=True
    )
    assert result.stdout.splitlines()[:2] == [b"said", b"added        made"]
    assert (repo / "made").read_text() == "x\n"


@pytest.mark.parametrize("answer", ["y", "n"])
@pytest.mark.parametrize("name", ["agent", "blocking"])
def test_an_agent_example_lands_what_a_model_wrote_only_where_it_is_told_to(
    state: Path, tmp_path: Path, name: str, answer: str
) -> None:
    directory = tmp_path / "project"
    directory.mkdir()
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), str(directory)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=f"{answer}\n".encode(),
        capture_output=True,
        check=True,
    )
    assert b"I wrote HELLO.md.\nadded HELLO.md\n" in result.stdout
    assert os.listdir(directory) == (["HELLO.md"] if answer == "y" else [])


def test_the_notes_example_grows_a_document_turn_by_turn_and_takes_its_last_turn_back(
    state: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "kept").touch()
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "notes_to_document.py"), str(directory)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=b"y\n",
        capture_output=True,
        check=True,
    )
    third, rewound = result.stdout.decode().split("--- after: ")[3].split("--- rewound")
    assert "(finding 3)" in third
    assert "(finding 3)" not in rewound
    assert "would land: OVERVIEW.md\n" in rewound
    assert sorted(os.listdir(directory)) == ["OVERVIEW.md", "kept"]
    assert (directory / "OVERVIEW.md").read_text().count("finding") == 2


def _tells_the_whole_story(output: str) -> None:
    assert "FAILED (failures=1)" in output
    assert "if pieces > 10:" in output, "the real project was changed before the commit"
    assert "+            if pieces >= 10:" in output, "the diff wasn't shown"
    assert "1 change landed" in output
    assert output.rindex("OK") > output.index("1 change landed"), "the committed project's tests don't pass"


def test_the_quickstart_runs_the_main_job_with_an_engine(engine: None) -> None:
    _tells_the_whole_story(_quickstart())


def test_the_quickstart_runs_the_main_job_without_an_engine() -> None:
    output = _quickstart(WORKBENCH_BACKEND="namespace")
    _tells_the_whole_story(output)
    assert "isolate less" in output


def test_the_quickstart_says_what_is_missing_and_stops_where_no_sandbox_can_be_started(tmp_path: Path) -> None:
    output = _quickstart(*without_namespaces(), code=1, DOCKER_HOST=f"unix://{tmp_path}/none.sock")
    assert "XX  docker" in output
    assert "XX  namespace" in output
    assert "Nothing was done" in output
    assert "workbench exec" not in output


@pytest.mark.parametrize("name", ["agent", "blocking", "library", "notes_to_document"])
def test_an_example_without_its_arguments_says_what_it_takes(name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"python examples/{name}.py DIRECTORY" in done.stderr
    assert "Traceback" not in done.stderr
