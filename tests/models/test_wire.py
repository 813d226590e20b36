"""One wire for every format: what networks and gateways do to an answer, and that a key is never shown."""

from __future__ import annotations

import gc
import json
import logging
import os
import socket
import traceback
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import trio.testing

from tests.models.asking import FORMATS, KEY, Deltas, ask, fail, fail_each, model_at, replaced, request
from tests.waiting import until
from workbench.errors import ModelRequestError, OptionsError
from workbench.models.adapter import WireModel
from workbench.models.anthropic import Anthropic
from workbench.models.base import collect
from workbench.models.gemini import Gemini
from workbench.models.keys import Key
from workbench.models.openai_chat import OpenAIChat
from workbench.models.wire import Endpoint, Timeouts
from workbench.protocol.messages import TokenDelta
from workbench.testing import StubCall, StubModelServer, StubReply
from workbench.testing.model_formats import Event

pytestmark = pytest.mark.anyio

every_format = pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.__name__)
FULL = StubReply(text="Grüße, 世界 😀.", reasoning="Hm…", signature="c2ln", calls=[StubCall("add", {"a": 1})])


def varied(**changes: Any) -> StubReply:
    fields = {name: getattr(FULL, name) for name in ("text", "reasoning", "signature", "calls")}
    return StubReply(**{**fields, **changes})


@every_format
async def test_the_same_reply_comes_out_however_it_is_cut(kind: type[WireModel]) -> None:
    ways: list[dict[str, Any]] = [
        {},
        {"piece": 1},
        {"piece": 7},
        {"newline": "\r\n"},
        {"newline": "\r"},
        {"comments": True},
        {"comments": True, "piece": 1},
    ]
    with StubModelServer(*(varied(**changes) for changes in ways)) as stub:
        async with model_at(stub, kind) as model:
            for changes in ways:
                response = await model.generate(request())
                assert (response.content, response.reasoning) == (FULL.text, FULL.reasoning), changes
                assert [call.arguments for call in response.tool_calls] == [{"a": 1}], changes
                assert response.usage.output_tokens == 5, changes


@every_format
async def test_a_connection_that_breaks_in_the_middle_is_an_error(kind: type[WireModel]) -> None:
    error = await fail(varied(cut_after=2), kind)
    assert (error.code, error.retryable, error.provider) == ("incomplete_stream", True, "lab")


@every_format
async def test_bytes_that_end_before_the_reply_does_are_an_error(kind: type[WireModel]) -> None:
    error = await fail(varied(end_after=3), kind)
    assert (error.code, error.retryable) == ("incomplete_stream", True)


@every_format
async def test_an_empty_answer_is_an_error(kind: type[WireModel]) -> None:
    assert (await fail(StubReply(body=b""), kind)).code == "incomplete_stream"


@every_format
async def test_an_error_in_an_answer_of_status_200_is_an_error(kind: type[WireModel]) -> None:
    body = json.dumps({"error": {"message": "Slow down", "code": 429, "type": "rate_limit_error"}}).encode()
    error = await fail(StubReply(body=body), kind)
    assert (error.code, error.status, error.retryable) == ("rate_limited", 429, True)
    assert "Slow down" in error.message


@every_format
async def test_a_text_in_an_answer_of_status_200_is_a_passing_error(kind: type[WireModel]) -> None:
    error = await fail(StubReply(body=b"upstream connect error", headers={"Content-Type": "text/plain"}), kind)
    assert (error.code, error.retryable) == ("incomplete_stream", True)
    assert "upstream connect error" in error.message


@every_format
async def test_a_page_instead_of_a_reply_points_at_the_base_url(kind: type[WireModel]) -> None:
    error = await fail(StubReply(body=b"<html>Sign in</html>", headers={"Content-Type": "text/html"}), kind)
    assert (error.code, error.retryable) == ("invalid_request", False)
    assert error.hint is not None
    assert "base URL" in error.hint


@every_format
async def test_data_that_is_no_json_is_a_passing_error(kind: type[WireModel]) -> None:
    error = await fail(StubReply(edit=replaced("{half")), kind)
    assert (error.code, error.retryable) == ("incomplete_stream", True)


@every_format
async def test_json_of_another_shape_is_an_error_of_ours(kind: type[WireModel]) -> None:
    bodies = (b"[]", b"7", b'"x"', b"null", b"{}", b"[[]]", b'{"choices": 7, "content": 7, "output": 7}')
    for error in await fail_each(*(StubReply(body=body) for body in bodies), kind=kind):
        assert error.code in ("incomplete_stream", "overloaded"), error.message


@every_format
async def test_what_comes_behind_the_end_is_nobodys_business(kind: type[WireModel]) -> None:
    def closed(planned: list[Event]) -> list[Event]:
        return [*planned, ("", "[DONE]"), ("", "{half")] if kind is not Gemini else planned

    assert (await ask(varied(edit=closed), kind)).content == FULL.text


