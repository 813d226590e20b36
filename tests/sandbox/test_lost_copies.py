"""Keepers that are killed, and layers that vanish: what an engine has of its own isn't lost, and nothing of it stays."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench import Bench, InPhases
from tests.conftest import Cli
from tests.sandbox.engine_relay import engine_relay
from tests.sandbox.support import Inside, Layers, backend_of, left_of, running, spec
from tests.trees import make_tree, snapshot
from tests.waiting import wait_until
from workbench.errors import SandboxError
from workbench.live import LiveOverlay
from workbench.sandbox import docker, images
from workbench.sandbox.copies import Copies, rescue
from workbench.sandbox.engine import Engine
from workbench.sandbox.runtime import find_socket
from workbench.vfs.storage import Kind
from workbench.workspace import Workspace

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "w"
    path.mkdir()
    make_tree(path)
    return path


@pytest.fixture(params=["copied", "plain"])
def sharing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def bench(state: Path, workspace: Path, sharing: str, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("WORKBENCH_SHARING", sharing)
    return Bench(workspace)


def test_what_a_killed_keeper_left_in_the_engine_is_read_out(bench: Bench) -> None:
    agent = InPhases(bench, "echo kept > kept; rm README.md; phase written")
    agent.at("written")
    pid, name = bench.running()
    os.kill(pid, signal.SIGKILL)
    assert b"sandbox_lost" in agent.wait()
    socket = find_socket(bench.overlay)
    assert socket is not None
    assert os.path.exists(socket)
    assert bench.told() == {b"kept": "added", b"README.md": "deleted"}
    assert left_of(name) == []
    assert find_socket(bench.overlay) is None
    assert not os.path.exists(os.path.dirname(socket))


_QUESTIONS: dict[str, Callable[[LiveOverlay], tuple[bool, ...]]] = {
    "list": lambda view: (b"list" in view.list(b"made"), b"list" in view.list(b"gone")),
    "entries": lambda view: tuple((b"entries", Kind.FILE) in view.entries(each) for each in (b"made", b"gone")),
    "stat": lambda view: (view.stat(b"made/stat").size == 1, view.exists(b"gone/stat")),
    "kind": lambda view: (view.kind(b"made/kind") is Kind.FILE, view.kind(b"gone/kind") is not None),
    "exists": lambda view: (view.exists(b"made/exists"), view.exists(b"gone/exists")),
    "xattrs": lambda view: (view.xattrs(b"made/xattrs") == {}, False),
    "glob": lambda view: (view.glob(b"made/gl*") != [], view.glob(b"gone/gl*") != []),
    "find": lambda view: (b"made/find" in view.find(), b"gone/find" in view.find()),
    "read": lambda view: (view.read_bytes(b"made/read") == b"\n", False),
}


@pytest.mark.parametrize("sharing", ["mounted", "copied", "plain"])
def test_what_a_running_command_has_just_written_is_told_whatever_is_asked(bench: Bench, workspace: Path) -> None:
    for directory in ("made", "gone"):
        (workspace / directory).mkdir()
    for what in _QUESTIONS:
        (workspace / "gone" / what).touch()
    # A change for each question, since the answer to one may bring that to another along.
    agent = InPhases(bench, "".join(f"echo > made/{what}; rm gone/{what}; phase {what}\n" for what in _QUESTIONS))
    for what, question in _QUESTIONS.items():
        agent.at(what)

        async def ask(opened: Workspace, question: Callable[[LiveOverlay], tuple[bool, ...]] = question) -> object:
            return question(opened.view)

        assert bench.do(ask) == (True, False), what
        agent.go_on()
    agent.end()


@pytest.mark.parametrize("sharing", ["mounted", "copied", "plain"])
def test_whenever_a_keeper_is_killed_the_next_command_loses_nothing_and_leaves_nothing(
    state: Path, workspace: Path, sharing: str
) -> None:
    bench = Bench(workspace, sharing=sharing)
    with engine_relay() as relay, pytest.MonkeyPatch.context() as environment:
        environment.setenv("DOCKER_HOST", relay.host)
        bench.sh("echo kept > kept")
        at_start, relay.requests = relay.requests, []
        bench.stop()
        at_end, relay.requests = relay.requests, []
        wanted = {b"kept": "added"}
        for step in at_start:
            relay.kill_at(step)
            with pytest.raises(SandboxError):
                bench.sh("echo lost > lost")
            assert relay.killed.is_set(), step
            relay.until_quiet()
            assert bench.told() == wanted, step
            assert [left_of(name) for name in relay.names if left_of(name)] == [], step
        for number, step in enumerate(at_end):
            bench.sh(f"echo kept > kept-{number}")
            wanted[b"kept-%d" % number] = "added"
            relay.kill_at(step)
            with contextlib.suppress(SandboxError):
                bench.stop()
            assert relay.killed.is_set(), step
            relay.until_quiet()
            assert bench.told() == wanted, step
            assert [left_of(name) for name in relay.names if left_of(name)] == [], step


def test_whenever_who_starts_a_sandbox_is_killed_the_next_command_works_and_leaves_nothing(
    cli: Cli, state: Path
) -> None:
    """A sandbox over our own files is started by whoever wants it, and then the keeper's."""
    with engine_relay() as relay, pytest.MonkeyPatch.context() as environment:
        environment.setenv("DOCKER_HOST", relay.host)
        # What works here is found out once.
        cli.sh("echo kept > kept")
        cli("stop")
        relay.requests = []
        cli.sh("true")
        at_start = [step for step in relay.requests if "/start" in step or "/create" in step or "attach" in step]
        assert len(at_start) >= 5
        for step in at_start:
            cli("stop")
            relay.kill_at(step)
            cli.sh("echo lost > lost", code=None)
            assert relay.killed.is_set(), step
            relay.until_quiet()
            assert cli.sh("cat kept; rm -f lost").stdout == b"kept\n", step
            # That of the next command is there, and no other.
            assert sum(bool(left_of(name)) for name in relay.names) == 1, step
        cli("stop")
        assert [left_of(name) for name in relay.names if left_of(name)] == []


