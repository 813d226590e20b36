"""`workbench models`: what can be asked, and whether it works."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tests.conftest import ROOT
from workbench.cli.app import app
from workbench.models.providers import PROVIDERS
from workbench.protocol.model_reports import ModelsReport, TrialReport
from workbench.testing import StubCall, StubModelServer, StubReply

KEY = "sk-secret-0123456789abcdef"
RIGHT = StubReply(calls=[StubCall("repeat", {"word": "workbench"})])


class Run:
    """The command with no key and no configuration but the test's, and with no server on this machine's usual ports."""

    def __init__(self, directory: Path) -> None:
        self._config = directory / "config.toml"

    def __call__(self, *arguments: str, code: int = 0, config: str = "") -> Result:
        local = "".join(
            f'[providers.{name}]\nbase_url = "http://127.0.0.1:1/v1"\n' for name, one in PROVIDERS.items() if one.local
        )
        self._config.write_text(local + config)
        done = CliRunner().invoke(app, ["models", *arguments])
        assert done.exit_code == code, (done.stdout, done.stderr, done.exception)
        assert KEY not in done.stdout + done.stderr
        return done


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    for provider in PROVIDERS.values():
        for name in (*provider.keys, *provider.urls):
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORKBENCH_CONFIG", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    return Run(tmp_path)


def lab(stub: StubModelServer, key: str = KEY) -> str:
    return f'[providers.lab]\napi = "chat"\nbase_url = "{stub.url}/v1"\nkey_command = "echo {key}"\n'


def test_providers_are_listed_with_what_they_lack(run: Run) -> None:
    with StubModelServer(key=KEY, models=("one", "two")) as stub:
        lines = run(config=lab(stub)).stdout.splitlines()
        report = ModelsReport.model_validate_json(run("--json", config=lab(stub)).stdout)
    states = {line.split()[0]: line for line in lines[1:]}
    assert "answers, 2 models" in states["lab"]
    assert "no key" in states["anthropic"]
    assert "$ANTHROPIC_API_KEY" in states["anthropic"]
    assert "doesn't answer" in states["ollama"]
    providers = {provider.name: provider for provider in report.providers}
    assert providers["lab"].models == ("one", "two")
    assert providers["lab"].key == "a command"
    assert not providers["anthropic"].configured


def test_where_nothing_can_be_asked_the_next_step_is_said(run: Run) -> None:
    assert "Set a variable of the column KEY" in run().stderr
    assert "ANTHROPIC_API_KEY" in run("--help").stdout


def test_the_models_of_one_provider_are_named(run: Run) -> None:
    with StubModelServer(key=KEY, models=("one", "gpt\x1b[31m")) as stub:
        listed = run("list", "lab", config=lab(stub)).stdout
    assert "lab/one" in listed
    assert "\x1b" not in listed
    for provider, code, step in (("anthropic", "auth", "key_command"), ("ollama", "network", "base URL")):
        error = run("list", provider, code=1).stderr
        assert f"[{code}]" in error
        assert step in error
    assert "model_not_found" in run("list", "nobody", code=1).stderr


def test_what_is_listed_elsewhere_than_at_a_terminal_is_whole(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    with StubModelServer(key=KEY) as stub:
        lines = run(config=lab(stub)).stdout.splitlines()
        assert f"lab\tanswers, 1 model\ta command\t{stub.url}/v1" in lines
        # What the configuration says of a model is what it costs.
        priced = '[models."lab/m"]\ncontext_window = 1000\nprices = { input = 1.5, output = 3.0 }\n'
        assert run("list", "lab", config=lab(stub) + priced).stdout.splitlines()[1:] == ["lab/m\t1,000\t1.5\t3"]


def test_a_model_that_works_is_said_to(run: Run) -> None:
    with StubModelServer(RIGHT, RIGHT, key=KEY) as stub:
        shown = run("test", "lab/m", config=lab(stub)).stdout
        report = TrialReport.model_validate_json(run("test", "lab/m", "--json", config=lab(stub)).stdout)
    assert "no " not in shown
    assert "calls tools" in shown
    assert report.works


def test_a_key_may_come_from_a_command_on_the_line(run: Run) -> None:
    with StubModelServer(RIGHT, key=KEY) as stub:
        run("test", "lab/m", "--key-command", f"printf '%s\\n' {KEY}", config=lab(stub, key="wrong"))


def test_a_model_that_does_not_work_says_why_and_what_next(run: Run) -> None:
    with StubModelServer(StubReply(text="I'd rather not."), key=KEY) as stub:
        assert "it ended with stop" in run("test", "lab/m", code=1, config=lab(stub)).stdout
    with StubModelServer(key=KEY) as stub:
        done = run("test", "lab/m", code=1, config=lab(stub, key="wrong-key-1"))
    assert "status 401" in done.stdout
    assert "Check the provider's key" in done.stderr
    assert "wrong-key-1" not in done.stdout + done.stderr
    assert "provided: [key]" in done.stdout
    done = run("test", "anthropic/claude-sonnet-4.6", code=1)
    assert "$ANTHROPIC_API_KEY" in done.stderr
    error = json.loads(run("test", "gpt-5", "--json", code=1).stdout)["error"]
    assert error["code"] == "model_not_found"


def test_the_command_line_starts_without_an_http_client() -> None:
    loaded = [
        line
        for line in subprocess.run(
            [sys.executable, "-X", "importtime", "-c", "import workbench.cli.app"],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        ).stderr.splitlines()
        if "httpx" in line or "workbench.models" in line
    ]
    assert loaded == []
