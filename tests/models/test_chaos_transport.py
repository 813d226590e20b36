"""A network that fails now and then: whatever it does, a reply is right or an error is one of ours."""

from __future__ import annotations

import pytest

from tests.models.asking import FORMATS, model_at, request
from workbench.errors import ModelRequestError
from workbench.models.adapter import WireModel
from workbench.testing import ChaosTransport, StubCall, StubModelServer, StubReply

pytestmark = pytest.mark.anyio

REPLY = StubReply(text="Hello there.", calls=[StubCall("add", {"a": 1, "b": "two"})])


async def outcomes(kind: type[WireModel], seed: int, rounds: int = 60) -> tuple[list[str], list[str | None]]:
    chaos = ChaosTransport(seed=seed, rate=0.6)
    told: list[str] = []
    with StubModelServer(REPLY, repeat=True) as stub:
        async with model_at(stub, kind, endpoint={"transport": chaos}) as model:
            for _ in range(rounds):
                try:
                    response = await model.generate(request())
                except ModelRequestError as error:
                    told.append(error.code if error.retryable else "final")
                    continue
                assert response.content == REPLY.text
                (call,) = response.tool_calls
                assert call.arguments in (None, {"a": 1, "b": "two"})
                told.append("right" if call.arguments else "unparsable")
    return told, list(chaos.happened)


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.__name__)
async def test_every_outcome_is_a_right_reply_or_an_error_to_try_again_after(kind: type[WireModel]) -> None:
    told, happened = await outcomes(kind, seed=7)
    assert {"connect", "status", "cut", None} <= set(happened)
    assert {"right", "network", "incomplete_stream", "overloaded"} <= set(told)
    assert "final" not in told
    for outcome, fault in zip(told, happened, strict=True):
        assert outcome == "right" or fault is not None


async def test_the_same_seed_does_the_same_again() -> None:
    first, second = await outcomes(FORMATS[0], seed=3, rounds=20), await outcomes(FORMATS[0], seed=3, rounds=20)
    assert first == second
    assert first[1] != (await outcomes(FORMATS[0], seed=4, rounds=20))[1]


async def test_arguments_that_were_corrupted_are_never_run() -> None:
    chaos = ChaosTransport(rate=1.0, faults=("corrupt",))
    with StubModelServer(REPLY) as stub:
        response = await model_at(stub, endpoint={"transport": chaos}).generate(request())
    assert response.tool_calls[0].arguments is None
