"""What is written down of what left: bounded, and readable after a crash."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from workbench.errors import SandboxError
from workbench.sandbox import frames
from workbench.sandbox.egress.attempt import LOG, Attempt, EgressLog
from workbench.sandbox.egress.tunnel import TunnelStream


def test_the_log_keeps_the_last_and_its_size_is_bounded(tmp_path: Path) -> None:
    log = EgressLog(str(tmp_path))
    assert log.events() == []
    for number in range(3):
        log.add(Attempt("proxy", host=f"host{number}.example", port=443).event())
    assert [event.host for event in log.events()] == ["host0.example", "host1.example", "host2.example"]
    for number in range(30_000):
        log.add(Attempt("proxy", host=f"n{number}.example", reason="x" * 200).event())
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 9 << 20
    kept = [event.host for event in log.events()]
    assert kept[-1] == "n29999.example"
    assert len(kept) > 5000
    assert {path.name for path in tmp_path.iterdir()} <= {LOG, f"{LOG}.1"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


def test_attempts_are_told_as_they_began_however_they_ended(tmp_path: Path) -> None:
    log = EgressLog(str(tmp_path))
    first, second = Attempt("proxy", host="a.example"), Attempt("proxy", host="b.example")
    log.add(second.event())
    log.add(first.event())
    assert [event.host for event in log.events()] == ["a.example", "b.example"]


def test_a_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    log = EgressLog(str(tmp_path))
    log.add(Attempt("proxy", host="a.example").event())
    with open(tmp_path / LOG, "ab") as file:
        file.write(b'{"kind": "pro\n\xff\n[]\n')
    log.add(Attempt("proxy", host="b.example").event())
    assert [event.host for event in log.events()] == ["a.example", "b.example"]


def test_a_sandbox_that_sends_more_through_a_tunnel_than_it_may_is_lost() -> None:
    stream = TunnelStream(lambda kind, payload: None)
    for _ in range(4):
        stream.take(frames.STDOUT, b"x" * frames.CHUNK)
    with pytest.raises(SandboxError) as raised:
        stream.take(frames.STDOUT, b"x")
    assert raised.value.code == "sandbox_lost"
    with pytest.raises(SandboxError):
        TunnelStream(lambda kind, payload: None).take(frames.CREDIT, b"xyz")


@pytest.mark.anyio
async def test_a_tunnel_sends_as_it_is_granted_and_grants_as_it_is_read() -> None:
    told: list[tuple[bytes, bytes]] = []
    stream = TunnelStream(lambda kind, payload: told.append((kind, payload)))
    async with anyio.create_task_group() as group:
        group.start_soon(stream.send, b"x" * (frames.WINDOW + 10))
        await anyio.wait_all_tasks_blocked()
        assert sum(len(payload) for _, payload in told) == frames.WINDOW
        stream.take(frames.CREDIT, frames.COUNT.pack(10))
        await anyio.wait_all_tasks_blocked()
        assert sum(len(payload) for _, payload in told) == frames.WINDOW + 10
    told.clear()
    stream.take(frames.STDOUT, b"y" * frames.CHUNK)
    assert await stream.receive() == b"y" * 65536
    assert told == [(frames.CREDIT, frames.COUNT.pack(frames.CHUNK))]
    stream.take(frames.STDOUT, b"")
    with pytest.raises(anyio.EndOfStream):
        await stream.receive()
    # One way has ended, the other not.
    stream.take(frames.CREDIT, frames.COUNT.pack(1))
    await stream.send(b"z")
    stream.take(frames.RESULT, b"{}")
    with pytest.raises(anyio.BrokenResourceError):
        await stream.send(b"z")
