"""OpenAI's Responses, stateless: nothing is stored there, and reasoning comes and goes encrypted."""

from __future__ import annotations

import json
from typing import Any

from workbench.models.adapter import WireModel
from workbench.models.reply import Call, OnDelta, Reply
from workbench.models.sse import ServerEvent
from workbench.models.transcript import CallIds, arguments_of, data_url, packed, split, state_of, text_of
from workbench.models.wire import stream_error
from workbench.protocol.messages import ChatMessage, CompletionRequest, ImageAttachment, Usage

_ENCRYPTED = "reasoning.encrypted_content"


class OpenAIResponses(WireModel):
    """A model behind `POST /responses`."""

    def _path(self) -> str:
        return "/responses"

    def _body(self, request: CompletionRequest) -> dict[str, Any]:
        system, rest = split(request.messages)
        body: dict[str, Any] = {"model": self.name, "store": False, "input": self._input(rest)}
        if system:
            body["instructions"] = "\n\n".join(message.content for message in system)
        # Models that don't reason refuse to be asked for it.
        if self.facts.supports_reasoning is not False:
            body["include"] = [_ENCRYPTED]
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                    "strict": False,
                }
                for tool in request.tools
            ]
        if request.max_tokens is not None:
            body["max_output_tokens"] = request.max_tokens
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if request.thinking is not None:
            if request.thinking.effort is None:
                raise self.refusal(
                    f"{self.provider} takes no budget of thinking.", hint="Use an effort: low, medium or high."
                )
            body["reasoning"] = {"effort": request.thinking.effort, "summary": "auto"}
        if self._stream:
            body["stream"] = True
        return body

    def _input(self, messages: list[ChatMessage]) -> list[dict[str, Any]]:
        ids = CallIds(allowed=r"[A-Za-z0-9_-]{1,64}", length=64)
        items: list[dict[str, Any]] = []
        for message in messages:
            if message.role == "assistant":
                items += self._output(message, ids)
            elif message.role == "tool":
                items.append(
                    {
                        "type": "function_call_output",
                        "call_id": ids.of(message.tool_call_id or ""),
                        "output": _parts(message) if message.images else text_of(message),
                    }
                )
            else:
                items.append({"role": "user", "content": _parts(message) if message.images else text_of(message)})
        return items

    def _output(self, message: ChatMessage, ids: CallIds) -> list[dict[str, Any]]:
        """The items of a reply: as they came where they're this model's, else made anew."""
        state = state_of(message, self.provider, self.id, having="items")
        calls = {call.id: call for call in message.tool_calls}
        items: list[dict[str, Any]] = []
        for item in state["items"] if state is not None else ():
            if "call" not in item:
                items.append(item)
                continue
            call = calls.pop(item["call"], None)
            if call is not None:
                own = {"call_id": ids.open(call.id, item["item"].get("call_id", ""))}
                items.append({**item["item"], **own, "arguments": json.dumps(arguments_of(call), ensure_ascii=False)})
            else:
                # Reasoning is refused without the item that followed it.
                while items and items[-1].get("type") == "reasoning":
                    items.pop()
        while items and items[-1].get("type") == "reasoning":
            items.pop()
        if message.content.strip() and not any(item.get("type") == "message" for item in items):
            items.append({"role": "assistant", "content": message.content})
        for call in calls.values():
            arguments = json.dumps(arguments_of(call), ensure_ascii=False)
            made = {"type": "function_call", "call_id": ids.open(call.id), "name": call.name, "arguments": arguments}
            items.append(made)
        return items

    def _reply(self, on_delta: OnDelta | None) -> Reply:
        return _ResponsesReply(self.provider, on_delta)


