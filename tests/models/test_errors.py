"""What providers answer instead of a reply, each with its class, its wait and a next step."""

from __future__ import annotations

import email.utils
import json
import time
from typing import Any

import pytest

from tests.models.asking import FORMATS, fail, fail_each
from workbench.models.adapter import WireModel
from workbench.testing import StubReply

pytestmark = pytest.mark.anyio

OVERFLOWS = (
    "prompt is too long: 210000 tokens > 200000 maximum",
    "Input is too long for requested model.",
    "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "Your input exceeds the context window of this model.",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "This model's maximum prompt length is 131072",
    "Please reduce the length of the messages or completion.",
    "This model's maximum context length is 8192 tokens.",
    "the request exceeds the available context size, try increasing it",
    "tokens to keep from the initial prompt is greater than the context length",
    "invalid params, context window exceeds limit (2013)",
    "Invalid request: Your request exceeded model token limit: 262144",
)
HISTORIES = (
    "messages.2: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_1.",
    "messages.0.content.0: unexpected `tool_use_id` found in `tool_result` blocks: toolu_1.",
    "messages.1.content.0: Invalid `signature` in `thinking` block",
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'.",
    "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
    "No tool output found for function call call_1.",
    "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
    "Not the same number of function calls and responses",
    "Please ensure that the number of function response parts is equal to the number of function call parts.",
    "Function call is missing a `thought_signature` in functionCall parts.",
)


@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (400, "invalid_request", False),
        (401, "auth", False),
        (402, "no_credit", False),
        (403, "auth", False),
        (404, "invalid_request", False),
        (408, "overloaded", True),
        (409, "overloaded", True),
        (413, "context_overflow", False),
        (422, "invalid_request", False),
        (429, "rate_limited", True),
        (500, "overloaded", True),
        (502, "overloaded", True),
        (503, "overloaded", True),
        (529, "overloaded", True),
    ],
)
async def test_a_status_has_its_class(status: int, code: str, retryable: bool) -> None:
    """ "ModelRequestError carries status, retryable and retryAfterMs"; "Adapters use modelHttpError() ... to build one"."""
    error = await fail(StubReply(status=status, text="Because."))
    assert (error.code, error.retryable, error.status, error.provider) == (code, retryable, status, "lab")
    assert "Because." in error.message


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.__name__)
async def test_the_providers_own_words_are_in_the_error_of_every_format(kind: type[WireModel]) -> None:
    error = await fail(StubReply(status=400, text="Because."), kind)
    assert error.message == "lab answered with status 400: Because."


@pytest.mark.parametrize("in_stream", [True, False])
async def test_a_request_beyond_the_window_is_told_by_its_text(in_stream: bool) -> None:
    replies = [
        StubReply(error={"message": text}) if in_stream else StubReply(status=400, text=text) for text in OVERFLOWS
    ]
    for text, error in zip(OVERFLOWS, await fail_each(*replies), strict=True):
        assert (text in error.message, error.code, error.retryable) == (True, "context_overflow", False)
        assert error.hint


async def test_a_request_beyond_the_window_may_be_told_by_its_code_alone() -> None:
    body = json.dumps({"error": {"message": "No.", "code": "context_length_exceeded"}}).encode()
    assert (await fail(StubReply(status=400, body=body))).code == "context_overflow"
    for status in (400, 413):
        assert (await fail(StubReply(status=status, body=b""))).code == "context_overflow"


async def test_a_quota_that_is_used_up_is_not_waited_for() -> None:
    body = json.dumps({"error": {"message": "You exceeded your current quota.", "code": "insufficient_quota"}}).encode()
    error = await fail(StubReply(status=429, body=body, headers={"Retry-After": "1"}))
    assert (error.code, error.retryable) == ("no_credit", False)
    assert error.hint


