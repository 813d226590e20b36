"""`--allow-host`, `--ask-host` and `--secret`, as a person gives them, with the programs that people use."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from tests.cli.conftest import Prompt
from tests.cli.terminals import terminal
from tests.conftest import git_in
from tests.needed import need_program
from tests.sandbox.egress.conftest import tls
from tests.sandbox.egress.servers import HOST, Server, serving
from tests.waiting import wait_until

# No other test, process or run of the tests has it.
VALUE = f"sk-{os.getpid()}-0123456789abcdef"
FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).status)"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(Server()) as one:
        yield one


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web server over a directory: its place, and the directory."""
    directory = tmp_path / "served"
    directory.mkdir()

    class Here(Quiet):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(directory))  # type: ignore[arg-type]

    one = ThreadingHTTPServer((HOST, 0), Here)
    thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"{HOST}:{one.server_address[1]}", directory
    one.shutdown()
    one.server_close()
    thread.join()


def test_a_command_reaches_what_it_was_allowed_and_the_next_one_nothing(prompt: Prompt, server: Server) -> None:
    url = f"http://{server.place}/"
    prompt.run("python3", "-c", FETCH, url, code=1)
    allowed = prompt("exec", "--allow-host", server.place, "--", "python3", "-c", FETCH, url)
    assert allowed.stdout == b"200\n"
    assert b"URLError" in prompt.run("python3", "-c", FETCH, url, code=1).stderr
    assert len(server.requests) == 1


def test_the_report_for_programs_tells_of_every_request(prompt: Prompt, server: Server) -> None:
    script = f"""
import urllib.request, urllib.error
first = urllib.request.urlopen("http://{server.place}/")
try: urllib.request.urlopen("http://192.0.2.1/").read()
except urllib.error.HTTPError as error: print(error.code, flush=True); error.read()
first.read()
"""
    found = json.loads(prompt("exec", "--json", "--allow-host", server.place, "--", "python3", "-c", script).stdout)
    assert found["stdout"] == "403\n"
    events = [(event["host"], event["verdict"], event["status"]) for event in found["egress"]]
    assert events == [(HOST, "allowed", 200), ("192.0.2.1", "refused", 0)]
    assert found["egress"][0]["sent"] > 0
    assert found["egress"][0]["received"] > 0


def test_what_was_refused_is_said_with_the_way_to_allow_it(prompt: Prompt) -> None:
    result = prompt(
        "exec", "--allow-host", "example.invalid", "--", "python3", "-c", FETCH, "http://192.0.2.1/", code=1
    )
    assert b"403: 192.0.2.1:80 isn't allowed; `--allow-host 192.0.2.1` would" in result.stderr
    assert b"wasn't let to 192.0.2.1:80" in result.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["--allow-host", "https://example.com"],
        ["--allow-host", "*"],
        ["--allow-host", ""],
        ["--secret", "A=env:HOME"],
        ["--for-host", "example.com"],
        ["--secret", "A=env:NOT_SET_ANYWHERE", "--for-host", "example.com"],
        ["--secret", f"A={VALUE}", "--for-host", "example.com"],
        ["--secret", "A=env:HOME", "--for-host", "example.com", "--header", "X: {}", "--header", "Y: {}"],
        ["--secret", "A=env:HOME", "--for-host", "example.com", "--header", "X"],
        ["--secret", "A=env:HOME", "--for-host", "*.example.com"],
        ["--secret", "A=env:HOME", "--for-host", "a", "--secret", "a=env:PATH", "--for-host", "b"],
        ["--max-host-bytes", "-1"],
    ],
)
def test_wrong_use_is_an_error_before_anything_runs_and_shows_no_secret(prompt: Prompt, options: list[str]) -> None:
    result = prompt("exec", *options, "--", "touch", "ran", code=2)
    assert VALUE.encode() not in result.stdout + result.stderr
    prompt.sh("test ! -e ran")


