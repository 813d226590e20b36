"""What each server of the Chat Completions format takes, and what breaks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workbench.errors import OptionsError
from workbench.protocol.messages import Effort


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """One server's dialect.

    `max_tokens` is the field that bounds a reply. `stream_usage` asks for the usage of a stream; where that is refused,
    it comes by itself or not at all. `system` is the role that the system prompt has. `thinking` is how it's asked to
    reason, None where it can't be, and `efforts` what can be asked for. `echo_reasoning` is the field that every reply
    of a conversation with tools must carry back, empty where it has none. `call_id` and `call_id_length` are the form of
    a call's id. `empty_tools` sends an empty list where the conversation has calls and no tools are offered. `cuts` says
    that it may answer to the rest of a conversation that is too long for it, without a word.
    """

    name: str
    max_tokens: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    stream_usage: bool = True
    system: Literal["system", "developer"] = "system"
    thinking: Literal["effort", "deepseek", "openrouter", "template"] | None = None
    efforts: tuple[Effort, ...] = ("low", "medium", "high")
    echo_reasoning: str | None = None
    call_id: str = r"[A-Za-z0-9_-]{1,40}"
    call_id_length: int = 40
    empty_tools: bool = False
    cuts: bool = False


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(name="compatible", thinking="effort"),
        Profile(name="openai", max_tokens="max_completion_tokens", system="developer", thinking="effort"),
        Profile(name="azure", max_tokens="max_completion_tokens", thinking="effort"),
        Profile(name="ollama", thinking="effort", cuts=True),
        Profile(name="vllm", thinking="effort"),
        Profile(name="llamacpp", thinking="template"),
        # Its Responses API takes an effort; its Chat Completions was seen to ignore one.
        Profile(name="lmstudio", cuts=True),
        Profile(name="deepseek", thinking="deepseek", echo_reasoning="reasoning_content"),
        Profile(
            name="mistral",
            stream_usage=False,
            call_id=r"[A-Za-z0-9]{9}",
            call_id_length=9,
            thinking="effort",
            efforts=("high",),
        ),
        Profile(name="zai", thinking="deepseek", cuts=True),
        Profile(name="groq", max_tokens="max_completion_tokens", thinking="effort"),
        Profile(name="litellm", thinking="effort", empty_tools=True),
        Profile(name="openrouter", thinking="openrouter"),
    )
}


def profile_of(name: str) -> Profile:
    """The profile of that name. Raises OptionsError where there is none."""
    if name not in PROFILES:
        raise OptionsError(f"There's no profile {name!r}.", hint=f"There are: {', '.join(sorted(PROFILES))}.")
    return PROFILES[name]