@every_format
async def test_a_failure_in_the_form_of_a_stream_is_read_as_one(kind: type[WireModel]) -> None:
    body = b'data: {"error": {"message": "Because."}}\n\ndata: [DONE]\n\n'
    error = await fail(StubReply(status=500, body=body, headers={"Content-Type": "text/event-stream"}), kind)
    assert error.message == "lab answered with status 500: Because."


async def test_a_whole_body_is_taken_where_a_stream_was_asked_for() -> None:
    body = {"choices": [{"message": {"content": "Hi."}, "finish_reason": "stop"}]}
    assert (await ask(StubReply(body=json.dumps(body).encode()))).content == "Hi."


async def test_what_looks_like_a_stream_is_one_whatever_the_header_says() -> None:
    raw = b': x\n\ndata: {"choices":[{"delta":{"content":"Hi."},"finish_reason":"stop"}]}\n\n'
    assert (await ask(StubReply(body=raw, headers={"Content-Type": "application/json"}))).content == "Hi."


@every_format
async def test_a_slow_first_byte_is_waited_for(kind: type[WireModel]) -> None:
    deltas = Deltas()
    with StubModelServer(varied(hold_after=0)) as stub:
        async with anyio.create_task_group() as group:
            group.start_soon(model_at(stub, kind).generate, request(), deltas)
            await until(lambda: stub.requests)
            assert not deltas
            stub.release()
    assert deltas.text() == FULL.text


@every_format
async def test_cancelling_closes_the_connection(kind: type[WireModel]) -> None:
    with StubModelServer(varied(hold_after=3)) as stub:
        async with anyio.create_task_group() as group:
            group.start_soon(model_at(stub, kind).generate, request())
            await until(lambda: stub.requests)
            group.cancel_scope.cancel()
        await until(lambda: stub.open_connections == 0)


class _Watched(httpx.AsyncBaseTransport):
    """The real network, with a note of each connection that is given up."""

    def __init__(self) -> None:
        self.real = httpx.AsyncHTTPTransport()
        self.open = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self.real.handle_async_request(request)
        self.open += 1
        assert isinstance(response.stream, httpx.AsyncByteStream)
        close = response.stream.aclose

        async def note() -> None:
            await close()
            self.open -= 1

        response.stream.aclose = note  # type: ignore[method-assign]
        return response

    async def aclose(self) -> None:
        await self.real.aclose()


async def test_a_cancelled_request_is_closed_before_it_returns() -> None:
    network = _Watched()
    with StubModelServer(varied(hold_after=3)) as stub, anyio.fail_after(120):
        async with anyio.create_task_group() as group:

            def leave(delta: TokenDelta) -> None:
                assert network.open == 1
                group.cancel_scope.cancel()

            group.start_soon(model_at(stub, endpoint={"transport": network}).generate, request(), leave)
        assert network.open == 0


def test_cancelling_takes_no_simulated_time() -> None:
    clock = trio.testing.MockClock()

    async def cancelled(stub: StubModelServer) -> float:
        network, started = _Watched(), 0.0
        async with anyio.create_task_group() as group:

            def leave(delta: TokenDelta) -> None:
                nonlocal started
                started = anyio.current_time()
                # From here on a wait for whatever it may be makes the clock jump to the end of it.
                clock.autojump_threshold = 0
                group.cancel_scope.cancel()

            group.start_soon(model_at(stub, endpoint={"transport": network}).generate, request(), leave)
        assert network.open == 0
        return anyio.current_time() - started

    with StubModelServer(varied(hold_after=3)) as stub:
        took = anyio.run(cancelled, stub, backend="trio", backend_options={"clock": clock})
    assert took < 0.1


async def test_a_model_that_several_sessions_hold_stays_connected_until_the_last_lets_go() -> None:
    with StubModelServer(StubReply(text="Hi."), repeat=True) as stub:
        model = model_at(stub)
        async with model:
            async with model:
                await model.generate(request())
            await model.generate(request())
            assert stub.open_connections == 1
        await until(lambda: stub.open_connections == 0)


async def test_silence_is_an_error_after_its_time() -> None:
    timeouts = Timeouts(bytes=0.2)
    error = await fail(varied(hold_after=2), endpoint={"timeouts": timeouts})
    assert (error.code, error.retryable) == ("network", True)