def test_git_clones_through_the_proxy(prompt: Prompt, files: tuple[str, Path], tmp_path: Path) -> None:
    place, directory = files
    source = tmp_path / "source"
    source.mkdir()
    git = git_in(source)
    git("init", "-q", "-b", "main")
    for number in range(50):
        (source / f"file{number}").write_text(f"{number}\n" * 100)
    git("add", "-A")
    git("commit", "-q", "-m", "first")
    git("clone", "-q", "--bare", str(source), str(directory / "project.git"))
    git_in(directory / "project.git")("update-server-info")
    clone = ["git", "clone", "-q", f"http://{place}/project.git", "/tmp/project"]
    prompt("exec", "--allow-host", place, "--", *clone)
    prompt("exec", "--allow-host", f"{HOST}:1", "--", "sh", "-c", "rm -rf /tmp/project; " + " ".join(clone), code=128)


def test_pip_installs_from_an_index_through_the_proxy(prompt: Prompt, files: tuple[str, Path]) -> None:
    place, directory = files
    make_index(directory)
    index = ["--index-url", f"http://{place}/simple/", "--trusted-host", HOST]
    install = ["python3", "-m", "pip", "install", "-q", "--disable-pip-version-check", "--target", "/tmp/installed"]
    script = "import sys; sys.path.insert(0, '/tmp/installed'); import tiny_project; print(tiny_project.VALUE)"
    prompt("exec", "--allow-host", place, "--", *install, *index, "tiny-project")
    assert prompt.run("python3", "-c", script).stdout == b"42\n"


