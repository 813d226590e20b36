"""Cassettes: what was recorded comes again, what wasn't is an error, and no key is ever in one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.asking import FORMATS, KEY, TOOL, Deltas, message, model_at, request, result, said
from workbench.errors import ModelRequestError
from workbench.models.adapter import WireModel
from workbench.models.base import LanguageModel
from workbench.models.keys import Key
from workbench.protocol.messages import CompletionResponse
from workbench.testing import RecordedModel, StubCall, StubModelServer, StubReply

pytestmark = pytest.mark.anyio


async def talk(model: LanguageModel) -> tuple[CompletionResponse, CompletionResponse, str]:
    """Two requests, the second with the first's reply, and an error."""
    deltas = Deltas()
    asked = message("user", "Go.")
    first = await model.generate(request(asked, tools=(TOOL,)), deltas)
    second = await model.generate(request(asked, said(first), result(first.tool_calls[0]), tools=(TOOL,)), deltas)
    with pytest.raises(ModelRequestError) as caught:
        await model.generate(request(message("user", f"My key is {KEY}.")))
    assert (caught.value.code, caught.value.retry_after_ms) == ("rate_limited", 7000)
    return first, second, deltas.text()


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.__name__)
async def test_what_was_recorded_comes_again_without_a_network(
    kind: type[WireModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    cassette = tmp_path / "talk.json"
    script = (
        StubReply(reasoning="Hm.", signature="c2ln", text="Adding.", calls=[StubCall("add", {"a": 1})]),
        StubReply(text="Grüße 😀."),
        StubReply(status=429, text="Slow.", headers={"Retry-After": "7"}),
    )
    with StubModelServer(*script, key=KEY) as stub:
        live = model_at(stub, kind, endpoint={"key": Key(value=KEY)})
        with RecordedModel(cassette, model=live) as model:
            recorded = await talk(model)
    assert KEY not in cassette.read_text()
    with RecordedModel(cassette) as model:
        assert model.info == live.info
        assert await talk(model) == recorded


async def test_a_request_that_was_not_recorded_is_an_error_that_says_where_it_differs(tmp_path: Path) -> None:
    cassette = tmp_path / "talk.json"
    with StubModelServer(StubReply(text="Hi.")) as stub, RecordedModel(cassette, model=model_at(stub)) as model:
        await model.generate(request(message("user", "Go.")))
    player = RecordedModel(cassette)
    with pytest.raises(AssertionError, match="message 0 differs in content"):
        await player.generate(request(message("user", "Stop.")))
    with pytest.raises(AssertionError, match="max_tokens"):
        await player.generate(request(message("user", "Go."), max_tokens=9))
    assert (await player.generate(request(message("user", "Go.", id="another")))).content == "Hi."
    with pytest.raises(AssertionError, match="given already"):
        await player.generate(request(message("user", "Go.")))


async def test_a_recorded_reply_that_nobody_asked_for_is_an_error(tmp_path: Path) -> None:
    cassette = tmp_path / "talk.json"
    with StubModelServer(StubReply(text="Hi.")) as stub, RecordedModel(cassette, model=model_at(stub)) as model:
        await model.generate(request())
    with pytest.raises(AssertionError, match="never asked for"), RecordedModel(cassette):
        pass


def test_no_cassette_and_no_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no cassette"):
        RecordedModel(tmp_path / "none.json")
