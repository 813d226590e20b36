"""OpenRouter: Chat Completions with a cost, the backend that answered, signed reasoning and cache marks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.models.cache_marks import placed
from workbench.models.catalog import UNKNOWN, ModelFacts
from workbench.models.openai_chat import ChatReply, OpenAIChat
from workbench.models.profiles import PROFILES
from workbench.models.reply import OnDelta, Reply
from workbench.models.wire import Endpoint, stream_error
from workbench.protocol.messages import CompletionRequest, Usage

# Whose models cache what is marked; the others cache by themselves.
_MARKED = ("anthropic/", "google/")


class OpenRouter(OpenAIChat):
    """A model behind OpenRouter; its name is `vendor/model`."""

    def __init__(
        self,
        model: str,
        endpoint: Endpoint,
        *,
        routing: Mapping[str, Any] | None = None,
        facts: ModelFacts = UNKNOWN,
        stream: bool = True,
    ) -> None:
        """`routing` is sent as it is: `provider` and `models`, which say what may answer. Raises OptionsError."""
        super().__init__(model, endpoint, profile=PROFILES["openrouter"], facts=facts, stream=stream)
        self._routing = dict(routing or {})

    def _body(self, request: CompletionRequest) -> dict[str, Any]:
        return {**super()._body(request), "usage": {"include": True}, **self._routing}

    def _thinking(self, request: CompletionRequest) -> dict[str, Any]:
        thinking = request.thinking
        if thinking is None or thinking.effort is not None:
            return {"reasoning": {"effort": thinking.effort if thinking else "medium"}}
        return {"reasoning": {"max_tokens": thinking.budget_tokens}}

    def _messages(self, request: CompletionRequest) -> list[dict[str, Any]]:
        built = self._built(request)
        if self.name.startswith(_MARKED):
            marks = placed([mark for _, mark in built], hours=self.name.startswith("anthropic/"))
            for (message, _), mark in zip(built, marks, strict=True):
                if mark is not None:
                    _mark(message, mark)
        return [message for message, _ in built]

    def _reply(self, on_delta: OnDelta | None) -> Reply:
        return _RouterReply(self.provider, on_delta)


class _RouterReply(ChatReply):
    def __init__(self, provider: str, on_delta: OnDelta | None = None) -> None:
        super().__init__(provider, on_delta)
        self._details: list[dict[str, Any]] = []
        self._backend: str | None = None

    def whole(self, body: Any) -> None:
        nested = body.get("provider")
        # Bodies were seen whose fields are null, with the real reply where the backend's name stands.
        super().whole(nested if not body.get("choices") and isinstance(nested, dict) else body)

    def chunk(self, chunk: dict[str, Any], part: str) -> None:
        if isinstance(chunk.get("provider"), str):
            self._backend = chunk["provider"]
        super().chunk(chunk, part)
        choice = self.choice(chunk) or {}
        native = str(choice.get("native_finish_reason") or "")
        if native.endswith("error"):
            raise stream_error(self._provider, {"message": f"the backend ended with {native}", "code": 502})

    def read_usage(self, usage: Mapping[str, Any], chunk: Mapping[str, Any]) -> Usage:
        cost = usage.get("cost")
        if cost is not None and usage.get("is_byok"):
            # With a key of one's own, the backend charges apart from the router.
            upstream = (usage.get("cost_details") or {}).get("upstream_inference_cost")
            cost = None if upstream is None else cost + upstream
        update = {"cost_usd": cost, "provider": self._backend}
        return super().read_usage(usage, chunk).model_copy(update=update)

    def _take(self, message: dict[str, Any]) -> None:
        details = message.get("reasoning_details") or []
        for detail in details:
            self._add_detail(detail)
        if details and not any(message.get(name) for name in ("reasoning", "reasoning_content")):
            for detail in details:
                self.add_reasoning(detail.get("text") or detail.get("summary") or "")
        super()._take(message)

    def _add_detail(self, detail: dict[str, Any]) -> None:
        """Fragments of one text are one detail; everything else is kept as it came."""
        last = self._details[-1] if self._details else None
        kind = detail.get("type")
        field = {"reasoning.text": "text", "reasoning.summary": "summary"}.get(str(kind))
        if last is None or field is None or last.get("type") != kind or last.get("index") != detail.get("index"):
            self._details.append(dict(detail))
            return
        for name, value in detail.items():
            if name == field:
                last[name] = (last.get(name) or "") + (value or "")
            elif value is not None:
                last[name] = value

    def fields(self) -> dict[str, Any]:
        return {"reasoning_details": self._details} if self._details else {}


def _mark(message: dict[str, Any], mark: dict[str, Any]) -> None:
    """Put the mark on the last text of the message, which must be a part for that; one without text can't carry it."""
    if isinstance(message["content"], str):
        message["content"] = [{"type": "text", "text": message["content"]}]
    texts = [part for part in message["content"] or () if part["type"] == "text"]
    if texts:
        texts[-1]["cache_control"] = mark