def test_a_keeper_whose_overlay_was_removed_ends_and_leaves_nothing(bench: Bench, state: Path) -> None:
    bench.sh("echo new > new")
    pid, name = bench.running()
    shutil.rmtree(state)
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "the keeper has ended")
    assert left_of(name) == []


@pytest.mark.anyio
async def test_what_cannot_be_read_out_stays_in_the_engine_until_it_can(sharing: str, tmp_path: Path) -> None:
    layers = Layers(tmp_path / "layers", owner=(os.getuid(), os.getgid()))
    what = spec("docker", layers.mount, sharing=sharing)
    backend = backend_of(what)
    inside = Inside(backend, await backend.start(lambda line: None))
    assert await inside.line() == "here"
    await inside.sh("echo new > /workspace/new")
    layers.upper.rename(tmp_path / "aside")
    layers.upper.write_text("no directory")
    with pytest.raises(SandboxError):
        await backend.stop()
    layers.upper.unlink()
    (tmp_path / "aside").rename(layers.upper)
    await backend.stop()
    assert (layers.upper / "new").read_text() == "new\n"
    assert left_of(backend.name) == []


def test_a_volume_that_the_engine_made_for_a_container_without_one_goes_with_it() -> None:
    engine = Engine()
    name = f"workbench-{secrets.token_hex(8)}"
    body = {
        "Image": images.available("", print, engine=engine),
        "Cmd": ["true"],
        "Labels": {docker.NAME_LABEL: name},
        "HostConfig": {"Binds": [f"{name}-upper-0:/layers:rw,nocopy"]},
    }
    engine.call("POST", "/containers/create", {"name": f"{name}-copier"}, body)
    assert len(left_of(name)) == 2
    docker.remove(engine, name)
    assert left_of(name) == []


def test_a_copy_that_was_never_complete_is_dropped_and_nothing_of_it_read_out(bench: Bench, sharing: str) -> None:
    bench.sh("echo kept > kept")
    _, name = bench.running()
    bench.stop()
    upper = Path(bench.overlay, "upper")
    before = snapshot(upper)
    engine = Engine()
    label = {docker.NAME_LABEL: name}
    mount = replace(Layers(upper.parent / "other").mount, upper=str(upper))
    copies = Copies(
        engine, name, images.available("", print, engine=engine), label, (mount,), merged=sharing == "plain"
    )
    copies._make_volumes()
    rescue(
        engine,
        name,
        f"{docker.NAME_LABEL}={name}",
        lambda: images.available("", print, engine=engine),
        str(upper.parent),
    )
    assert snapshot(upper) == before
    docker.remove(engine, name)
    assert left_of(name) == []


@pytest.mark.anyio
async def test_a_container_that_reads_and_was_lost_is_replaced(sharing: str, tmp_path: Path) -> None:
    layers = Layers(tmp_path / "layers", owner=(os.getuid(), os.getgid()))
    async with running(spec("docker", layers.mount, sharing=sharing)) as inside:
        await inside.sh("echo new > /workspace/new; rm /workspace/old")
        Engine().remove_container(f"{inside.backend.name}-copier")
        with pytest.raises(SandboxError):
            await inside.backend.read_out()
    assert (layers.upper / "new").read_text() == "new\n"
    assert (layers.upper / "old").is_char_device()
    assert left_of(inside.backend.name) == []
