"""From a name, `provider/model`, to a model that can be asked.

Keys and base URLs come from what is passed, else from config.toml, else from the usual variables. ::

    [providers.anthropic]
    key_command = "pass show anthropic"     # or key_variable = "MY_KEY"
    proxy = "http://127.0.0.1:3128"         # else what HTTPS_PROXY and NO_PROXY say

    [providers.lab]                         # a provider of one's own
    api = "chat"                            # chat, responses, messages, gemini, openrouter
    profile = "vllm"
    base_url = "http://10.0.0.7:8000/v1"
    stream_usage = false                    # it refuses to be asked for the usage of a stream

    [models."lab/qwen3"]                    # goes before what is known
    context_window = 131072
    prices = { input = 0.0, output = 0.0 }
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict, Field

from workbench import config
from workbench.errors import ModelNotFoundError, ModelRequestError, OptionsError
from workbench.models.adapter import WireModel
from workbench.models.anthropic import Anthropic
from workbench.models.catalog import ModelFacts, facts_of
from workbench.models.gemini import Gemini
from workbench.models.keys import Key
from workbench.models.openai_chat import OpenAIChat
from workbench.models.openai_responses import OpenAIResponses
from workbench.models.openrouter import OpenRouter
from workbench.models.profiles import Profile, profile_of
from workbench.models.providers import LISTS, PROVIDERS, Api, Provider
from workbench.models.wire import PATIENT, Endpoint, Timeouts, Wire

_ALIASES = {"google": "gemini", "openai-responses": "openai"}
# Whose models are known under another provider's name.
_SAME_MODELS = {**_ALIASES, "openai-chat": "openai"}
_CLASSES: dict[Api, type[WireModel]] = {
    "chat": OpenAIChat,
    "responses": OpenAIResponses,
    "messages": Anthropic,
    "gemini": Gemini,
    "openrouter": OpenRouter,
}


class ProviderSettings(BaseModel):
    """A `[providers.NAME]` table; empty is what is known of that provider."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    api: Api | None = None
    profile: str = ""
    base_url: str = ""
    key_variable: str = ""
    key_command: str = ""
    headers: dict[str, str] = Field(default_factory=dict)
    query: dict[str, str] = Field(default_factory=dict)
    proxy: str | None = None
    routing: dict[str, Any] = Field(default_factory=dict)
    stream: bool = True
    stream_usage: bool | None = None


class Settings(BaseModel):
    """What the person's configuration says of models."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    providers: dict[str, ProviderSettings] = Field(default_factory=dict)
    models: dict[str, ModelFacts] = Field(default_factory=dict)


def load() -> Settings:
    """The person's settings. Raises OptionsError where they can't be read."""
    return config.read(Settings, "providers", "models", hint="Correct it: no model is asked until then.")


@dataclass(frozen=True, slots=True)
class Configured:
    """A provider as it would be asked; `missing` says in a sentence what it lacks, empty where nothing."""

    provider: Provider
    settings: ProviderSettings
    endpoint: Endpoint
    missing: str = ""

    def wire(self) -> Wire:
        """The wire to it, for a look at what it offers. Raises OptionsError."""
        return Wire(_CLASSES[self.provider.api].completed(self.endpoint))

    @property
    def list_path(self) -> str:
        """Where it lists its models."""
        return LISTS[self.provider.api]


def names(settings: Settings) -> list[str]:
    """All providers that are known: ours, then the person's own."""
    return [*PROVIDERS, *(name for name in settings.providers if name not in PROVIDERS)]


def canonical(name: str) -> str:
    """The name that a provider is listed under."""
    return _ALIASES.get(name, name)


def configured(
    name: str,
    settings: Settings,
    *,
    key_command: str = "",
    timeouts: Timeouts = PATIENT,
    transport: httpx.AsyncBaseTransport | None = None,
) -> Configured:
    """How the provider of that name would be asked. Raises ModelNotFoundError and OptionsError."""
    name = canonical(name)
    said = settings.providers.get(name, ProviderSettings())
    provider = _provider(name, said)
    key = _key(provider, said, key_command)
    endpoint = Endpoint(
        provider=name,
        base_url=_base_url(provider, said),
        key=key,
        key_header=provider.key_header,
        headers=said.headers,
        query=said.query,
        proxy=said.proxy,
        timeouts=timeouts,
        transport=transport,
    )
    missing = ""
    if not endpoint.base_url:
        missing = f"{name} has no base URL{_of_variable(provider.urls)}."
    elif key is None and not provider.local and provider.keys:
        missing = f"{name} has no key{_of_variable(provider.keys)}."
    return Configured(provider, said, endpoint, missing)