async def test_a_plain_refusal_may_be_a_wrong_key_a_wrong_name_or_an_empty_purse() -> None:
    expected = [
        ("API key not valid. Please pass a valid API key.", "auth", "key"),
        ("Incorrect API key provided: xa***cd.", "auth", "key"),
        ("nobody/m is not a valid model ID", "invalid_request", "model's name"),
        ("Invalid model: m", "invalid_request", "model's name"),
        ("Model Not Exist", "invalid_request", "model's name"),
        ("Your credit balance is too low to access the API.", "no_credit", "Add credit"),
    ]
    errors = await fail_each(*(StubReply(status=400, text=text) for text, _, _ in expected))
    for (text, code, step), error in zip(expected, errors, strict=True):
        assert (error.code, error.retryable) == (code, False), text
        assert step in str(error.hint), text


async def test_a_refusal_of_the_conversation_itself_says_how_to_get_out_of_it() -> None:
    for error in await fail_each(*(StubReply(status=400, text=text) for text in HISTORIES)):
        assert (error.code, error.retryable) == ("invalid_request", False)
        assert "rewind" in str(error.hint), error.message
    assert "rewind" not in str((await fail(StubReply(status=400, text="Unknown parameter: 'tools[0].x'."))).hint)


async def test_every_error_has_a_next_step() -> None:
    statuses = (302, 400, 401, 402, 403, 404, 407, 408, 413, 422, 429, 500, 503, 529)
    for error in await fail_each(*(StubReply(status=status, text="No.") for status in statuses)):
        assert error.hint, error.status


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"Retry-After": "7"}, 7000),
        ({"retry-after": "0.5"}, 500),
        ({"Retry-After-Ms": "1500", "Retry-After": "9"}, 1500),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-3"}, None),
        ({}, None),
    ],
)
async def test_the_wait_is_read_in_each_form(headers: dict[str, str], wait: float | None) -> None:
    """ "ModelRequestError carries ... retryAfterMs"."""
    assert (await fail(StubReply(status=429, headers=headers))).retry_after_ms == wait


async def test_the_wait_may_be_a_date() -> None:
    later = await fail(
        StubReply(status=503, headers={"Retry-After": email.utils.formatdate(time.time() + 600, usegmt=True)})
    )
    assert later.retry_after_ms is not None
    assert 500_000 < later.retry_after_ms <= 600_000
    past = await fail(StubReply(status=503, headers={"Retry-After": email.utils.formatdate(0, usegmt=True)}))
    assert past.retry_after_ms == 0


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, "overloaded", 529),
        ({"type": "api_error", "message": "Internal server error"}, "overloaded", 502),
        ({"type": "rate_limit_error", "message": "Slow."}, "rate_limited", 429),
        ({"code": "429", "message": "Slow."}, "rate_limited", 429),
        ({"code": 402, "message": "Pay."}, "no_credit", 402),
        ({"message": "The engine is overloaded"}, "overloaded", 529),
        ("plain words", "overloaded", 502),
    ],
)
async def test_an_error_in_the_stream_has_the_class_of_its_status(error: Any, code: str, status: int) -> None:
    failed = await fail(StubReply(text="Hi.", error=error, error_after=2))
    assert (failed.code, failed.status) == (code, status)
    assert failed.retryable == (code in ("overloaded", "rate_limited"))


async def test_the_upstreams_own_words_are_shown_where_a_router_has_them() -> None:
    said = {
        "message": "Provider returned error",
        "code": 400,
        "metadata": {"raw": "tools.0: bad name", "provider_name": "X"},
    }
    error = await fail(StubReply(status=400, body=json.dumps({"error": said}).encode()))
    assert "Provider returned error" in error.message
    assert "tools.0: bad name" in error.message


async def test_a_body_that_is_no_json_is_shown_cut() -> None:
    error = await fail(StubReply(status=502, body=b"<html>Bad gateway</html>" + b"x" * 100_000))
    assert "Bad gateway" in error.message
    assert len(error.message) < 4000
