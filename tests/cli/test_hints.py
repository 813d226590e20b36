"""What a command says to type next works when it's pasted, wherever it was said."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer

from tests.cli.conftest import Prompt
from tests.conftest import Cli
from workbench.cli import output
from workbench.cli.app import app


def commands(group: click.Command, name: str = "") -> dict[str, set[str]]:
    """The names of all commands, with those of their options."""
    found = {name.strip(): {str(parameter.name) for parameter in group.params}}
    for word, command in getattr(group, "commands", {}).items():
        found |= commands(command, f"{name} {word}")
    return found


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    output.about(None, "default")


def test_every_command_about_a_session_is_known_as_one() -> None:
    output.about("/w", "other")
    for name, options in commands(typer.main.get_command(app)).items():
        # Those of transcripts are about other agents' sessions, and named in no hint.
        is_about_one = {"workspace", "session"} <= options and name and not name.startswith("transcripts")
        said = output.typed(f"Look with `workbench {name} X`.")
        if is_about_one:
            assert said == f"Look with `workbench {name} -w /w --session other X`."
        else:
            assert said == f"Look with `workbench {name} X`."


def test_a_hint_is_about_what_the_call_is_about(monkeypatch: pytest.MonkeyPatch) -> None:
    output.about("my dir", "other")
    said = output.typed("`workbench exec -d -- X` or workbench commit --digest $(workbench diff --digest-only)")
    here = "-w 'my dir' --session other"
    assert said == (
        f"`workbench exec {here} -d -- X` or workbench commit {here} --digest $(workbench diff {here} --digest-only)"
    )
    for already in ("`workbench log --session third`", "`workbench ps -w /elsewhere`", "the workbench images"):
        assert output.typed(already) == already
    assert output.command("review", "third") == "workbench review -w 'my dir' --session third"
    monkeypatch.setenv("WORKBENCH_SESSION", "other")
    output.about(None, "other")
    assert output.typed("`workbench diff`") == "`workbench diff`"
    assert output.command("review", "other") == "workbench review"


@pytest.mark.parametrize("name", [b"b\xff d", b"a\nb", b"it's", "caf\u00e9".encode(), b"\x1b[31m"])
def test_a_directory_of_any_name_can_be_typed(name: bytes) -> None:
    output.about(os.fsdecode(name), "default")
    words = output.typed("workbench diff").removeprefix("workbench diff -w ")
    assert subprocess.run(["bash", "-c", f"printf %s {words}"], capture_output=True, check=True).stdout == name
    assert words.isprintable()


def test_what_a_refused_commit_says_to_type_lands_it_from_anywhere(prompt: Prompt, tmp_path: Path) -> None:
    for _ in ("the sandbox is started", "it's warm"):
        changed = prompt("exec", "--session", "pasted", "--", "sh", "-c", "echo agent >README.md")
        review = changed.stderr.decode().rpartition(" changed: ")[2]
        assert review == f"workbench review -w {prompt.workspace} --session pasted\n"
    refused = prompt("commit", "--session", "pasted", code=4).stderr.decode()
    found = re.search(r"name the digest of all: (workbench commit.*)", refused)
    assert found is not None, refused
    executables = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    environment = {**prompt.environment, "PATH": executables}
    subprocess.run(["sh", "-c", found[1]], cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert (prompt.workspace / "README.md").read_text() == "agent\n"
    prompt("stop", "--session", "pasted")


def test_a_merge_of_nothing_says_so(cli: Cli) -> None:
    assert cli("merge").stderr == b"workbench: there is nothing to merge\n"


@pytest.mark.parametrize(
    ("amount", "shown"), [(0, "$0.0000"), (1e-9, "<$0.0001"), (0.00004, "<$0.0001"), (0.0001, "$0.0001"), (1234, "$1,234.0000")]
)  # fmt: skip
def test_no_cost_looks_like_none(amount: float, shown: str) -> None:
    assert output.dollars(amount) == shown
