"""What `--help` shows at 80 columns: whole words, and nothing that a command doesn't have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from workbench.cli.app import app
from workbench.cli.chat_commands import COMMANDS, KEYS


def _named(command: Any, *names: str) -> Iterator[tuple[str, ...]]:
    """Every command below this one, by its names."""
    yield names
    for name, below in getattr(command, "commands", {}).items():
        yield from _named(below, *names, name)


ALL = list(_named(typer.main.get_command(app)))


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("names", ALL, ids=" ".join)
def test_no_word_is_cut_at_80_columns(narrow: None, names: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*names, "--help"]).stdout
    assert " ".join((*names, "[OPTIONS]")) in shown
    # The table cuts what doesn't fit, such as the name of a variable, which then nobody can set.
    assert "…" not in shown.replace("WORKBENCH_NAME_…", "")
    assert max(map(len, shown.splitlines())) <= 80


def test_a_chat_is_not_told_of_what_only_a_run_has(narrow: None) -> None:
    assert "--attempts" not in CliRunner().invoke(app, ["chat", "--help"]).stdout


def test_the_help_of_a_chat_fits_80_columns() -> None:
    width = max(len(f"{name} {argument}".strip()) for name, (argument, _) in COMMANDS.items())
    lines = [*KEYS.splitlines(), *(f"{'':<{width}}  {what}" for _, what in COMMANDS.values())]
    assert max(map(len, lines)) <= 80
