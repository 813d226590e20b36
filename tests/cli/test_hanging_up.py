"""A command that nohup(1) starts outlives its terminal, and what it can't read is empty."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Prompt
from tests.cli.terminals import Terminal, terminal
from tests.waiting import wait_until


@contextlib.contextmanager
def nohup(prompt: Prompt, out: Path, command: str, *arguments: str) -> Iterator[Terminal]:
    """A command under nohup(1) at a terminal, its output in a file: its standard input can't be read then."""
    argv = [os.fsdecode(word) for word in prompt.argv(command, *arguments)]
    script = 'out=$1; shift; exec nohup "$@" >"$out" 2>&1'
    with terminal(
        ["sh", "-c", script, "sh", str(out), *argv], cwd=prompt.workspace, environment=prompt.environment
    ) as shown:
        yield shown


def holds(out: Path, said: bytes) -> bool:
    return out.exists() and said in out.read_bytes()


@pytest.mark.parametrize("more", [[], ["--timeout", "600"]], ids=["the short way", "the long way"])
def test_a_command_goes_on_where_its_terminal_has_gone(prompt: Prompt, tmp_path: Path, more: list[str]) -> None:
    prompt.run("true")
    script = "cat; mkdir /tmp/begun; while ! test -e /tmp/go; do sleep 0.01; done; echo the end; exit 3"
    out = tmp_path / "out"
    with nohup(prompt, out, "exec", *more, "--", "sh", "-c", script) as shown:
        wait_until(lambda: prompt.run("test", "-d", "/tmp/begun", code=None).returncode == 0, "the beginning")
        shown.close()
        os.kill(shown.process.pid, signal.SIGHUP)
        prompt.sh("touch /tmp/go")
        assert shown.process.wait(timeout=120) == 3
    assert holds(out, b"the end\n")
    prompt.sh("rm -r /tmp/go /tmp/begun")


def test_a_port_and_a_follower_go_on_where_their_terminal_has_gone(prompt: Prompt, tmp_path: Path) -> None:
    script = (
        "import http.server as h; print('begun', flush=True)\n"
        "class Once(h.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_response(204); self.end_headers()\n"
        "h.HTTPServer(('127.0.0.1', 8642), Once).handle_request()"
    )
    job = prompt("exec", "-d", "-q", "--", "python3", "-c", script).stdout.decode().strip()
    out, followed = tmp_path / "out", tmp_path / "followed"
    with nohup(prompt, out, "port", "8642") as port, nohup(prompt, followed, "attach", job) as follower:
        wait_until(lambda: holds(out, b"127.0.0.1:") and holds(followed, b"begun\n"), "both have begun")
        for each in (port, follower):
            each.close()
            os.kill(each.process.pid, signal.SIGHUP)
        number = int(out.read_text().split("127.0.0.1:")[1].split()[0])
        with socket.create_connection(("127.0.0.1", number)) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.0 204"
        assert follower.process.wait(timeout=120) == 0
        port.process.terminate()
        assert port.process.wait(timeout=120) == 0


def test_a_shell_without_anybody_ends(prompt: Prompt, tmp_path: Path) -> None:
    with nohup(prompt, tmp_path / "out", "shell", "-q") as shown:
        assert shown.process.wait(timeout=120) == 0
    assert (tmp_path / "out").read_bytes().replace(b"nohup: ignoring input\n", b"") == b""
