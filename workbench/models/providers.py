"""Who offers models, and how they're asked: data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Api = Literal["chat", "responses", "messages", "gemini", "openrouter"]

# Where each wire format lists its models.
LISTS: dict[Api, str] = {
    "chat": "/models",
    "responses": "/models",
    "openrouter": "/models",
    "messages": "/v1/models",
    "gemini": "/v1beta/models",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Provider:
    """One provider.

    `profile` is the dialect of a server of Chat Completions. `keys` and `urls` are the variables that hold its key and
    its base URL, the first one set counts. `url_suffix` is what a URL from a variable lacks. A `local` one runs on this
    machine unless it's told otherwise, and needs no key.
    """

    name: str
    api: Api
    base_url: str = ""
    profile: str = "compatible"
    keys: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    url_suffix: str = ""
    key_header: str = ""
    local: bool = False


PROVIDERS = {
    provider.name: provider
    for provider in (
        Provider(
            name="anthropic",
            api="messages",
            base_url="https://api.anthropic.com",
            keys=("ANTHROPIC_API_KEY",),
            urls=("ANTHROPIC_BASE_URL",),
        ),
        Provider(
            name="openai",
            api="responses",
            base_url="https://api.openai.com/v1",
            keys=("OPENAI_API_KEY",),
            urls=("OPENAI_BASE_URL",),
        ),
        Provider(
            name="openai-chat",
            api="chat",
            base_url="https://api.openai.com/v1",
            profile="openai",
            keys=("OPENAI_API_KEY",),
            urls=("OPENAI_BASE_URL",),
        ),
        Provider(
            name="azure",
            api="chat",
            profile="azure",
            keys=("AZURE_OPENAI_API_KEY",),
            urls=("AZURE_OPENAI_ENDPOINT",),
            url_suffix="/openai/v1",
            key_header="api-key",
        ),
        Provider(
            name="gemini",
            api="gemini",
            base_url="https://generativelanguage.googleapis.com",
            keys=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
            urls=("GOOGLE_GEMINI_BASE_URL",),
        ),
        Provider(
            name="openrouter",
            api="openrouter",
            base_url="https://openrouter.ai/api/v1",
            keys=("OPENROUTER_API_KEY",),
            urls=("OPENROUTER_BASE_URL",),
        ),
        Provider(
            name="deepseek",
            api="chat",
            base_url="https://api.deepseek.com",
            profile="deepseek",
            keys=("DEEPSEEK_API_KEY",),
            urls=("DEEPSEEK_BASE_URL",),
        ),
        Provider(
            name="mistral",
            api="chat",
            base_url="https://api.mistral.ai/v1",
            profile="mistral",
            keys=("MISTRAL_API_KEY",),
            urls=("MISTRAL_BASE_URL",),
        ),
        Provider(
            name="groq",
            api="chat",
            base_url="https://api.groq.com/openai/v1",
            profile="groq",
            keys=("GROQ_API_KEY",),
            urls=("GROQ_BASE_URL",),
        ),
        Provider(
            name="ollama",
            api="chat",
            base_url="http://127.0.0.1:11434/v1",
            profile="ollama",
            keys=("OLLAMA_API_KEY",),
            urls=("OLLAMA_HOST",),
            url_suffix="/v1",
            local=True,
        ),
        Provider(
            name="vllm",
            api="chat",
            base_url="http://127.0.0.1:8000/v1",
            profile="vllm",
            keys=("VLLM_API_KEY",),
            urls=("VLLM_BASE_URL",),
            local=True,
        ),
        Provider(
            name="llamacpp",
            api="chat",
            base_url="http://127.0.0.1:8080/v1",
            profile="llamacpp",
            keys=("LLAMA_API_KEY",),
            urls=("LLAMACPP_BASE_URL",),
            local=True,
        ),
        Provider(
            name="lmstudio",
            api="chat",
            base_url="http://127.0.0.1:1234/v1",
            profile="lmstudio",
            keys=("LMSTUDIO_API_KEY",),
            urls=("LMSTUDIO_BASE_URL",),
            local=True,
        ),
    )
}
