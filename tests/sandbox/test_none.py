"""The backend `none`: files can be worked on as ever, and a command is a clear error."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.bench import Bench
from tests.conftest import Cli
from tests.trees import make_tree
from workbench.errors import SandboxError


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "w"
    path.mkdir()
    make_tree(path)
    return path


def test_files_are_written_looked_at_and_landed_without_any_sandbox(state: Path, workspace: Path) -> None:
    bench = Bench(workspace, backend="none")
    bench.do(lambda opened: opened.files.write(b"README.md", b"new"))
    bench.do(lambda opened: opened.files.unlink(b"docs/guide.md"))
    assert bench.do(lambda opened: opened.read(b"README.md")) == b"new"
    assert bench.told() == {b"README.md": "modified", b"docs/guide.md": "deleted"}
    with pytest.raises(SandboxError) as caught:
        bench.sh("true")
    assert caught.value.code == "sandbox_unsupported"
    assert bench.keeper() is None
    bench.commit()
    assert (workspace / "README.md").read_text() == "new"
    assert not (workspace / "docs" / "guide.md").exists()


def test_a_command_line_that_names_it_says_what_to_do_instead(state: Path, workspace: Path) -> None:
    cli = Cli(workspace)
    refused = cli("exec", "--backend", "none", "--", "true", code=125)
    assert b"[sandbox_unsupported]" in refused.stderr
    assert b"--backend auto" in refused.stderr
    told = cli("exec", "--json", "--", "true", code=None, env={**os.environ, "WORKBENCH_BACKEND": "none"})
    assert json.loads(told.stdout)["error"]["code"] == "sandbox_unsupported"
    assert json.loads(cli("status", "--json").stdout)["changes"] == 0
    told = cli("doctor", "--json", code=None, env={**os.environ, "WORKBENCH_BACKEND": "none"})
    assert json.loads(told.stdout)["picked"] == "none"


@pytest.mark.engine
def test_it_leaves_a_sandbox_that_is_warm_alone(engine: None, state: Path, workspace: Path) -> None:
    bench = Bench(workspace)
    bench.sh("echo new > new")
    keeper = bench.keeper()
    with pytest.raises(SandboxError):
        Bench(workspace, backend="none").sh("true")
    assert keeper is not None
    assert (found := bench.keeper()) is not None
    assert found.pid == keeper.pid
