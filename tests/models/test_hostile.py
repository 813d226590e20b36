"""Providers that mean no good, or can't help it: they never get a key, a hold of memory, or a request that never ends."""

from __future__ import annotations

import contextlib
import gzip
import socket
import traceback

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from tests.models.asking import KEY, ask, fail, model_at, replaced, request
from workbench.errors import ModelRequestError
from workbench.models import reading, wire
from workbench.models.gemini import Gemini
from workbench.models.keys import Key
from workbench.models.openai_chat import OpenAIChat
from workbench.models.wire import Endpoint
from workbench.testing import StubModelServer, StubReply

pytestmark = pytest.mark.anyio

PIECE = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'


@pytest.mark.parametrize(
    "body",
    [PIECE * 100_000, b"data: " + b"x" * (4 << 20), b" " * (4 << 20), b'{"choices": [' + b"1," * (2 << 20)],
    ids=["endless stream", "endless line", "endless nothing", "endless body"],
)
async def test_an_answer_without_an_end_is_given_up(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_MOST_BYTES", 1 << 20)
    error = await fail(StubReply(body=body))
    assert (error.code, error.retryable) == ("incomplete_stream", False)
    assert "more than 1 MB" in error.message


async def test_what_is_packed_counts_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_MOST_BYTES", 1 << 20)
    headers = {"Content-Encoding": "gzip", "Content-Type": "text/event-stream"}
    whole = gzip.compress(PIECE + b"data: [DONE]\n\n")
    assert (await ask(StubReply(body=whole, headers=headers, piece=1))).content == "x"
    failure = gzip.compress(b'{"error": {"message": "Because."}}')
    assert "Because." in (await fail(StubReply(status=500, body=failure, headers={"Content-Encoding": "gzip"}))).message
    bomb = gzip.compress(b"data: " + bytes(8 << 20))
    assert len(bomb) < 1 << 15
    assert "no end of the reply" in (await fail(StubReply(body=bomb, headers=headers))).message


@pytest.mark.parametrize("encoding", ["gzip, gzip", "br", "deflate"])
@pytest.mark.parametrize("status", [200, 401])
async def test_a_packing_that_was_not_asked_for_is_not_opened(encoding: str, status: int) -> None:
    packed = gzip.compress(gzip.compress(PIECE))
    error = await fail(StubReply(status=status, body=packed, headers={"Content-Encoding": encoding}))
    assert error.code == ("auth" if status == 401 else "incomplete_stream")


@pytest.mark.parametrize("changes", [{"cut_after": 1}, {"hold_after": 1}, {"body": b"No. " * (1 << 20)}], ids=str)
async def test_a_failure_is_known_by_its_status_however_its_words_end(
    changes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "_ERROR_SECONDS", 0.5)
    error = await fail(StubReply(**{"status": 401, "body": b"No. ", **changes}))
    assert (error.code, error.status) == ("auth", 401)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirection_is_not_followed_and_takes_no_key_along(status: int) -> None:
    with StubModelServer() as other:
        moved = StubReply(status=status, body=b"", headers={"Location": f"{other.url}/v1/chat/completions"})
        error = await fail(moved, endpoint={"key": Key(value=KEY)})
        assert not other.requests
    assert (error.code, error.status) == ("invalid_request", status)
    assert "base URL" in str(error.hint)


@pytest.mark.parametrize(
    "headers",
    [{"X-Team": f"a\r\nX-Evil: {KEY}"}, {f"X-Evil: {KEY}\r\nX-Team": "a"}, {"X-Team": f"é{KEY}"}, {"": KEY}],
)
async def test_a_header_that_would_make_another_is_refused_without_being_shown(headers: dict[str, str]) -> None:
    with StubModelServer() as stub, pytest.raises(ModelRequestError) as caught:
        await model_at(stub, endpoint={"headers": headers}).generate(request())
    assert (caught.value.code, caught.value.retryable) == ("invalid_request", False)
    assert KEY not in "".join(traceback.format_exception(caught.value))
    assert not stub.requests


async def test_a_models_name_is_a_name_and_no_path() -> None:
    with StubModelServer(StubReply(text="Hi.")) as stub:
        await model_at(stub, Gemini, name="../v1/files?key=x#").generate(request())
    assert stub.requests[0].path.startswith("/v1beta/models/..%2Fv1%2Ffiles%3Fkey%3Dx%23:")


async def test_a_host_may_be_an_address_of_the_sixth_version(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    with StubModelServer(StubReply(text="Hi."), host="::1") as stub:
        assert (await model_at(stub).generate(request())).content == "Hi."


HEAD = b"HTTP/1.1 200 OK\r\n"
RAW = {
    "endless headers": HEAD + b"X: y\r\n" * (1 << 16),
    "an endless header": HEAD + b"X: " + b"y" * (1 << 20),
    "an endless size of a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * (1 << 20),
    "no HTTP at all": b"\x00\xff" * 1000,
    "less than was promised": HEAD + b"Content-Length: 1000\r\n\r\ndata: {}\n\n",
    "a length below nothing": HEAD + b"Content-Length: -1\r\n\r\n",
    "a status that doesn't exist": b"HTTP/1.1 999 Hm\r\nContent-Length: 0\r\n\r\n",
    "what isn't packed as it says": HEAD + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",
    "nothing": b"",
}


async def test_an_answer_that_breaks_http_is_a_passing_error() -> None:
    answers = iter(RAW.values())

    async def serve(client: SocketStream) -> None:
        async with client:
            await client.receive()
            with contextlib.suppress(anyio.BrokenResourceError):
                await client.send(next(answers))

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, serve)
        port = listener.extra(SocketAttribute.local_port)
        model = OpenAIChat("m", Endpoint(provider="lab", base_url=f"http://127.0.0.1:{port}"))
        for name in RAW:
            with anyio.fail_after(120), pytest.raises(ModelRequestError) as caught:
                await model.generate(request())
            assert caught.value.code in ("network", "incomplete_stream", "overloaded"), name
            assert caught.value.retryable, name
        group.cancel_scope.cancel()


async def test_deep_nesting_is_an_error_of_ours() -> None:
    deep = "[" * 100_000
    for reply in (
        StubReply(body=deep.encode()),
        StubReply(edit=replaced(deep)),
    ):
        assert (await fail(reply)).code == "incomplete_stream"


async def test_no_packing_is_asked_for_that_unpacks_without_bounds() -> None:
    with StubModelServer(StubReply(text="Hi.")) as stub:
        await model_at(stub).generate(request())
    assert stub.requests[0].headers["accept-encoding"] == "gzip"
