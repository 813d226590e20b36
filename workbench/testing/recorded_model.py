"""A model whose replies come from a file, once they were recorded from a real one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from workbench.errors import ModelRequestError
from workbench.models.base import LanguageModel
from workbench.models.keys import masked
from workbench.models.providers import PROVIDERS
from workbench.protocol.messages import CompletionRequest, CompletionResponse, ModelInfo, TokenDelta
from workbench.protocol.records import Frozen

# What differs from run to run and means nothing to a model.
_PASSING = ("id", "created_at")


class _Failure(Frozen):
    message: str
    code: str
    provider: str
    status: int | None = None
    retryable: bool = False
    retry_after_ms: float | None = None
    hint: str | None = None


class _Exchange(Frozen):
    request: dict[str, Any]
    deltas: tuple[TokenDelta, ...] = ()
    response: CompletionResponse | None = None
    failure: _Failure | None = None


class _Cassette(Frozen):
    version: int = 1
    info: ModelInfo
    exchanges: tuple[_Exchange, ...] = ()


class RecordedModel:
    """Answers from a cassette; with a `model` it asks that one and records what it says.

    A request gets the first recorded reply to the same request that wasn't given yet: ids and times of messages don't
    count, everything else does. Nothing of HTTP is recorded, so no header is; the values of the providers' variables, and
    `secrets`, are masked wherever else they stand. ::

        with RecordedModel("tests/cassettes/fix.json") as model:
            ...
    """

    def __init__(
        self, path: str | os.PathLike[str], *, model: LanguageModel | None = None, secrets: Iterable[str] = ()
    ) -> None:
        """Raises AssertionError where there's no cassette and no model to record one from."""
        self._path = os.fspath(path)
        self._model = model
        variables = {name for provider in PROVIDERS.values() for name in provider.keys}
        self._secrets = (*secrets, *filter(None, (os.environ.get(name, "").strip() for name in sorted(variables))))
        if model is not None:
            self._cassette = _Cassette(info=model.info)
        else:
            assert os.path.exists(self._path), f"there's no cassette at {self._path}: pass a model to record one"
            with open(self._path, "rb") as file:
                self._cassette = _Cassette.model_validate_json(file.read())
        self._left = list(self._cassette.exchanges)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            assert not self._left, f"{len(self._left)} of the recorded replies were never asked for"

    @property
    def info(self) -> ModelInfo:
        """That of the model which was recorded."""
        return self._cassette.info

    async def generate(
        self, request: CompletionRequest, on_delta: Callable[[TokenDelta], None] | None = None
    ) -> CompletionResponse:
        """The recorded reply, piece by piece as it came.

        Raises ModelRequestError where that is what was recorded, and AssertionError for a request that wasn't.
        """
        if self._model is not None:
            return await self._record(self._model, request, on_delta)
        wanted = self._shape(request)
        found = next((exchange for exchange in self._left if exchange.request == wanted), None)
        assert found is not None, f"this request isn't in {self._path}: {self._difference(wanted)}"
        self._left.remove(found)
        for delta in found.deltas if on_delta is not None else ():
            on_delta(delta)  # type: ignore[misc]  # mypy doesn't carry the check into the loop
        if found.failure is not None:
            raise ModelRequestError(**dict(found.failure))
        assert found.response is not None
        return found.response

    async def _record(
        self, model: LanguageModel, request: CompletionRequest, on_delta: Callable[[TokenDelta], None] | None
    ) -> CompletionResponse:
        deltas: list[TokenDelta] = []

        def hear(delta: TokenDelta) -> None:
            deltas.append(delta)
            if on_delta is not None:
                on_delta(delta)

        try:
            response = await model.generate(request, hear)
        except ModelRequestError as error:
            failure = _Failure.model_validate({name: getattr(error, name) for name in _Failure.model_fields})
            self._keep(_Exchange(request=self._shape(request), deltas=tuple(deltas), failure=failure))
            raise
        self._keep(_Exchange(request=self._shape(request), deltas=tuple(deltas), response=response))
        return response

    def _keep(self, exchange: _Exchange) -> None:
        exchanges = (*self._cassette.exchanges, exchange)
        self._cassette = self._cassette.model_copy(update={"exchanges": exchanges})
        text = masked(json.dumps(self._cassette.model_dump(mode="json"), indent=1), *self._secrets)
        with open(self._path, "w", encoding="utf-8") as file:
            file.write(text + "\n")

    def _shape(self, request: CompletionRequest) -> dict[str, Any]:
        """The request as it's compared and recorded, secrets masked."""
        shape: dict[str, Any] = json.loads(masked(request.model_dump_json(), *self._secrets))
        for message in shape["messages"]:
            for name in _PASSING:
                del message[name]
        return shape

    def _difference(self, wanted: dict[str, Any]) -> str:
        """Where it first differs from the next recorded request."""
        if not self._left:
            return "all recorded replies were given already"
        recorded = self._left[0].request
        for name in wanted:
            if name != "messages" and wanted[name] != recorded.get(name):
                return f"its {name} are other ones than those of the next recorded request"
        for number, (asked, known) in enumerate(zip(wanted["messages"], recorded["messages"], strict=False)):
            fields = [name for name in asked if asked[name] != known.get(name)]
            if fields:
                return f"message {number} differs in {', '.join(fields)} from the next recorded request's"
        return f"it has {len(wanted['messages'])} messages, the next recorded request {len(recorded['messages'])}"
