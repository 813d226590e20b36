"""Finding an engine, talking to it, and separating what it sends."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from pathlib import Path

import anyio
import pytest
from anyio.abc import UNIXSocketStream
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.errors import SandboxError
from workbench.sandbox.advisories import known_holes
from workbench.sandbox.attach import AttachStream
from workbench.sandbox.engine import DEFAULT_SOCKET, Engine, EngineInfo, EngineRefusedError, find_socket
from workbench.sandbox.targets import FALLBACK, target_for


def _context(directory: Path, name: str, host: str) -> None:
    (directory / "config.json").write_text(json.dumps({"currentContext": name}))
    meta = directory / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest()
    meta.mkdir(parents=True)
    (meta / "meta.json").write_text(json.dumps({"Name": name, "Endpoints": {"docker": {"Host": host}}}))


def test_docker_host_wins_over_the_context_and_the_context_over_the_usual_place(tmp_path: Path) -> None:
    _context(tmp_path, "mine", "unix:///run/user/1000/docker.sock")
    configured = {"DOCKER_CONFIG": str(tmp_path)}
    assert find_socket({**configured, "DOCKER_HOST": "unix:///else.sock"}) == "/else.sock"
    assert find_socket(configured) == "/run/user/1000/docker.sock"
    assert find_socket({**configured, "DOCKER_CONTEXT": "default"}) == DEFAULT_SOCKET
    assert find_socket({"HOME": str(tmp_path / "nobody")}) == DEFAULT_SOCKET


@pytest.mark.parametrize("host", ["npipe:////./pipe/docker", "unix://", "nothing", "http://10.0.0.1"])
def test_an_engine_in_a_place_that_cannot_be_reached_is_refused_with_a_next_step(host: str) -> None:
    with pytest.raises(SandboxError, match="can't be reached") as caught:
        find_socket({"DOCKER_HOST": host})
    assert caught.value.code == "engine_unavailable"
    assert caught.value.hint


def test_a_context_that_is_missing_or_unreadable_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="called mine"):
        find_socket({"DOCKER_CONFIG": str(tmp_path), "DOCKER_CONTEXT": "mine"})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(SandboxError, match=r"config\.json"):
        find_socket({"DOCKER_CONFIG": str(tmp_path)})


def test_no_engine_and_a_dead_one_are_unavailable(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="no such socket") as missing:
        Engine(str(tmp_path / "none.sock")).ping()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead.sock"))
    with pytest.raises(SandboxError, match="refused") as refused:
        Engine(str(tmp_path / "dead.sock")).ping()
    assert missing.value.code == refused.value.code == "engine_unavailable"
    assert missing.value.hint
    assert refused.value.hint


@pytest.mark.engine
@pytest.mark.usefixtures("engine")
def test_an_engine_tells_about_itself_and_refuses_with_its_own_words() -> None:
    engine = Engine()
    facts = engine.facts()
    assert facts.identifier
    assert facts.version
    assert facts.storage_driver
    assert facts.local
    assert engine.image("workbench-test/no-such-image") is None
    with pytest.raises(EngineRefusedError) as caught:
        engine.call("POST", "/containers/no-such-container/start")
    assert caught.value.status == 404
    assert "no-such-container" in caught.value.message


def _info(version: str, runc: str) -> EngineInfo:
    return EngineInfo(
        identifier="x", socket="/x", version=version, api_version="1.41", operating_system="", kernel="",
        storage_driver="", cgroup_version="2", cgroup_driver="", security_options=(), rootless=False,
        userns_remap=False, podman=False, unenforced=(), local=True, runc=runc, containerd="",
        runtimes=(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("runc", "holes"),
    [
        ("1.1.5+ds1", {"CVE-2024-21626", "CVE-2024-45310", "CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881",
                       "CVE-2026-41579"}),
        ("1.2.7", {"CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881", "CVE-2026-41579"}),
        ("1.2.8", {"CVE-2026-41579"}),
        ("1.3.6", set()),
        ("1.4.0-rc.2", {"CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881", "CVE-2026-41579"}),
        ("1.5.0", set()),
        ("", set()),
    ],
)  # fmt: skip
def test_published_holes_are_named_by_version_and_branch(runc: str, holes: set[str]) -> None:
    assert {hole.identifier for hole in known_holes(_info("99.0.0", runc))} == holes


@settings(max_examples=40, deadline=None)
@given(
    frames=st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=300)), max_size=20),
    cuts=st.lists(st.integers(1, 400), min_size=1, max_size=30),
)
def test_output_and_errors_are_separated_wherever_the_frames_are_cut(
    frames: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    raw = b"".join(bytes([kind, 0, 0, 0]) + len(data).to_bytes(4, "big") + data for kind, data in frames)
    expected = [b"".join(data for kind, data in frames if kind == wanted) for wanted in (1, 2)]

    async def main() -> list[bytes]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        first, rest = raw[: cuts[0]], raw[cuts[0] :]
        stream = AttachStream(await UNIXSocketStream.from_socket(ours), first)
        received = b""
        with theirs:
            for cut in (*cuts[1:], len(rest) + 1):
                theirs.sendall(rest[:cut])
                rest = rest[cut:]
            theirs.shutdown(socket.SHUT_WR)
            async for piece in stream:
                received += piece
        await stream.aclose()
        return [received, stream.stderr]

    assert anyio.run(main) == expected


@pytest.mark.parametrize(
    "path",
    ["/", "/home", "/tmp", "/etc", "/etc/nginx", "/usr", "/usr/local", "/usr/local/bin", "/usr/lib/x/y", "/lib/x",
     "/proc/x", "/dev/shm/x", "/run/user/1000/x", "/var/lib", "/var/lib/dpkg", "/var/run/x", "/opt", "/root", "/srv/a:b"],
)  # fmt: skip
def test_a_path_that_would_hide_what_images_have_is_replaced(path: str) -> None:
    assert target_for(os.fsencode(path), "workbench/python:1") == FALLBACK


@pytest.mark.parametrize(
    "path",
    ["/home/me", "/home/me/project", "/tmp/x", "/root/project", "/opt/x", "/srv/x", "/usr/src/x", "/usr/local/src/x",
     "/usr/local/mine", "/var/www", "/var/lib/jenkins/job", "/data", "/mnt/disk", "/workspace", "/srv/a, b\\ü\n"],
)  # fmt: skip
def test_any_other_path_is_itself(path: str) -> None:
    assert target_for(path.encode(), "workbench/python:1") == path


def test_in_a_foreign_image_a_top_level_directory_may_be_there_already() -> None:
    assert target_for(b"/app", "example/service:3") == FALLBACK
    assert target_for(b"/app/x", "example/service:3") == "/app/x"


def test_a_path_that_is_no_text_is_replaced() -> None:
    assert target_for(b"/srv/\xff", "workbench/python:1") == FALLBACK
