"""From what a provider answered, or didn't, to one kind of error with a class, a status and a delay."""

from __future__ import annotations

import email.utils
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeGuard

from workbench.errors import ModelRequestError

# How providers say that a request is longer than the model's window; all of them in lower case.
_OVERFLOW_TEXTS = (
    "prompt is too long",
    "input is too long",
    "exceed context limit",
    "exceeds the context window",
    "maximum prompt length is",
    "reduce the length of the messages",
    "maximum context length is",
    "exceeds the available context size",
    "greater than the context length",
    "context window exceeds limit",
    "exceeded model token limit",
    "context_length_exceeded",
)
# How they say that the conversation itself is wrong: calls and results that don't pair up, reasoning that was changed.
_HISTORY_TEXTS = (
    "tool_use_id",
    "`tool_use` ids",
    "`tool_use` block",
    "tool_call_id",
    "preceeding message with 'tool_calls'",
    "preceding message with 'tool_calls'",
    "number of function calls and responses",
    "number of function response parts",
    "function call turn comes immediately after",
    "no tool output found for function call",
    "no tool call found for function call output",
    "without its required following item",
    "`signature` in `thinking`",
    "missing a `thought_signature`",
)
# Answers that look like a rate limit and never go away by waiting.
_QUOTA_TEXTS = (
    "insufficient_quota",
    "exceeded your current quota",
    "credit balance is too low",
    "insufficient balance",
    "billing_hard_limit_reached",
)
# Some answer 400 to a wrong key, and to the name of a model that they don't have.
_KEY_TEXTS = ("api key not valid", "api_key_invalid", "incorrect api key", "invalid api key")
_MODEL_TEXTS = ("model_not_found", "invalid model", "invalid_model", "not a valid model", "model not exist")
_OVERFLOW_STATUSES = frozenset({400, 422, 500})
_RETRYABLE_STATUSES = frozenset({408, 409, 429})
_MESSAGE_CHARACTERS = 2_000


def is_model_request_error(error: object) -> TypeGuard[ModelRequestError]:
    """Whether it is one, judged by its fields: one of another copy of the package counts."""
    return (
        isinstance(error, Exception)
        and isinstance(getattr(error, "code", None), str)
        and isinstance(getattr(error, "retryable", None), bool)
        and isinstance(getattr(error, "status", 0), int | None)
        and isinstance(getattr(error, "retry_after_ms", ""), int | float | None)
    )


def model_http_error(provider: str, status: int, headers: Mapping[str, str], body: bytes) -> ModelRequestError:
    """The error for an answer of a provider that isn't a reply, whatever its status."""
    message = _message(body)
    text = body.decode(errors="replace").lower()
    code, retryable = _classify(status, text)
    return ModelRequestError(
        f"{provider} answered with status {status}{': ' if message else '.'}{message}",
        code=code,
        provider=provider,
        status=status,
        retryable=retryable,
        retry_after_ms=_retry_after_ms(headers),
        hint=_hint(status, code, text),
    )


def model_network_error(provider: str, cause: BaseException) -> ModelRequestError:
    """The error for a connection that failed; sending again may help."""
    error = ModelRequestError(
        f"{provider} can't be reached: {cause or type(cause).__name__}",
        code="network",
        provider=provider,
        retryable=True,
        hint="Check the connection, the proxy and the base URL.",
    )
    error.__cause__ = cause
    return error


_UNKNOWN_MODEL_HINT = "Check the model's name, and the base URL; `workbench models` lists what there is."
_MOVED_HINT = "Correct the base URL: it points elsewhere, and neither the request nor a key goes along."
_HISTORY_HINT = (
    "It refuses the conversation as it stands: `workbench rewind` to an earlier message, or use another model."
)
_HINTS = {
    "auth": "Check the provider's key.",
    "no_credit": "Add credit at the provider, or use another model.",
    "context_overflow": "Start a new session, or use a model with a larger window.",
    "rate_limited": "Wait, or use another model.",
    "overloaded": "Try again later, or use another model.",
    "invalid_request": "Change what the message names, or use another model.",
}


def _hint(status: int, code: str, text: str) -> str | None:
    """The next step. A history that is refused would be refused for ever, so no text of it can be changed to mend it."""
    if 300 <= status < 400:
        return _MOVED_HINT
    if status == 407:
        return "Give the proxy's URL with a name and a password, http://NAME:PASSWORD@HOST:PORT."
    if status == 404 or (code == "invalid_request" and any(words in text for words in _MODEL_TEXTS)):
        return _UNKNOWN_MODEL_HINT
    if code == "invalid_request" and any(words in text for words in _HISTORY_TEXTS):
        return _HISTORY_HINT
    return _HINTS.get(code)


def is_overflow(text: str) -> bool:
    """Whether a provider says with it that a request is longer than the model's window."""
    text = text.lower()
    counted = "input token count" in text and "exceeds the maximum" in text
    return counted or any(words in text for words in _OVERFLOW_TEXTS)


def _classify(status: int, text: str) -> tuple[str, bool]:
    """Code and whether to try again; `text` is the body in lower case."""
    # Without any words, either status means at some that the request was too long.
    if status == 413 or (status == 400 and not text.strip()) or (status in _OVERFLOW_STATUSES and is_overflow(text)):
        return "context_overflow", False
    if status in (401, 403) or (status == 400 and any(words in text for words in _KEY_TEXTS)):
        return "auth", False
    if status == 402 or any(words in text for words in _QUOTA_TEXTS):
        return "no_credit", False
    if status == 429:
        return "rate_limited", True
    if status >= 500 or status in _RETRYABLE_STATUSES or "overloaded" in text:
        return "overloaded", True
    return "invalid_request", False


def _message(body: bytes) -> str:
    """What the body says, cut to a readable length; empty where it says nothing."""
    text = body.decode(errors="replace").strip()
    try:
        value: Any = json.loads(text)
    except ValueError:
        return text[:_MESSAGE_CHARACTERS]
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, dict):
        error = value.get("error", value)
        if isinstance(error, dict) and isinstance(error.get("message"), str):
            return f"{error['message']}{_upstream(error)}"[:_MESSAGE_CHARACTERS]
        if isinstance(error, str):
            return error[:_MESSAGE_CHARACTERS]
    return text[:_MESSAGE_CHARACTERS]


def _upstream(error: dict[str, Any]) -> str:
    """What the provider behind a router said, where the router repeats it."""
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    return f" ({raw if isinstance(raw, str) else json.dumps(raw)})" if raw else ""


def _retry_after_ms(headers: Mapping[str, str]) -> float | None:
    """The delay that the headers ask for; None where they ask for none that can be read."""
    values = {name.lower(): value.strip() for name, value in headers.items()}
    for name, unit in (("retry-after-ms", 1), ("retry-after", 1_000)):
        try:
            delay = float(values[name]) * unit
        except (KeyError, ValueError):
            continue
        if 0 <= delay < float("inf"):
            return delay
    try:
        moment = email.utils.parsedate_to_datetime(values["retry-after"])
    except (KeyError, ValueError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds() * 1_000)
