"""Whole sessions over the wire: what a provider needs back survives the store and a switch, and nothing shows a key."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from tests.models.asking import FORMATS, KEY, model_at
from workbench.agent.history import FileHistory
from workbench.agent.locks import LocalLocker
from workbench.agent.models import ModelRegistry
from workbench.agent.options import SessionOptions
from workbench.agent.session import AgentSession
from workbench.errors import RunFailedError
from workbench.models.adapter import WireModel
from workbench.models.keys import Key
from workbench.protocol.runs import RetryOptions
from workbench.testing import StubCall, StubModelServer, StubReply, StubUsage
from workbench.tools.base import tool
from workbench.tools.registry import ToolRegistry

pytestmark = pytest.mark.anyio

SIGNATURE = "signed/+=" * 20
CALLS = [StubCall("shout", {"text": "hi"}), StubCall("shout", {"text": "ho"})]
TURN = (
    StubReply(reasoning="Hm — “é”.", signature=SIGNATURE, calls=CALLS),
    StubReply(text="They said HI and HO.", usage=StubUsage(input=50, output=9)),
)


@tool()
def shout(text: str) -> str:
    """Say it loud.

    Args:
        text: What to say.
    """
    return text.upper()


def options() -> SessionOptions:
    tools = ToolRegistry()
    tools.register(shout)
    return SessionOptions(tools=tools, retry=RetryOptions(attempts=2, base_delay_ms=1, max_delay_ms=5))


def keyed(stub: StubModelServer, kind: type[WireModel], key: str = KEY) -> WireModel:
    return model_at(stub, kind, name="m", endpoint={"provider": kind.__name__.lower(), "key": Key(value=key)})


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.__name__)
async def test_a_run_with_tools_goes_on_in_the_next_process(
    kind: type[WireModel], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[str] = []
    with StubModelServer(*TURN * 2, key=KEY) as stub:
        for _ in range(2):
            session = AgentSession(
                id="s", history=FileHistory(tmp_path), locker=LocalLocker(), model=keyed(stub, kind), options=options()
            )
            async with session:
                session.subscribe(lambda event: seen.append(event.model_dump_json()))
                async with session.run("Shout hi and ho.") as run:
                    events = [event async for event in run]
                result = await run.result()
                assert (result.text, result.turns) == ("They said HI and HO.", 2)
                assert result.usage.input_tokens == 60
                assert [event.tool_result.content for event in events if event.type == "tool_result"] == ["HI", "HO"]
    first, second, third, _ = stub.requests
    name = next(name for name in ("messages", "contents", "input") if name in first.body)
    # The reply is in each later request as it came, from memory and from the file alike.
    if SIGNATURE in json.dumps(second.body):
        assert json.dumps(third.body).count(SIGNATURE) == 1
    elif kind.__name__ in ("Anthropic", "Gemini", "OpenAIResponses"):
        pytest.fail("the signature was lost")
    start = len(second.body[name]) - 1
    assert _unmarked(third.body[name][:start]) == _unmarked(second.body[name][:start])
    stored = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    for text in (stored, caplog.text, *seen):
        assert KEY not in text


def _unmarked(value: object) -> object:
    """Without cache marks, which move on from request to request, and the parts that only carry them."""
    if isinstance(value, dict):
        return {name: _unmarked(inner) for name, inner in value.items() if name != "cache_control"}
    return [_unmarked(inner) for inner in value] if isinstance(value, list) else value


async def test_a_session_changes_its_provider_in_the_middle(tmp_path: Path) -> None:
    registry = ModelRegistry()
    with StubModelServer(*TURN * len(FORMATS), *TURN, key=KEY) as stub:
        models = [keyed(stub, kind) for kind in FORMATS]
        for model in models:
            registry.register(model)
        async with AgentSession(
            id="s", history=FileHistory(tmp_path), locker=LocalLocker(), models=registry, options=options()
        ) as session:
            for model in [*models, models[0]]:
                await session.set_model(model.info.id)
                async with session.run("Shout hi and ho.") as run:
                    assert [event.type async for event in run][-1] == "end"
                assert (await run.result()).ok
    assert len(stub.requests) == 2 * (len(FORMATS) + 1)


async def test_a_wrong_key_ends_the_run_without_being_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with StubModelServer(key=KEY) as stub:
        session = AgentSession.local(id="s", model=keyed(stub, FORMATS[0], "wrong-key-12345"), options=options())
        async with session, session.run("Hello.") as run:
            events = [event.model_dump_json() async for event in run]
            with pytest.raises(RunFailedError) as caught:
                await run.result()
    assert caught.value.code == "auth"
    for text in (caplog.text, repr(caught.value), str(caught.value.__cause__), *events):
        assert "wrong-key-12345" not in text


async def test_an_error_in_the_stream_is_tried_again_only_before_the_first_token() -> None:
    overloaded = {"type": "overloaded_error", "message": "Overloaded"}
    with StubModelServer(StubReply(error=overloaded), StubReply(text="Hello.")) as stub:
        async with AgentSession.local(id="s", model=keyed(stub, FORMATS[3]), options=options()) as session:
            async with session.run("Hi.") as run:
                notices = [event.code async for event in run if event.type == "notice"]
            assert (await run.result()).text == "Hello."
    assert notices == ["retry"]
    with StubModelServer(StubReply(text="Hello there.", error=overloaded, error_after=5)) as stub:
        async with AgentSession.local(id="s", model=keyed(stub, FORMATS[3]), options=options()) as session:
            async with session.run("Hi.") as run:
                kinds = [event.type async for event in run]
            with pytest.raises(RunFailedError) as caught:
                await run.result()
    assert caught.value.code == "overloaded"
    assert kinds.index("usage") < kinds.index("error")
