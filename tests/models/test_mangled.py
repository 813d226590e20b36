"""Answers with anything in the place of anything: a reply comes out, or an error of ours, and no half-read call is run."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from tests.models.asking import FORMATS, message, request
from workbench.errors import ModelRequestError
from workbench.models.adapter import WireModel
from workbench.models.reading import WRONG_DATA, Reading
from workbench.models.wire import Endpoint
from workbench.protocol.messages import ChatMessage
from workbench.testing import StubCall, StubReply
from workbench.testing.model_formats import encoded, format_of

REPLY = StubReply(
    text="Hello there.",
    reasoning="Hm, let me see.",
    signature="c2ln",
    calls=[StubCall("add", {"a": 1}), StubCall("now")],
)
ANYTHING: tuple[Any, ...] = (
    None,
    7,
    -1.5,
    "",
    "x",
    [],
    {},
    [None],
    [7],
    {"a": None},
    True,
    "\ud800",
    [[]],
    [{}],
    {"x": []},
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, inner in items for place in places(inner, (*path, key)))]


def mangled(value: Any, chance: random.Random) -> Any:
    """The value with something else in one place of it, or without what is there."""
    path = chance.choice(places(value))
    if not path:
        return chance.choice(ANYTHING)
    value = copy.deepcopy(value)
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    if isinstance(holder, dict) and chance.random() < 0.4:
        del holder[path[-1]]
    else:
        holder[path[-1]] = chance.choice(ANYTHING)
    return value


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_was_mangled_is_a_reply_or_an_error_of_ours(kind: type[WireModel], stream: bool) -> None:
    chance = random.Random(13)
    model = kind("m", Endpoint(provider="lab", base_url="http://127.0.0.1:1"), stream=stream)
    format = format_of(model._path())
    assert format is not None
    asked = {"stream_options": {"include_usage": True}}
    replies = 0
    for _ in range(600):
        reply = model._reply(lambda delta: None)
        reading = Reading("lab", "http://127.0.0.1:1", reply)
        if stream:
            events = format.stream(REPLY, asked)
            for _ in range(chance.randrange(1, 4)):
                number = chance.randrange(len(events))
                events[number] = (events[number][0], mangled(events[number][1], chance))
            data = b"".join(encoded(event, "\n") for event in events)
        else:
            data = encoded(("", mangled(format.whole(REPLY, asked), chance)), "\n").removeprefix(b"data: ")
        reading.feed(data)
        reading.end()
        if reading.failure is not None:
            assert isinstance(reading.failure, ModelRequestError), (data, reading.failure)
            continue
        if not reply.finished:
            continue
        try:
            reply.flush()
            response = reply.response("lab", "m", reply.usage)
        except WRONG_DATA:
            continue
        replies += 1
        assert all(call.arguments is None or isinstance(call.arguments, dict) for call in response.tool_calls)
        stored = ChatMessage.model_validate_json(
            message(
                "assistant", response.content, tool_calls=response.tool_calls, provider_state=response.provider_state
            ).model_dump_json()
        )
        # And what came out can be sent back.
        assert model._body(request(stored))
    assert replies > 50
