"""`exec --commit success`: what may land lands by itself, all else waits, and the command's exit code stays its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.trees import snapshot


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WORKBENCH_CONFIG", str(tmp_path / "config"))
    (tmp_path / "config").mkdir()
    return tmp_path / "config" / "config.toml"


def by_itself(cli: Cli, script: str, *arguments: str, code: int = 0) -> dict[str, object]:
    done = cli("exec", "--json", "--commit", "success", *arguments, "--", "sh", "-c", script, code=code)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def refusals(cli: Cli) -> list[str]:
    told = json.loads(cli("log", "--audit", "--json").stdout)
    assert all(entry["digest"] for entry in told)
    return [entry["code"] for entry in told if entry["action"] == "refusal"]


def test_what_succeeded_lands_by_itself_and_says_whether_there_was_a_check(cli: Cli, config: Path) -> None:
    done = cli("exec", "--commit", "success", "--", "sh", "-c", "echo 1 > new")
    assert b"1 change landed without a check" in done.stderr
    assert (cli.workspace / "new").read_text() == "1\n"
    done = cli("exec", "--commit", "success", "--check", "grep 2 new", "--", "sh", "-c", "echo 2 > new")
    assert b"landed after the check passed" in done.stderr
    assert (cli.workspace / "new").read_text() == "2\n"
    assert by_itself(cli, "true")["commit_id"] is None


def test_a_command_or_a_check_that_failed_lands_nothing(cli: Cli, config: Path) -> None:
    before = snapshot(cli.workspace)
    told = by_itself(cli, "echo 1 > new; exit 3", code=3)
    assert (told["commit_id"], told["waits"]) == (None, None)
    told = by_itself(cli, "echo 1 > new", "--check", "false")
    assert told["waits"]["code"] == "check_failed"  # type: ignore[index]
    assert snapshot(cli.workspace) == before
    assert refusals(cli) == ["check_failed"]
    cli("exec", "--check", "true", "--", "true", code=2)


def test_one_risky_path_makes_all_of_it_wait(cli: Cli, config: Path) -> None:
    before = snapshot(cli.workspace)
    told = by_itself(cli, "echo 1 > new; echo x=1 > .envrc")
    assert told["waits"]["code"] == "policy_waits"  # type: ignore[index]
    assert told["changes"] == 2
    assert snapshot(cli.workspace) == before
    assert refusals(cli) == ["policy_waits"]


def test_a_persons_rules_ask_deny_and_forbid(cli: Cli, config: Path) -> None:
    before = snapshot(cli.workspace)
    for rules, code in (
        ('[[commit.rules]]\naction = "ask"\nglob = ["*.sql"]\n', "policy_waits"),
        ('[[commit.rules]]\naction = "deny"\nglob = ["*.sql"]\n', "policy_denied"),
        ('[commit]\npolicy = "never"\n', "policy_denied"),
        ("[commit]\nnonsense = 1\n", "invalid_options"),
    ):
        config.write_text(rules)
        assert by_itself(cli, "echo 1 > a.sql; echo 1 > b")["waits"]["code"] == code  # type: ignore[index]
        assert snapshot(cli.workspace) == before
    config.write_text('[[commit.rules]]\naction = "deny"\nglob = ["*.sql"]\n')
    refused = json.loads(cli.commit("--json", code=4).stdout)
    assert [path["path"] for path in refused["paths"]] == ["a.sql"]
    cli("review", "--accept", "b")
    cli("commit", "--accepted")
    assert (cli.workspace / "b").exists()
