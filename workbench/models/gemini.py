"""Google's Gemini, with thought signatures."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

from workbench.errors import ModelRequestError
from workbench.models.adapter import WireModel
from workbench.models.reply import OnDelta, Reply, joined
from workbench.models.sse import ServerEvent
from workbench.models.transcript import CallIds, arguments_of, names_of_calls, packed, split, state_of, text_of
from workbench.models.wire import stream_error
from workbench.protocol.messages import ChatMessage, CompletionRequest, ImageAttachment, Thinking, ToolCall, Usage

_BUDGETS = {"low": 1_024, "medium": 8_192, "high": 24_576}
# The documented signature for a call that another model made.
_NO_SIGNATURE = "skip_thought_signature_validator"
_BROKEN = ("MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL")


class Gemini(WireModel):
    """A model behind `POST /v1beta/models/NAME:streamGenerateContent`."""

    key_header = "x-goog-api-key"
    key_prefix = ""

    def _path(self) -> str:
        method = "streamGenerateContent?alt=sse" if self._stream else "generateContent"
        return f"/v1beta/models/{quote(self.name, safe='')}:{method}"

    def _body(self, request: CompletionRequest) -> dict[str, Any]:
        system, rest = split(request.messages)
        body: dict[str, Any] = {"contents": self._contents(rest)}
        if system:
            body["systemInstruction"] = {"parts": [{"text": message.content} for message in system]}
        if request.tools:
            declared = [
                {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters}
                for tool in request.tools
            ]
            body["tools"] = [{"functionDeclarations": declared}]
        settings: dict[str, Any] = {}
        if request.max_tokens is not None:
            settings["maxOutputTokens"] = request.max_tokens
        if request.temperature is not None:
            settings["temperature"] = request.temperature
        if request.thinking is not None:
            settings["thinkingConfig"] = {"includeThoughts": True, **self._thinking(request.thinking)}
        if settings:
            body["generationConfig"] = settings
        return body

    def _thinking(self, thinking: Thinking) -> dict[str, Any]:
        """How much to think, in the form that this model takes. Raises ModelRequestError."""
        if self.facts.thinking == "budget":
            return {"thinkingBudget": thinking.budget_tokens or _BUDGETS[thinking.effort or "medium"]}
        if thinking.effort is None:
            raise self.refusal(f"{self.name} takes no budget of thinking.", hint="Use an effort: low, medium or high.")
        return {"thinkingLevel": thinking.effort.upper()}

    def _contents(self, messages: list[ChatMessage]) -> list[dict[str, Any]]:
        ids = CallIds(allowed=r"[A-Za-z0-9_-]{1,64}", length=64)
        names = names_of_calls(messages)
        sent: dict[str, str] = {}
        contents: list[dict[str, Any]] = []
        was_result = False
        for message in messages:
            if message.role == "assistant":
                contents.append({"role": "model", "parts": self._model_parts(message, ids, sent)})
            elif message.role == "tool":
                parts = _result_parts(message, names, sent)
                # All results of a step stand in one content.
                if was_result:
                    contents[-1]["parts"] += parts
                else:
                    contents.append({"role": "user", "parts": parts})
            else:
                images = [_inline(image) for image in message.images]
                text = [{"text": text_of(message)}] if message.content.strip() or not images else []
                contents.append({"role": "user", "parts": [*images, *text]})
            was_result = message.role == "tool"
        return contents

    def _model_parts(self, message: ChatMessage, ids: CallIds, sent: dict[str, str]) -> list[dict[str, Any]]:
        """The parts of a reply: as they came where they're this model's, else made anew."""
        state = state_of(message, self.provider, self.id, having="parts")
        theirs: dict[str, str] = (state or {}).get("ids", {})
        calls = {call.id: call for call in message.tool_calls}
        for id in calls:
            if theirs.get(id):
                sent[id] = ids.open(id, theirs[id])
        if state is None:
            parts = [_inline(image) for image in message.images]
            if message.content.strip():
                parts.append({"text": message.content})
            made = [_call_part(call, sent) for call in calls.values()]
            if made and self.facts.thinking != "budget":
                made[0]["thoughtSignature"] = _NO_SIGNATURE
            return [*parts, *made] or [{"text": text_of(message)}]
        parts = []
        for part in state["parts"]:
            signature = {"thoughtSignature": part["thoughtSignature"]} if "thoughtSignature" in part else {}
            if "call" in part:
                call = calls.pop(part["call"], None)
                parts += [] if call is None else [{**_call_part(call, sent), **signature}]
            elif "image" in part:
                parts += [{**_inline(image), **signature} for image in message.images[part["image"] :][:1]]
            else:
                parts.append(part)
        return parts + [_call_part(call, sent) for call in calls.values()] or [{"text": text_of(message)}]

    def _reply(self, on_delta: OnDelta | None) -> Reply:
        return _GeminiReply(self.provider, on_delta)


class _GeminiReply(Reply):
    def __init__(self, provider: str, on_delta: OnDelta | None = None) -> None:
        super().__init__(on_delta)
        self._provider = provider
        self._parts: list[dict[str, Any]] = []

    def event(self, event: ServerEvent) -> None:
        """A chunk. Raises ModelRequestError for an error in it."""
        self._chunk(json.loads(event.data))

    def whole(self, body: Any) -> None:
        """A reply in one piece, or all chunks in a list. Raises ModelRequestError for an error instead of it."""
        for chunk in body if isinstance(body, list) else [body]:
            self._chunk(chunk)
        self.done = self.finish is not None

    def _chunk(self, chunk: dict[str, Any]) -> None:
        if chunk.get("usageMetadata"):
            self._count(chunk["usageMetadata"])
        if chunk.get("error"):
            raise stream_error(self._provider, chunk["error"])
        candidates = chunk.get("candidates") or []
        if not candidates and (chunk.get("promptFeedback") or {}).get("blockReason"):
            self.finish = "content_filter"
            return
        for candidate in candidates[:1]:
            for part in (candidate.get("content") or {}).get("parts") or ():
                self._part(part)
            finish = candidate.get("finishReason")
            if finish in _BROKEN:
                raise ModelRequestError(
                    f"{self._provider} ended the reply with {finish}.",
                    code="incomplete_stream",
                    provider=self._provider,
                    retryable=True,
                    hint="Try again, or use another model.",
                )
            self.finish = finish or self.finish

    def _part(self, part: dict[str, Any]) -> None:
        signature = {"thoughtSignature": part["thoughtSignature"]} if part.get("thoughtSignature") else {}
        if "functionCall" in part:
            function = part["functionCall"]
            call = self.open_call(function.get("id") or "", function.get("name") or "")
            call.given = function.get("args") or {}
            self._parts.append({"call": call.id, **signature})
        elif "inlineData" in part:
            data = part["inlineData"]
            self.begin()
            image = ImageAttachment(media_type=data["mimeType"], data=base64.b64decode(data["data"]))
            self.images.append(image)
            self._parts.append({"image": len(self.images) - 1, **signature})
        elif part.get("thought"):
            self.add_reasoning(part.get("text") or "")
            if signature:
                self._parts.append(dict(part))
        elif "text" in part:
            self.add_text(part["text"])
            last = self._parts[-1] if self._parts else {}
            # Pieces of one text are one part again, but never across a signature, which belongs to its own.
            if set(last) == {"text"} and not signature:
                last["text"] += part["text"]
            elif part["text"] or signature:
                self._parts.append({"text": part["text"], **signature})
        elif signature:
            self._parts.append({"text": "", **signature})

    def _count(self, usage: dict[str, Any]) -> None:
        """Its counts are sums so far; a later chunk may lack what an earlier one had."""
        thoughts = usage.get("thoughtsTokenCount") or 0
        self.usage = Usage(
            input_tokens=(usage.get("promptTokenCount") or 0) + (usage.get("toolUsePromptTokenCount") or 0),
            output_tokens=(usage.get("candidatesTokenCount") or 0) + thoughts,
            reasoning_tokens=thoughts,
            cache_read_tokens=max(usage.get("cachedContentTokenCount") or 0, self.usage.cache_read_tokens),
        )

    def flush(self) -> None:
        """The end: the parts that must come back, in their order."""
        super().flush()
        ids = {call.id: call.theirs for call in self.calls if call.theirs}
        parts = [{**part, "text": joined(part["text"])} if "text" in part else part for part in self._parts]
        if ids or any("thoughtSignature" in part for part in parts):
            self.state = packed({"ids": ids, "parts": parts})


def _call_part(call: ToolCall, sent: dict[str, str]) -> dict[str, Any]:
    function: dict[str, Any] = {"name": call.name, "args": arguments_of(call)}
    return {"functionCall": {**function, "id": sent[call.id]} if call.id in sent else function}


def _result_parts(message: ChatMessage, names: dict[str, str], sent: dict[str, str]) -> list[dict[str, Any]]:
    id = message.tool_call_id or ""
    response: dict[str, Any] = {
        "name": names.get(id, "unknown"),
        "response": {"error" if message.is_error else "output": text_of(message)},
    }
    if id in sent:
        response["id"] = sent[id]
    return [{"functionResponse": response}, *(_inline(image) for image in message.images)]


def _inline(image: ImageAttachment) -> dict[str, Any]:
    return {"inlineData": {"mimeType": image.media_type, "data": base64.b64encode(image.data).decode()}}
