"""OpenTelemetry spans of a run, a model call and a tool call, where OpenTelemetry is installed.

Names and attributes are those of its conventions for generative AI. No span holds content: no text, arguments, results or
messages of errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from workbench.errors import WorkbenchError
from workbench.protocol.messages import CompletionRequest, CompletionResponse, ModelInfo, ToolCall

try:
    from opentelemetry import trace
except ImportError:
    _installed = False
else:
    _installed = True

Value = str | int | float | list[str]


class Span(Protocol):
    """What can be said about a stretch of work while it goes on."""

    def set_attribute(self, key: str, value: Value) -> None: ...


class _NoSpan:
    def set_attribute(self, key: str, value: Value) -> None:
        """Nobody listens."""


def run_span(session_id: str, model: ModelInfo) -> AbstractContextManager[Span]:
    """One run."""
    return _span("invoke_agent", {**_of(model, "invoke_agent"), "gen_ai.conversation.id": session_id})


def call_span(session_id: str, model: ModelInfo, request: CompletionRequest) -> AbstractContextManager[Span]:
    """One try of a model call."""
    attributes: dict[str, Value] = {**_of(model, "chat"), "gen_ai.conversation.id": session_id}
    if request.max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = request.max_tokens
    if request.temperature is not None:
        attributes["gen_ai.request.temperature"] = request.temperature
    return _span(f"chat {model.id}", attributes, client=True)


def replied(span: Span, response: CompletionResponse) -> None:
    """Say what a model call came to."""
    span.set_attribute("gen_ai.response.finish_reasons", [response.finish_reason])
    span.set_attribute("gen_ai.usage.input_tokens", response.usage.input_tokens)
    span.set_attribute("gen_ai.usage.output_tokens", response.usage.output_tokens)


def tool_span(call: ToolCall) -> AbstractContextManager[Span]:
    """One call of a tool."""
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.call.id": call.id,
        "gen_ai.tool.type": "function",
    }
    return _span(f"execute_tool {call.name}", attributes)


def failed(span: Span, kind: str) -> None:
    """Say that it failed, and in which way."""
    span.set_attribute("error.type", kind)
    if isinstance(span, _NoSpan):
        return
    trace.get_current_span().set_status(trace.StatusCode.ERROR)


def _of(model: ModelInfo, operation: str) -> dict[str, Value]:
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": model.provider,
        "gen_ai.request.model": model.id,
    }


@contextmanager
def _span(name: str, attributes: Mapping[str, Value], *, client: bool = False) -> Iterator[Span]:
    if not _installed:
        yield _NoSpan()
        return
    kind = trace.SpanKind.CLIENT if client else trace.SpanKind.INTERNAL
    tracer = trace.get_tracer("workbench")
    # Both would write the error's message into the span.
    with tracer.start_as_current_span(
        name, kind=kind, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except Exception as error:
            failed(span, error.code if isinstance(error, WorkbenchError) else type(error).__name__)
            raise
