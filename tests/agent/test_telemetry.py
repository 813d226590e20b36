"""Spans of runs, model calls and tool calls."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.agent.support import calling, panic, shout, talk
from workbench.agent import telemetry
from workbench.errors import ModelRequestError
from workbench.protocol.messages import Usage
from workbench.protocol.runs import RetryOptions
from workbench.testing import Turn

sdk = pytest.importorskip("opentelemetry.sdk.trace")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")

pytestmark = pytest.mark.anyio
SECRET = "my secret words"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """An exporter that keeps the spans of this test."""
    exporter = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry.trace, "get_tracer", provider.get_tracer)
    return exporter


async def test_a_run_its_model_calls_and_its_tool_calls_are_spans_by_the_conventions(spans) -> None:  # type: ignore[no-untyped-def]
    """ "OpenTelemetry spans (GenAI semantic conventions) for run, model call and tool call"."""
    used = Usage(input_tokens=7, output_tokens=3)
    calls = [Turn.call("shout", {"text": SECRET}), Turn.call("panic")]
    async with talk(Turn(text=SECRET, tool_calls=calls, usage=used), Turn(text="ok"), tools=[shout, panic]) as it:
        await it.say(SECRET)
    finished = {span.name: span for span in spans.get_finished_spans()}
    assert [span.name for span in spans.get_finished_spans()] == [
        "chat scripted",
        "execute_tool shout",
        "execute_tool panic",
        "chat scripted",
        "invoke_agent",
    ]
    run = finished["invoke_agent"]
    assert run.attributes["gen_ai.conversation.id"] == "talk"
    assert {span.parent.span_id for span in finished.values() if span is not run} == {run.context.span_id}
    chat = spans.get_finished_spans()[0].attributes
    assert (chat["gen_ai.operation.name"], chat["gen_ai.request.model"], chat["gen_ai.provider.name"]) == (
        "chat",
        "scripted",
        "scripted",
    )
    assert (chat["gen_ai.usage.input_tokens"], chat["gen_ai.usage.output_tokens"]) == (7, 3)
    assert tuple(chat["gen_ai.response.finish_reasons"]) == ("tool_calls",)
    tool = finished["execute_tool shout"].attributes
    assert (tool["gen_ai.tool.name"], tool["gen_ai.tool.call.id"]) == ("shout", calls[0].id)
    assert finished["execute_tool panic"].attributes["error.type"] == "tool_panicked"
    assert finished["execute_tool panic"].status.status_code.name == "ERROR"
    assert tool.get("error.type") is None


async def test_no_span_holds_content(spans) -> None:  # type: ignore[no-untyped-def]
    """ "no content by default": neither texts nor arguments nor results nor the messages of errors."""
    error = ModelRequestError(SECRET, code="overloaded", provider="p", retryable=True)
    turns = [
        Turn(error=error),
        Turn(tool_calls=[Turn.call("shout", {"text": SECRET})], text=SECRET),
        Turn(error=RuntimeError(SECRET)),
    ]
    retry = RetryOptions(base_delay_ms=0)
    async with talk(*turns, tools=[shout], retry=retry, system_prompt=SECRET) as it:
        await it.say(SECRET)
    assert len(spans.get_finished_spans()) == 5
    text = "".join(span.to_json() for span in spans.get_finished_spans())
    assert SECRET not in text
    assert SECRET.upper() not in text
    kinds = [span.attributes.get("error.type") for span in spans.get_finished_spans()]
    assert kinds == ["overloaded", None, None, "RuntimeError", "RuntimeError"]


async def test_a_run_belongs_to_the_span_of_its_caller(spans) -> None:  # type: ignore[no-untyped-def]
    """A run's task has the context of the call that began it."""
    async with talk(calling("shout", text="a"), Turn(text="ok"), tools=[shout]) as it:
        with telemetry.trace.get_tracer("test").start_as_current_span("request") as request:
            run = it.session.start("x")
        await run.result()
    (found,) = [span for span in spans.get_finished_spans() if span.name == "invoke_agent"]
    assert found.parent.span_id == request.get_span_context().span_id


async def test_it_is_an_optional_extra() -> None:
    """ "an optional extra": without it everything goes on."""
    code = """
import sys
sys.modules["opentelemetry"] = None
import anyio
from workbench.agent.session import AgentSession
from workbench.testing import ScriptedModel, Turn
async def main():
    async with AgentSession.local(id="s", model=ScriptedModel(Turn(text="ok"))) as session:
        assert (await session.start("x").result()).text == "ok"
anyio.run(main)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