class _ResponsesReply(Reply):
    def __init__(self, provider: str, on_delta: OnDelta | None = None) -> None:
        super().__init__(on_delta)
        self._provider = provider
        self._items: dict[int, dict[str, Any]] = {}
        self._calls: dict[int, Call] = {}

    def event(self, event: ServerEvent) -> None:
        """An event; those of a kind that isn't known say nothing. Raises ModelRequestError for a failure."""
        data = json.loads(event.data)
        kind = data.get("type") or event.name
        index = data.get("output_index", 0)
        if kind in ("response.output_text.delta", "response.refusal.delta"):
            self.add_text(data.get("delta") or "")
        elif kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            self.add_reasoning(data.get("delta") or "")
        elif kind == "response.reasoning_summary_part.added":
            self.add_reasoning("\n\n" if self.reasoning else "")
        elif kind == "response.output_item.added":
            self._open(index, data.get("item") or {})
        elif kind == "response.function_call_arguments.delta" and index in self._calls:
            self._calls[index].pieces.append(data.get("delta") or "")
        elif kind == "response.function_call_arguments.done" and index in self._calls:
            self._calls[index].pieces = [data.get("arguments") or ""]
        elif kind == "response.output_item.done":
            self._item(index, data.get("item") or {})
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            self.whole(data.get("response") or {})
            self.finish, self.done = self.finish or "stop", True
        elif kind == "error" or "error" in data:
            raise stream_error(self._provider, data.get("error") or data)

    def whole(self, body: Any) -> None:
        """The whole response. Raises ModelRequestError for an error instead of it."""
        if body.get("usage"):
            self._count(body["usage"])
        if body.get("error") or body.get("status") in ("failed", "cancelled"):
            raise stream_error(self._provider, body.get("error") or "the response failed")
        has_text = bool(self.text)
        for index, item in enumerate(body.get("output") or ()):
            if index not in self._items:
                self._item(index, item)
                self._show(item, has_text=has_text)
        if body.get("status") == "incomplete":
            self.finish = (body.get("incomplete_details") or {}).get("reason") or "length"
        elif body.get("status") or body.get("output"):
            self.finish = "content_filter" if self._was_refused() else "stop"
        self.done = self.finish is not None

    def _open(self, index: int, item: dict[str, Any]) -> None:
        if item.get("type") == "function_call" and index not in self._calls:
            self._calls[index] = self.open_call(item.get("call_id") or "", item.get("name") or "")

    def _item(self, index: int, item: dict[str, Any]) -> None:
        """A finished item, which says all that its pieces said."""
        self._open(index, item)
        self._items[index] = {name: value for name, value in item.items() if value is not None}
        if index in self._calls and item.get("arguments"):
            self._calls[index].pieces = [item["arguments"]]

    def _show(self, item: dict[str, Any], *, has_text: bool) -> None:
        """What nothing was streamed of."""
        for part in (item.get("content") or ()) if item.get("type") == "message" and not has_text else ():
            self.add_text(part.get("text") or part.get("refusal") or "")
        for part in (item.get("summary") or ()) if item.get("type") == "reasoning" else ():
            self.add_reasoning(part.get("text") or "")

    def _was_refused(self) -> bool:
        return any(part.get("type") == "refusal" for item in self._items.values() for part in item.get("content") or ())

    def _count(self, usage: dict[str, Any]) -> None:
        asked, answered = usage.get("input_tokens_details") or {}, usage.get("output_tokens_details") or {}
        self.usage = Usage(
            input_tokens=usage.get("input_tokens") or 0,
            output_tokens=usage.get("output_tokens") or 0,
            reasoning_tokens=answered.get("reasoning_tokens") or 0,
            cache_read_tokens=asked.get("cached_tokens") or 0,
            cache_write_tokens=asked.get("cache_write_tokens") or 0,
        )

    def flush(self) -> None:
        """The end: the items that must come back, in their order."""
        super().flush()
        items = [
            {"call": self._calls[index].id, "item": {**item, "call_id": self._calls[index].theirs}}
            if index in self._calls
            else item
            for index, item in sorted(self._items.items())
        ]
        self.state = packed({"items": items}) if items else None


def _parts(message: ChatMessage) -> list[dict[str, Any]]:
    text = [{"type": "input_text", "text": message.content}] if message.content.strip() else []
    return [*text, *map(_image, message.images)]


def _image(image: ImageAttachment) -> dict[str, Any]:
    return {"type": "input_image", "detail": "auto", "image_url": data_url(image)}
