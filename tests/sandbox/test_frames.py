"""What the host makes of a supervisor that was taken over: an error, never a crash, a hang or a full memory."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import pytest
from anyio.streams.stapled import StapledByteStream, StapledObjectStream
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.errors import CommandError, OptionsError, SandboxError
from workbench.protocol.commands import Command
from workbench.sandbox import facts, frames
from workbench.sandbox.connection import SupervisorConnection
from workbench.sandbox.exchange import Exchange

RESULT = {"exit_code": 0, "signal": "", "timed_out": False, "duration_ms": 1, "omitted": [0, 0], "stopped": 0}


@dataclass
class Far:
    """The other end of a connection."""

    connection: SupervisorConnection
    stream: StapledObjectStream[bytes]

    async def sends(self, kind: bytes, number: int, payload: bytes = b"") -> None:
        await self.stream.send(frames.HEADER.pack(len(payload), kind, number) + payload)

    async def gets(self) -> tuple[bytes, int, bytes]:
        [frame] = frames.FrameDecoder().feed(await self.stream.receive())
        return frame


@asynccontextmanager
async def connected() -> AsyncIterator[Far]:
    there = anyio.create_memory_object_stream[bytes](math.inf)
    back = anyio.create_memory_object_stream[bytes](math.inf)
    # A byte stream over messages: what is received is never more than was asked for in these tests.
    near = StapledByteStream(there[0], back[1])  # type: ignore[arg-type]
    near.receive = lambda max_bytes=65536: back[1].receive()  # type: ignore[method-assign]
    far = StapledObjectStream(back[0], there[1])
    async with far, SupervisorConnection(near) as connection:
        with anyio.fail_after(120):
            yield Far(connection, far)


HOSTILE = {
    "an oversized frame": struct.pack("!IcI", 0xFFFFFFFF, b"O", 1),
    "an oversized answer": frames.HEADER.pack(1 << 20, b"X", 1) + b"[" * (1 << 20),
    "no JSON": frames.encode(b"X", 1, b"\xff\xfe"),
    "deep JSON": frames.encode(b"X", 1, b"[" * 200_000),
    "a number of a million digits": frames.encode(b"X", 1, b'{"exit_code": ' + b"9" * 200_000 + b"}"),
    "a list for an object": frames.encode(b"X", 1, b"[]"),
    "a text for a number": frames.encode_json(b"X", 1, {**RESULT, "exit_code": "0"}),
    "a truth value for a number": frames.encode_json(b"X", 1, {**RESULT, "exit_code": True}),
    "an exit code out of range": frames.encode_json(b"X", 1, {**RESULT, "exit_code": 256}),
    "a negative count": frames.encode_json(b"X", 1, {**RESULT, "stopped": -1}),
    "a number for a truth value": frames.encode_json(b"X", 1, {**RESULT, "timed_out": 1}),
    "a number for a text": frames.encode_json(b"X", 1, {**RESULT, "signal": 9}),
    "many omissions": frames.encode_json(b"X", 1, {**RESULT, "omitted": [0] * 9}),
    "odd omissions": frames.encode_json(b"X", 1, {**RESULT, "omitted": ["x"]}),
    "malformed credit": frames.encode(b"C", 1, b"xx"),
    "more than the window": frames.encode(b"O", 1, b"x" * (frames.WINDOW + 1)),
    "more than the window, in pieces": frames.encode(b"O", 1, b"x") * 9 + frames.encode(b"E", 1, b"x" * frames.WINDOW),
    "more than the limit": frames.encode(b"O", 1, b"x" * 101) + frames.encode_json(b"X", 1, RESULT),
    "the end": b"",
    "a failure of everything": frames.encode_json(b"!", 0, {"code": "sandbox_lost", "message": "m", "errno": 0}),
}


@pytest.mark.anyio
@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
async def test_what_breaks_a_rule_loses_the_sandbox(data: bytes) -> None:
    async with connected() as far:
        job = await far.connection.spawn(Command(("x",), output_limit=100))
        assert (await far.gets())[0] == frames.RUN
        await (far.stream.send(data) if data else far.stream.aclose())
        with pytest.raises(SandboxError) as caught:
            await job.wait()
        assert caught.value.code == "sandbox_lost"


@pytest.mark.anyio
async def test_what_is_not_known_is_ignored() -> None:
    async with connected() as far:
        job = await far.connection.spawn(Command(("x",)))
        await far.gets()
        await far.sends(b"?", 1, b"new")
        await far.sends(b"O", 77, b"x" * (1 << 20))
        await far.sends(b"X", 77, b"no JSON")
        await far.stream.send(frames.encode_json(b"X", 1, {**RESULT, "exit_code": 5, "new": [1, {}]}))
        assert (await job.wait()).exit_code == 5


def test_granted_credit_never_exceeds_the_window() -> None:
    exchange = Exchange(1)
    for _ in range(9):
        exchange.grant(b"\xff" * 4)
    assert exchange.input_credit == frames.WINDOW


@pytest.mark.anyio
async def test_messages_from_inside_are_made_printable_and_short() -> None:
    async with connected() as far:
        job = await far.connection.spawn(Command(("x",)))
        await far.gets()
        content = {"code": "command_not_found", "message": "no \x1b[31m such\n" + "x" * 99999, "errno": 2}
        await far.stream.send(frames.encode_json(b"!", 1, content))
        with pytest.raises(CommandError) as caught:
            await job.wait()
        assert caught.value.message.startswith("No \\x1b[31m such\\nxxx")
        assert len(caught.value.message) < 1100


@pytest.mark.anyio
async def test_codes_from_inside_are_only_those_of_a_sandbox() -> None:
    assert frames.failure(json.dumps({"code": "digest_changed", "message": "m"}).encode()).code == "sandbox_failed"  # type: ignore[union-attr]
    error = frames.failure(json.dumps({"code": "os_error", "message": "m", "errno": 2}).encode(), "path")
    assert isinstance(error, FileNotFoundError)
    assert error.filename == "path"


def test_a_request_that_no_frame_holds_is_refused() -> None:
    with pytest.raises(OptionsError):
        frames.encode(b"R", 1, b"x" * (frames.MAX_PAYLOAD + 1))


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=1), st.integers(0, 2**32 - 1), st.binary(max_size=99))))
@settings(max_examples=50, deadline=None)
def test_frames_survive_any_cut(sent: list[tuple[bytes, int, bytes]]) -> None:
    data = b"".join(frames.encode(*frame) for frame in sent)
    for step in (1, 7, len(data) + 1):
        decoder = frames.FrameDecoder()
        got = [frame for at in range(0, len(data), step) for frame in decoder.feed(data[at : at + step])]
        assert got == sent


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=9,
)
_answers = st.dictionaries(st.sampled_from([*RESULT, "out_of_memory", "ended_by", "mounts", "limits", "pid"]), _json)


@given(st.binary(max_size=99) | _answers.map(lambda content: json.dumps(content).encode()))
@settings(max_examples=200, deadline=None)
def test_an_answer_of_any_shape_is_an_answer_or_a_loss(payload: bytes) -> None:
    readers = (
        lambda: frames.command_result(frames.parse(payload), b"", b""),
        lambda: frames.failure(payload),
        lambda: facts.Hello.of(frames.parse(payload)),
        lambda: facts.FileFacts.of(frames.parse(payload)),
        lambda: facts.Counters.of(frames.parse(payload)),
    )
    for read in readers:
        try:
            read()
        except SandboxError as error:
            assert error.code == "sandbox_lost"  # noqa: PT017
