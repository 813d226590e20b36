"""What the command line's tests share: sandboxes that serve a whole file, a person's shell around the command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.conftest import ROOT, Cli, git_in
from tests.trees import make_tree


class Prompt(Cli):
    """The command on a repository and a state directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.state = directory / "state"
        self.state.mkdir(mode=0o700)
        workspace = directory / "repo"
        make_tree(workspace)
        git = git_in(workspace)
        git("init", "-q", "-b", "main")
        git("add", "-A")
        git("commit", "-q", "-m", "first")
        super().__init__(workspace)

    @property
    def environment(self) -> dict[str, str]:
        """This process's, with the state directory, and with this checkout wherever the command is started."""
        paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        own = {"WORKBENCH_STATE": str(self.state), "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "100"}
        return {**os.environ, **own}

    def argv(self, command: str, *arguments: str | bytes) -> list[str | bytes]:
        return [sys.executable, "-m", "workbench", command, "-w", str(self.workspace), *arguments]

    def __call__(
        self, command: str, *arguments: str | bytes, code: int | None = 0, **options: object
    ) -> subprocess.CompletedProcess[bytes]:
        options = {"env": self.environment, **options}
        return super().__call__(command, *arguments, code=code, **options)

    def start(self, *arguments: str, **options: object) -> subprocess.Popen[bytes]:
        """A command in the sandbox, started in a process group of its own and left to the test."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            self.argv("exec", *arguments),
            **{"env": self.environment, "cwd": ROOT, "start_new_session": True, **pipes, **options},  # type: ignore[call-overload]
        )

    def overlay(self, session: str = "default") -> Path:
        """The directory of its overlay, which the first command makes."""
        (found,) = self.state.glob(f"workspaces/*/overlays/{session}")
        return found

    def end(self) -> None:
        """End every sandbox over the state directory."""
        for session in self.state.glob("workspaces/*/overlays/*"):
            self("stop", "--session", session.name, code=None)
        assert self.leftovers() == []

    def leftovers(self) -> Sequence[str]:
        """The containers and volumes that belong to the state directory."""
        return leftovers(self.state)


def leftovers(state: Path) -> list[str]:
    """The containers and volumes of a state directory."""
    if not (state / "id").exists():
        return []
    label = f"label=workbench.state={(state / 'id').read_text().strip()}"
    found: list[str] = []
    for command in (["ps", "-aq"], ["volume", "ls", "-q"]):
        listed = subprocess.run(["docker", *command, "--filter", label], capture_output=True, text=True, check=True)
        found += listed.stdout.split()
    return found


@pytest.fixture(scope="module")
def prompt(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prompt]:
    """A prompt that all tests of a file use one after another; each leaves the sandbox usable."""
    directory = tmp_path_factory.mktemp("prompt")
    made = Prompt(directory)
    try:
        yield made
    finally:
        made.end()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def fresh_prompt(engine: None, tmp_path: Path) -> Iterator[Prompt]:
    """A prompt of the test's own."""
    made = Prompt(tmp_path)
    try:
        yield made
    finally:
        made.end()
