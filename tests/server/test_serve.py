"""`workbench serve`, as a person and as a program starts it, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from tests.conftest import ROOT
from tests.transcripts.homes import ASKED, T0, lines
from workbench.cli.app import app

SERVE = [sys.executable, "-m", "workbench", "serve"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a user who has nothing yet."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "WORKBENCH_STATE": str(tmp_path / "state"),
        "PYTHONPATH": str(ROOT),
    }


@contextmanager
def started(environment: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command, for the while."""
    process = subprocess.Popen(
        [*SERVE, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return line


def ended(process: subprocess.Popen[str], number: int) -> None:
    """The signal ends it: with 0, and its port is free."""
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert "Error" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_frees_its_port(environment: dict[str, str], number: int) -> None:
    with started(environment, "--json") as process:
        told: Any = json.loads(first_line(process))
        assert (told["host"], told["url"]) == ("127.0.0.1", f"http://127.0.0.1:{told['port']}/")
        token = Path(told["token_file"])
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert token.is_relative_to(environment["WORKBENCH_STATE"])
        headers = {"authorization": f"Bearer {token.read_text().strip()}"}
        with httpx.Client(base_url=told["url"], headers=headers, trust_env=False, timeout=120) as client:
            assert client.get("/v1/health").json() == {"status": "ok"}
            assert client.get("/v1/transcripts").json()["sessions"] == []
            ended(process, number)
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", told["port"]))


def test_who_is_being_answered_doesn_t_keep_it(environment: dict[str, str], tmp_path: Path) -> None:
    for number in range(3000):
        record = {"type": "user", "sessionId": f"s{number}", "timestamp": T0, "message": {"content": ASKED}}
        lines(tmp_path / ".claude" / "projects" / "p" / f"s{number}.jsonl", record)
    with started(environment, "--json") as process:
        told: Any = json.loads(first_line(process))
        token = Path(told["token_file"]).read_text().strip()
        # Neither reads its answer: one of them is in the middle of a stream for ever.
        head = f"Host: localhost\r\nAuthorization: Bearer {token}\r\nAccept: text/event-stream\r\n\r\n"
        with socket.create_connection(("127.0.0.1", told["port"])) as one:
            one.sendall(f"GET /v1/transcripts HTTP/1.1\r\n{head}".encode())
            assert one.recv(1)
            ended(process, signal.SIGTERM)


def test_one_address_is_printed_and_its_token_is_in_no_log(environment: dict[str, str], tmp_path: Path) -> None:
    with started(environment, "--token-file", str(tmp_path / "token")) as process:
        address = first_line(process).strip()
        url, _, fragment = address.partition("#token=")
        assert fragment == (tmp_path / "token").read_text().strip()
        assert "?" not in url
        with httpx.Client(trust_env=False, timeout=120) as client:
            assert client.get(address).status_code == 200
            assert client.get(f"{url}v1/sessions", headers={"authorization": f"Bearer {fragment}"}).status_code == 200
            assert client.get(f"{url}v1/sessions").status_code == 401
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        assert fragment not in out + err


def ran(*arguments: str, code: int) -> Result:
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_an_address_that_is_empty_is_said_to_be(state: Path) -> None:
    for more in ((), ("--allow-remote",)):
        error = json.loads(ran("--host", "", "--json", *more, code=2).stdout)["error"]
        assert (error["code"], error["message"]) == ("invalid_options", "--host names no address.")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_an_address_that_others_reach_is_refused_unless_that_is_said(state: Path, host: str) -> None:
    result = ran("--host", host, "--json", code=2)
    error = json.loads(result.stdout)["error"]
    assert (error["code"], "--allow-remote" in error["hint"]) == ("invalid_options", True)


def test_with_that_said_it_listens_there(environment: dict[str, str]) -> None:
    with started(environment, "--host", "0.0.0.0", "--allow-remote", "--json") as process:
        told: Any = json.loads(first_line(process))
        response = httpx.get(f"http://127.0.0.2:{told['port']}/v1/health", trust_env=False, timeout=120)
        assert response.status_code == 200
        ended(process, signal.SIGTERM)


def test_a_port_that_is_taken_is_said(state: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        result = ran("--port", str(other.getsockname()[1]), "--json", code=1)
    assert json.loads(result.stdout)["error"]["code"] == "address_unavailable"


def test_without_the_extra_the_command_that_installs_it_is_named(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.cli.serve._NEEDED", ("fastapi", "not_there_at_all"))
    error = json.loads(ran("--json", code=1).stdout)["error"]
    assert (error["code"], error["hint"]) == ("extra_missing", "pip install 'overlay-workbench[server]'")
    assert "not_there_at_all" in error["message"]


def test_who_doesn_t_serve_loads_nothing_of_it() -> None:
    program = (
        "import sys, workbench, workbench.cli.app, workbench.cli.serve\n"
        "loaded = {'fastapi', 'uvicorn', 'starlette', 'sse_starlette', 'workbench.server'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_a_wheel_has_the_page(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    page = ROOT / "workbench" / "server" / "page"
    assert {f"workbench/server/page/{each.name}" for each in page.iterdir()} <= packed