def make_index(directory: Path) -> None:
    """A package index (PEP 503) with one project of one wheel."""
    name = "tiny_project-1.0-py3-none-any.whl"
    project = directory / "simple" / "tiny-project"
    project.mkdir(parents=True)
    info = "tiny_project-1.0.dist-info"
    content = {
        "tiny_project.py": "VALUE = 42\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny-project\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*content, f"{info}/RECORD"])
    with zipfile.ZipFile(project / name, "w") as wheel:
        for path, text in {**content, f"{info}/RECORD": record}.items():
            wheel.writestr(path, text)
    digest = hashlib.sha256((project / name).read_bytes()).hexdigest()
    (project / "index.html").write_text(f'<!DOCTYPE html><a href="{name}#sha256={digest}">{name}</a>')
    (directory / "simple" / "index.html").write_text('<!DOCTYPE html><a href="tiny-project/">tiny-project</a>')


def test_a_secret_is_used_and_found_nowhere(fresh_prompt: Prompt, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    environment = {**fresh_prompt.environment, "SSL_CERT_FILE": str(tmp_path / "authority.pem"), "THE_KEY": VALUE}
    script = """
import os, urllib.request
print(urllib.request.urlopen(os.environ["WORKBENCH_API_URL"] + "/echo").read().decode())
print(os.environ)
"""
    with serving(Server(trust=tls(authority, HOST))) as secure:
        options = ["--secret", "api=env:THE_KEY", "--for-host", secure.place, "--header", "X-Key: {}"]
        result = fresh_prompt("exec", "--json", *options, "--", "python3", "-c", script, env=environment)
        assert dict(secure.requests[0][2])["X-Key"] == VALUE
    assert VALUE.encode() not in result.stdout + result.stderr
    assert json.loads(result.stdout)["egress"][0]["secret"] == "api"
    # The keeper lives on: neither its environment nor its arguments, nor those of what it started, hold it.
    assert VALUE not in subprocess.run(["ps", "axeww"], capture_output=True, text=True, check=True).stdout
    fresh_prompt("diff", "--json")
    held = [path for path in fresh_prompt.state.rglob("*") if path.is_file() and VALUE.encode() in path.read_bytes()]
    assert held == []
    assert fresh_prompt.run("env").stdout.count(b"WORKBENCH_") == 0


@pytest.mark.parametrize(("key", "status"), [(b"y", b"200"), (b"n", b"403")])
def test_somebody_at_a_terminal_is_asked_and_the_keys_go_to_the_question(
    prompt: Prompt, server: Server, key: bytes, status: bytes
) -> None:
    script = f"""
import urllib.request, urllib.error
try: print("status", urllib.request.urlopen("http://{server.place}/").status)
except urllib.error.HTTPError as error: print("status", error.code)
print("typed", repr(input()))
"""
    argv = [os.fsdecode(word) for word in prompt.argv("exec", "--ask-host", "--", "python3", "-c", script)]
    with terminal(argv, cwd=prompt.workspace, environment=prompt.environment) as screen:
        screen.expect(b"wants to reach " + server.place.encode())
        screen.type(key)
        screen.expect(b"status " + status)
        screen.type(b"words\r")
        screen.expect(b"typed 'words'")
        assert screen.wait() == 0


def test_without_a_terminal_nobody_is_asked_and_it_is_refused(prompt: Prompt, server: Server) -> None:
    argv = ["exec", "--ask-host", "--", "python3", "-c", FETCH, f"http://{server.place}/"]
    result = prompt(*argv, code=1, start_new_session=True)
    assert b"no terminal to ask at" in result.stderr
    assert server.requests == []


def test_piped_input_leaves_the_question_to_the_terminal(prompt: Prompt, server: Server) -> None:
    command = [os.fsdecode(word) for word in prompt.argv("exec", "--ask-host", "--", "sh", "-c", '"$@"; cat', "sh")]
    piped = ["sh", "-c", 'echo piped | "$@"', "sh", *command, "python3", "-c", FETCH, f"http://{server.place}/"]
    with terminal(piped, cwd=prompt.workspace, environment=prompt.environment) as screen:
        screen.expect(b"wants to reach")
        screen.type(b"y\r")
        screen.expect(b"200")
        screen.expect(b"piped")
        assert screen.wait() == 0


def test_a_command_in_the_background_keeps_what_it_was_allowed_and_takes_it_along(
    prompt: Prompt, server: Server
) -> None:
    script = f"""
import os, time, urllib.request
open("environment", "w").write(os.environ["http_proxy"])
while not os.path.exists("go"): time.sleep(0.02)
open("status", "w").write(str(urllib.request.urlopen("http://{server.place}/").status))
"""
    prompt("exec", "-d", "--allow-host", server.place, "--", "python3", "-c", script)
    wait_until(lambda: prompt.sh("cat environment", code=None).stdout, "it runs")
    assert server.requests == []
    prompt.sh("touch go")
    wait_until(lambda: prompt.sh("cat status", code=None).stdout == b"200", "it has reached the host")
    wait_until(lambda: _all_over(prompt), "it has ended")
    left = 'http_proxy=$(cat environment) python3 -c "$1" "$2"'
    result = prompt("exec", "--", "sh", "-c", left, "sh", FETCH, f"http://{server.place}/", code=1)
    assert b"Connection refused" in result.stderr


def _all_over(prompt: Prompt) -> bool:
    return all(job["state"] != "running" for job in json.loads(prompt("ps", "--json").stdout)["jobs"])


def test_nobody_is_asked_for_a_command_in_the_background(prompt: Prompt, server: Server) -> None:
    name = prompt("exec", "-d", "--ask-host", "--", "python3", "-c", FETCH, f"http://{server.place}/").stdout.strip()
    logs = prompt("logs", "-f", os.fsdecode(name), code=None)
    assert b"403" in logs.stdout + logs.stderr
    assert server.requests == []


def test_git_clones_by_https_through_the_proxy_and_checks_the_certificate(
    prompt: Prompt, files: tuple[str, Path], tmp_path: Path
) -> None:
    _, directory = files
    source = tmp_path / "source"
    source.mkdir()
    git = git_in(source)
    git("init", "-q", "-b", "main")
    (source / "file").write_text("by https\n")
    git("add", "-A")
    git("commit", "-q", "-m", "first")
    git("clone", "-q", "--bare", str(source), str(directory / "project.git"))
    git_in(directory / "project.git")("update-server-info")
    authority = trustme.CA()
    (prompt.workspace / "authority.pem").write_bytes(authority.cert_pem.bytes())
    one = ThreadingHTTPServer((HOST, 0), partial(Quiet, directory=str(directory)))
    one.socket = tls(authority, HOST).wrap_socket(one.socket, server_side=True)
    with serving(one):
        place = f"{HOST}:{one.server_address[1]}"
        clone = f"rm -rf /tmp/https; git clone -q https://{place}/project.git /tmp/https && cat /tmp/https/file"
        trusting = ("-e", "GIT_SSL_CAINFO=authority.pem")
        assert prompt("exec", *trusting, "--allow-host", place, "--", "sh", "-c", clone).stdout == b"by https\n"
        assert b"certificate" in prompt("exec", "--allow-host", place, "--", "sh", "-c", clone, code=128).stderr
        assert (
            b"403" in prompt("exec", *trusting, "--allow-host", f"{HOST}:1", "--", "sh", "-c", clone, code=128).stderr
        )


def test_npm_installs_from_a_registry_through_the_proxy(prompt: Prompt, files: tuple[str, Path]) -> None:
    need_program("npm")
    need_program("bwrap")
    place, directory = files
    content = {"package.json": b'{"name": "tiny", "version": "1.0.0"}', "index.js": b"module.exports = 42\n"}
    with tarfile.open(directory / "tiny-1.0.0.tgz", "w:gz") as archive:
        for name, data in content.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    digest = hashlib.sha1((directory / "tiny-1.0.0.tgz").read_bytes(), usedforsecurity=False).hexdigest()
    dist = {"tarball": f"http://{place}/tiny-1.0.0.tgz", "shasum": digest}
    version = {"name": "tiny", "version": "1.0.0", "dist": dist}
    document = {"name": "tiny", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    (directory / "tiny").write_text(json.dumps(document))
    install = f"npm install --silent --no-audit --no-fund --registry http://{place}/ --prefix /tmp/npm tiny"
    # Its programs are this machine's own.
    where = ("--backend", "namespace", "--session", "npm", "-q")
    script = f"{install} && node -p \"require('/tmp/npm/node_modules/tiny')\""
    assert prompt("exec", *where, "--allow-host", place, "--", "sh", "-c", script).stdout.endswith(b"42\n")
    refused = f"rm -rf /tmp/npm ~/.npm; {install} --fetch-retries 0"
    assert prompt("exec", *where, "--allow-host", f"{HOST}:1", "--", "sh", "-c", refused, code=None).returncode != 0
    prompt("stop", "--session", "npm")


def test_apt_fetches_from_a_repository_through_the_proxy(
    prompt: Prompt, files: tuple[str, Path], tmp_path: Path
) -> None:
    need_program("dpkg-deb")
    place, directory = files
    control = tmp_path / "tiny" / "DEBIAN"
    control.mkdir(parents=True)
    fields = "Package: tiny\nVersion: 1.0\nArchitecture: all\nMaintainer: A <a@example.com>\nDescription: tiny\n"
    (control / "control").write_text(fields)
    subprocess.run(["dpkg-deb", "--build", control.parent, directory / "tiny.deb"], check=True, capture_output=True)
    data = (directory / "tiny.deb").read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    (directory / "Packages").write_text(f"{fields}Filename: ./tiny.deb\nSize: {len(data)}\nSHA256: {digest}\n")
    lines = (
        "set -e; rm -rf /tmp/apt; mkdir -p /tmp/apt/lists/partial /tmp/apt/cache/archives/partial /tmp/apt/parts; cd /tmp/apt",
        f"echo 'deb [trusted=yes] http://{place}/ ./' >sources.list; touch status",
        "o='-qq -o Dir::Etc::SourceList=/tmp/apt/sources.list -o Dir::Etc::SourceParts=/tmp/apt/parts'",
        'o="$o -o Dir::State::Lists=/tmp/apt/lists -o Dir::State::Status=/tmp/apt/status -o Dir::Cache=/tmp/apt/cache"',
        'o="$o -o Debug::NoLocking=true -o Acquire::Retries=0 -o APT::Sandbox::User=root"',
        "apt-get $o update; apt-get $o download tiny; ls *.deb",
    )
    fetch = ("sh", "-c", "\n".join(lines))
    assert prompt("exec", "-q", "--allow-host", place, "--", *fetch).stdout.endswith(b"tiny_1.0_all.deb\n")
    refused = prompt("exec", "-q", "--allow-host", f"{HOST}:1", "--", *fetch, code=None)
    assert refused.returncode != 0
    assert b"403" in refused.stdout + refused.stderr
