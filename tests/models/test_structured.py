"""An answer in a shape of one's own, in every wire format."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, Field

from tests.models.asking import FORMATS, model_at
from workbench.errors import ModelRequestError
from workbench.models.adapter import WireModel
from workbench.models.structured import collect_as
from workbench.testing import StubCall, StubModelServer, StubReply

pytestmark = pytest.mark.anyio


class City(BaseModel):
    name: str
    people: int = Field(ge=0)


RIGHT = StubReply(calls=[StubCall("answer", {"name": "Ulm", "people": 126_000})])
ULM = City(name="Ulm", people=126_000)


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.__name__)
async def test_an_answer_has_the_shape_that_was_asked_for(kind: type[WireModel]) -> None:
    with StubModelServer(RIGHT) as stub:
        assert await collect_as(model_at(stub, kind), City, "A city?") == ULM
    assert "people" in str(stub.requests[0].body["tools"])


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.__name__)
async def test_an_answer_that_does_not_fit_is_shown_to_the_model(kind: type[WireModel]) -> None:
    wrong = StubReply(calls=[StubCall("answer", {"name": "Ulm", "people": -1})])
    with StubModelServer(wrong, RIGHT) as stub:
        assert await collect_as(model_at(stub, kind), City, "A city?", system="Be exact.") == ULM
    assert "greater than or equal to 0" in str(stub.requests[1].body)


@pytest.mark.parametrize(
    "text", ['{"name": "Ulm", "people": 126000}', '```json\n{"name": "Ulm", "people": 126000}\n```']
)
async def test_an_answer_in_words_may_be_json(text: str) -> None:
    with StubModelServer(StubReply(text=text)) as stub:
        assert await collect_as(model_at(stub), City, "A city?") == ULM


async def test_no_answer_that_fits_is_an_error() -> None:
    with StubModelServer(StubReply(text="Ulm!"), repeat=True) as stub, pytest.raises(ModelRequestError) as caught:
        await collect_as(model_at(stub), City, "A city?", attempts=3)
    assert caught.value.code == "invalid_request"
    assert len(stub.requests) == 3