@pytest.mark.parametrize(
    ("kind", "sign"), [(OpenAIChat, b": keep-alive\n\n"), (Anthropic, b'event: ping\ndata: {"type": "ping"}\n\n')]
)
async def test_signs_of_life_are_no_events(kind: type[WireModel], sign: bytes) -> None:
    # Enough of them for longer than the events may take, each well within the time between bytes.
    flood = StubReply(body=sign * 2_000_000, piece=20)
    error = await fail(flood, kind, endpoint={"timeouts": Timeouts(bytes=60, events=0.3)})
    assert (error.code, error.retryable) == ("network", True)
    assert "0.3 seconds" in error.message


async def test_a_server_that_never_hangs_up_after_the_end_does_no_harm() -> None:
    chunks = StubReply(text="Hi.")
    with StubModelServer(StubReply(text="Hi.", hold_after=7)) as stub:
        with anyio.fail_after(120):
            response = await model_at(stub).generate(request())
    assert response.content == chunks.text


async def test_nobody_there_is_a_network_error() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        model = OpenAIChat("m", Endpoint(provider="lab", base_url=f"http://127.0.0.1:{listener.getsockname()[1]}"))
        with pytest.raises(ModelRequestError) as caught:
            await model.generate(request())
    assert (caught.value.code, caught.value.retryable, caught.value.status) == ("network", True, None)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8000",
        "ftp://host",
        "http://",
        "http://user:word@host/v1",
        "http://[::1",
        "http://h/?k=word",
        "http://h/#word",
    ],
)
async def test_a_base_url_that_is_none_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(OptionsError) as caught:
        OpenAIChat("m", Endpoint(provider="lab", base_url=url))
    assert "word" not in "".join(traceback.format_exception(caught.value))


async def test_one_shot_use_is_one_line() -> None:
    with StubModelServer(StubReply(text="Four.")) as stub:
        assert await collect(model_at(stub), "Two and two?", system="Count.", max_tokens=9) == "Four."
    assert [one["role"] for one in stub.requests[0].body["messages"]] == ["system", "user"]
    assert stub.requests[0].body["max_tokens"] == 9


@every_format
async def test_a_model_in_a_context_shares_its_connection(kind: type[WireModel]) -> None:
    with StubModelServer(StubReply(text="Hi."), repeat=True) as stub:
        async with model_at(stub, kind) as model:
            for _ in range(3):
                await model.generate(request())
                assert stub.open_connections == 1
        await until(lambda: stub.open_connections == 0)


async def test_a_listener_that_raises_is_heard_and_the_connection_closed() -> None:
    def refuse(delta: TokenDelta) -> None:
        raise ValueError("mine")

    with StubModelServer(StubReply(text="Hi there.", hold_after=4)) as stub:
        with pytest.raises(ValueError, match="mine"):
            await model_at(stub).generate(request(), refuse)
        await until(lambda: stub.open_connections == 0)


async def test_a_thousand_cancelled_streams_leave_nothing_open() -> None:
    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    with StubModelServer(StubReply(text="Hello there.", hold_after=3), repeat=True) as stub:
        model = model_at(stub)

        async def cancelled() -> None:
            async with anyio.create_task_group() as group:

                def leave(delta: TokenDelta) -> None:
                    group.cancel_scope.cancel()

                group.start_soon(model.generate, request(), leave)

        await cancelled()
        await until(lambda: stub.open_connections == 0)
        before = descriptors()
        for _ in range(40):
            async with anyio.create_task_group() as group:
                for _ in range(25):
                    group.start_soon(cancelled)
        await until(lambda: stub.open_connections == 0)
        await until(lambda: descriptors() <= before)
        assert len(stub.requests) == 1001