def resolve(
    name: str,
    *,
    key_command: str = "",
    settings: Settings | None = None,
    timeouts: Timeouts = PATIENT,
    transport: httpx.AsyncBaseTransport | None = None,
) -> WireModel:
    """The model `provider/model`; `settings` None are the person's.

    Raises ModelNotFoundError where there's no such provider, ModelRequestError (auth) where it has no key, OptionsError
    where the settings can't be used.
    """
    provider_name, _, model = name.partition("/")
    settings = load() if settings is None else settings
    if not model:
        raise ModelNotFoundError(
            f"{name!r} names no provider.", hint="A model is named provider/model, such as openai/gpt-5."
        )
    found = configured(provider_name, settings, key_command=key_command, timeouts=timeouts, transport=transport)
    if found.missing:
        raise ModelRequestError(
            found.missing, code="auth", provider=found.provider.name, hint="Or give a --key-command that prints it."
        )
    options: Mapping[str, Any] = {"facts": facts(name, settings), "stream": found.settings.stream}
    if found.provider.api == "openrouter":
        return OpenRouter(model, found.endpoint, routing=found.settings.routing, **options)
    if found.provider.api == "chat":
        return OpenAIChat(model, found.endpoint, profile=_profile(found), **options)
    return _CLASSES[found.provider.api](model, found.endpoint, **options)


def facts(name: str, settings: Settings) -> ModelFacts:
    """What is known of the model `provider/model`: what the settings say, else the catalog."""
    provider, _, model = name.partition("/")
    known = facts_of(f"{_SAME_MODELS.get(provider, provider)}/{model}")
    said = settings.models.get(name)
    return known.model_copy(
        update={} if said is None else {field: getattr(said, field) for field in said.model_fields_set}
    )


def _profile(found: Configured) -> Profile:
    profile, usage = profile_of(found.provider.profile), found.settings.stream_usage
    return profile if usage is None else replace(profile, stream_usage=usage)


def _provider(name: str, said: ProviderSettings) -> Provider:
    known = PROVIDERS.get(name)
    if known is None and (said.api is None or not said.base_url):
        if said == ProviderSettings():
            raise ModelNotFoundError(
                f"There's no provider {name!r}.", hint="workbench models lists them; config.toml can add one."
            )
        raise OptionsError(
            f"[providers.{name}] needs an api and a base_url.", hint=f"The api is one of {', '.join(LISTS)}."
        )
    if known is None:
        assert said.api is not None
        return Provider(name=name, api=said.api, profile=said.profile or "compatible")
    return replace(known, api=said.api or known.api, profile=said.profile or known.profile)


def _key(provider: Provider, said: ProviderSettings, key_command: str) -> Key | None:
    if key_command or said.key_command:
        return Key(command=key_command or said.key_command)
    if said.key_variable:
        return Key(variable=said.key_variable)
    return next((Key(variable=variable) for variable in provider.keys if os.environ.get(variable, "").strip()), None)


def _base_url(provider: Provider, said: ProviderSettings) -> str:
    url = said.base_url
    if not url:
        url = next(filter(None, (os.environ.get(variable, "").strip() for variable in provider.urls)), "")
        if url and provider.url_suffix:
            url = _completed(url, provider).rstrip("/").removesuffix(provider.url_suffix) + provider.url_suffix
    url = (url or provider.base_url).rstrip("/")
    # These two formats have their version in the path, and many gateways' URLs have it too.
    return url.removesuffix({"messages": "/v1", "gemini": "/v1beta"}.get(provider.api, "\0"))


def _completed(url: str, provider: Provider) -> str:
    """What OLLAMA_HOST and its like hold as a URL: often only a host or a port, or the address to listen at."""
    usual = httpx.URL(provider.base_url or "https://")
    try:
        parsed = httpx.URL(url if "://" in url else f"{usual.scheme}://{url}")
    except httpx.InvalidURL:
        return url
    host = {"": usual.host, "0.0.0.0": "127.0.0.1", "::": "::1"}.get(parsed.host, parsed.host)
    return str(parsed.copy_with(host=host, port=parsed.port if "://" in url else parsed.port or usual.port))


def _of_variable(variables: tuple[str, ...]) -> str:
    return f": {' or '.join(f'${variable}' for variable in variables)} isn't set" if variables else ""