@every_format
async def test_a_key_is_sent_and_never_shown(
    kind: type[WireModel], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    with StubModelServer(StubReply(text="Hi."), key=KEY) as stub:
        model = model_at(stub, kind, endpoint={"key": Key(value=KEY)})
        response = await model.generate(request())
        asked = stub.requests[0]
        shown += [asked.path, asked.data.decode()]
        assert sum(KEY in value for value in asked.headers.values()) == 1
        shown += [response.model_dump_json(), repr(model.__dict__), repr(model.wire.endpoint), repr(model.info)]
        # The server repeats what it was sent: a wrong key is a key too.
        wrong = KEY[::-1]
        with pytest.raises(ModelRequestError) as caught:
            await model_at(stub, kind, endpoint={"key": Key(value=wrong)}).generate(request())
    assert (caught.value.code, caught.value.status, caught.value.retryable) == ("auth", 401, False)
    assert caught.value.hint
    shown += ["".join(traceback.format_exception(caught.value)), repr(caught.value), caplog.text, *capfd.readouterr()]
    for secret in (KEY, wrong):
        assert secret not in "\n".join(shown)
    assert "[key]" in caught.value.message


@pytest.mark.parametrize(
    "reply", [StubReply(error="with %s"), StubReply(body=b"with %s"), StubReply(edit=replaced("with %s"))]
)
async def test_a_key_that_an_answer_repeats_is_masked(reply: StubReply) -> None:
    from dataclasses import replace

    changed = {
        "error": reply.error and reply.error % KEY,
        "body": reply.body and b"with " + KEY.encode(),
        "edit": reply.edit and replaced(f"with {KEY}"),
    }
    error = await fail(replace(reply, **changed), endpoint={"key": Key(value=KEY)})
    assert KEY not in "".join(traceback.format_exception(error))
    assert "with [key]" in error.message


async def test_a_key_with_a_line_break_is_an_error_that_does_not_show_it() -> None:
    for key in ("sk-one\nsk-two", "sk-ключ-0123"):
        with StubModelServer() as stub, pytest.raises(ModelRequestError) as caught:
            await model_at(stub, endpoint={"key": Key(value=key)}).generate(request())
        assert caught.value.code == "auth"
        assert key.split("\n")[0] not in "".join(traceback.format_exception(caught.value))


async def test_a_header_that_holds_a_secret_is_masked_too() -> None:
    error = await fail(StubReply(status=500, text=f"with {KEY}"), endpoint={"headers": {"X-Team-Token": KEY}})
    assert "with [key]" in error.message


async def test_a_key_comes_from_a_command_once_and_again_after_it_was_wrong(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    command = f"echo x >> {asked}; if [ $(wc -l < {asked}) = 1 ]; then echo old-key-1; else echo {KEY}; fi; echo noise"
    with StubModelServer(StubReply(text="Hi."), key=KEY, repeat=True) as stub:
        model = model_at(stub, endpoint={"key": Key(command=command)})
        with pytest.raises(ModelRequestError, match="status 401"):
            await model.generate(request())
        for _ in range(2):
            await model.generate(request())
    assert asked.read_text().count("x") == 2


@pytest.mark.parametrize("command", ["exit 3", "true", f"echo {KEY} >&2; exit 1", "/nonexistent/key-command"])
async def test_a_key_command_that_prints_no_key_is_an_error(command: str) -> None:
    with StubModelServer() as stub, pytest.raises(ModelRequestError) as caught:
        await model_at(stub, endpoint={"key": Key(command=command)}).generate(request())
    assert caught.value.code == "auth"
    assert KEY not in caught.value.message


async def test_a_variable_is_read_when_the_key_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAB_KEY", raising=False)
    with StubModelServer(StubReply(text="Hi."), key=KEY) as stub:
        model = model_at(stub, endpoint={"key": Key(variable="LAB_KEY")})
        with pytest.raises(ModelRequestError, match="LAB_KEY"):
            await model.generate(request())
        monkeypatch.setenv("LAB_KEY", f" {KEY}\n")
        await model.generate(request())


async def test_a_proxy_is_used_where_one_is_named_and_its_password_hidden() -> None:
    with StubModelServer(StubReply(text="By way of it.")) as proxy:
        named = proxy.url.replace("http://", "http://me:proxy-word@")
        endpoint = Endpoint(provider="lab", base_url="http://models.invalid/v1", proxy=named)
        assert (await OpenAIChat("m", endpoint).generate(request())).content == "By way of it."
    assert proxy.requests[0].path.startswith("http://models.invalid/")
    with pytest.raises(ModelRequestError) as caught:
        await OpenAIChat("m", endpoint).generate(request())
    assert "proxy-word" not in "".join(traceback.format_exception(caught.value))
    assert "proxy" in str((await fail(StubReply(status=407, body=b""))).hint)


async def test_the_usual_variables_name_a_proxy_but_never_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        StubModelServer(StubReply(text="By way of it.")) as proxy,
        StubModelServer(StubReply(text="Straight.")) as stub,
    ):
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        far = OpenAIChat("m", Endpoint(provider="lab", base_url="http://models.invalid/v1"))
        assert (await far.generate(request())).content == "By way of it."
        assert (await model_at(stub).generate(request())).content == "Straight."


@pytest.mark.parametrize("from_environment", [True, False])
async def test_a_proxy_of_another_kind_is_an_error(from_environment: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = "gopher://me:proxy-word@h"
    monkeypatch.setenv("HTTP_PROXY", proxy if from_environment else "")
    monkeypatch.delenv("NO_PROXY", raising=False)
    named = None if from_environment else proxy
    model = OpenAIChat("m", Endpoint(provider="lab", base_url="http://h.invalid", proxy=named))
    with pytest.raises(ModelRequestError) as caught:
        await model.generate(request())
    assert "proxy-word" not in "".join(traceback.format_exception(caught.value))


async def test_latency_lies_within_the_duration() -> None:
    usage = (await ask(FULL)).usage
    assert usage.latency is not None
    assert usage.duration is not None
    assert 0 <= usage.latency <= usage.duration
