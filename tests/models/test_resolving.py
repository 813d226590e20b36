"""From a name to a model: keys, base URLs, a person's configuration, what is known of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.asking import KEY, request
from workbench.errors import ModelNotFoundError, ModelRequestError, OptionsError
from workbench.models.anthropic import Anthropic
from workbench.models.catalog import catalog, facts_of
from workbench.models.discovery import look, try_out
from workbench.models.gemini import Gemini
from workbench.models.openai_chat import OpenAIChat
from workbench.models.openai_responses import OpenAIResponses
from workbench.models.openrouter import OpenRouter
from workbench.models.profiles import PROFILES
from workbench.models.providers import PROVIDERS
from workbench.models.resolving import ProviderSettings, Settings, configured, load, resolve
from workbench.testing import StubCall, StubModelServer, StubReply

NONE = Settings()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No key, no base URL, no configuration but the test's own."""
    for provider in PROVIDERS.values():
        for name in (*provider.keys, *provider.urls):
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORKBENCH_CONFIG", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "variable", "kind"),
    [
        ("anthropic/claude-sonnet-4.6", "ANTHROPIC_API_KEY", Anthropic),
        ("openai/gpt-5", "OPENAI_API_KEY", OpenAIResponses),
        ("openai-chat/gpt-5", "OPENAI_API_KEY", OpenAIChat),
        ("gemini/gemini-3-pro-preview", "GOOGLE_API_KEY", Gemini),
        ("google/gemini-3-pro-preview", "GEMINI_API_KEY", Gemini),
        ("openrouter/anthropic/claude-sonnet-4.6", "OPENROUTER_API_KEY", OpenRouter),
        ("groq/openai/gpt-oss-20b", "GROQ_API_KEY", OpenAIChat),
    ],
)
def test_a_name_is_a_provider_and_a_model(
    name: str, variable: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelRequestError) as caught:
        resolve(name)
    assert (caught.value.code, caught.value.retryable) == ("auth", False)
    assert variable in caught.value.message
    monkeypatch.setenv(variable, KEY)
    model = resolve(name)
    assert isinstance(model, kind)
    assert model.info.id == name.replace("google/", "gemini/")
    assert model.info.context_window is None or model.info.context_window > 100_000
    assert KEY not in repr(vars(model))


@pytest.mark.parametrize("name", ["gpt-5", "nobody/m", "openai/", "", "/m"])
def test_a_name_that_names_nobody_is_an_error_with_a_next_step(name: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(name)
    assert caught.value.code == "model_not_found"
    assert caught.value.hint


@pytest.mark.parametrize("name", ["ollama", "vllm", "llamacpp", "lmstudio"])
def test_a_server_on_this_machine_needs_no_key(name: str) -> None:
    model = resolve(f"{name}/m")
    assert isinstance(model, OpenAIChat)
    assert model.profile is PROFILES[name]
    assert model.wire.endpoint.base_url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    ("variable", "value", "name", "url"),
    [
        ("OPENAI_BASE_URL", "http://h:1/v1/", "openai", "http://h:1/v1"),
        ("ANTHROPIC_BASE_URL", "http://h:1/v1", "anthropic", "http://h:1"),
        ("GOOGLE_GEMINI_BASE_URL", "http://h:1/v1beta/", "gemini", "http://h:1"),
        ("OLLAMA_HOST", "0.0.0.0:99", "ollama", "http://127.0.0.1:99/v1"),
        ("OLLAMA_HOST", "http://h:1/", "ollama", "http://h:1/v1"),
        ("OLLAMA_HOST", "0.0.0.0", "ollama", "http://127.0.0.1:11434/v1"),
        ("OLLAMA_HOST", ":99", "ollama", "http://127.0.0.1:99/v1"),
        ("OLLAMA_HOST", "[::]:99", "ollama", "http://[::1]:99/v1"),
        ("OLLAMA_HOST", "https://h/v1", "ollama", "https://h/v1"),
        ("AZURE_OPENAI_ENDPOINT", "h.invalid", "azure", "https://h.invalid/openai/v1"),
        ("AZURE_OPENAI_ENDPOINT", "http://h:1/", "azure", "http://h:1/openai/v1"),
        ("AZURE_OPENAI_ENDPOINT", "http://h:1/openai/v1", "azure", "http://h:1/openai/v1"),
    ],
)
def test_a_base_url_comes_from_its_variable(
    variable: str, value: str, name: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert configured(name, NONE).endpoint.base_url == url


def test_a_configuration_goes_before_the_variables(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://elsewhere:1/v1")
    monkeypatch.setenv("MY_KEY", KEY)
    (environment / "config.toml").write_text(
        """
        [providers.openai]
        base_url = "http://h:1/v1"
        key_variable = "MY_KEY"
        headers = { X-Team = "a" }
        proxy = "http://127.0.0.1:9"

        [providers.lab]
        api = "chat"
        profile = "deepseek"
        base_url = "http://10.0.0.7:8000/v1"

        [models."openai/gpt-5"]
        context_window = 1000

        [models."lab/qwen3"]
        context_window = 131072
        prices = { input = 0.0, output = 0.0 }

        [commit]
        policy = "never"
        """
    )
    overridden = resolve("openai/gpt-5")
    assert overridden.info.context_window == 1000
    assert overridden.facts.prices == facts_of("openai/gpt-5").prices
    endpoint = overridden.wire.endpoint
    assert (endpoint.base_url, endpoint.proxy, endpoint.headers["X-Team"]) == (
        "http://h:1/v1",
        "http://127.0.0.1:9",
        "a",
    )
    assert endpoint.key is not None
    assert endpoint.key.source == "$MY_KEY"
    own = resolve("lab/qwen3")
    assert isinstance(own, OpenAIChat)
    assert own.profile is PROFILES["deepseek"]
    assert own.info.context_window == 131_072
    assert own.facts.prices is not None


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[providers.openai]\nbase_urll = 'x'", "providers.openai.base_urll"),
        ("[providers.lab]\napi = 'soap'", "providers.lab.api"),
        ("[models.'a/b']\ncontext_window = 0", "models.a/b.context_window"),
        ("providers = 7", "providers"),
        ("[", "can't be read"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_an_error_that_says_where(
    text: str, place: str, environment: Path
) -> None:
    (environment / "config.toml").write_text(text)
    with pytest.raises(OptionsError) as caught:
        resolve("openai/gpt-5")
    assert place in caught.value.message


def test_a_provider_of_ones_own_needs_an_api_and_a_base_url() -> None:
    for said in (ProviderSettings(base_url="http://h"), ProviderSettings(api="chat")):
        with pytest.raises(OptionsError, match="api and a base_url"):
            resolve("lab/m", settings=Settings(providers={"lab": said}))
    odd = ProviderSettings(api="chat", base_url="http://h", profile="odd")
    with pytest.raises(OptionsError, match="odd"):
        resolve("lab/m", settings=Settings(providers={"lab": odd}))


def test_the_catalog_has_a_date_and_sane_numbers() -> None:
    assert catalog().date >= "2026"
    for id, facts in catalog().models.items():
        assert id.partition("/")[0] in PROVIDERS
        assert facts.context_window is None or 1_000 < facts.context_window < 100_000_000
        for prices in filter(None, (facts.prices, *facts.long)):
            assert 0 < prices.input <= prices.output < 1_000


@pytest.mark.parametrize(
    ("id", "same"),
    [
        ("anthropic/claude-sonnet-4-5-20250929", "anthropic/claude-sonnet-4-5"),
        ("anthropic/claude-sonnet-4.6", "anthropic/claude-sonnet-4-6"),
        ("openai/gpt-5-2025-08-07", "openai/gpt-5"),
        ("gemini/gemini-2.5-flash-001", "gemini/gemini-2.5-flash"),
    ],
)
def test_a_dated_name_is_its_model(id: str, same: str) -> None:
    assert facts_of(id) == catalog().models[same]


def test_what_is_not_known_stays_unknown() -> None:
    for id in ("openai/gpt-5-imagined", "lab/m", "m", "openrouter/nobody/m"):
        facts = facts_of(id)
        assert (facts.context_window, facts.supports_reasoning, facts.prices) == (None, None, None)


def test_a_routers_model_is_its_vendors_but_for_the_price() -> None:
    facts, own = facts_of("openrouter/anthropic/claude-sonnet-4.6"), facts_of("anthropic/claude-sonnet-4-6")
    assert facts.context_window == own.context_window
    assert (facts.prices, facts.long) == (None, ())


@pytest.mark.anyio
async def test_every_provider_is_looked_at_and_only_those_that_can_be_asked_are_asked() -> None:
    with StubModelServer(key=KEY, models=("qwen3", "llama")) as stub:
        command = f"echo {KEY}"
        said = {
            "openai": ProviderSettings(base_url=f"{stub.url}/v1", key_command=command),
            "anthropic": ProviderSettings(base_url=stub.url, key_command=command),
            "gemini": ProviderSettings(base_url=stub.url, key_command=command),
            "lab": ProviderSettings(api="chat", base_url=f"{stub.url}/v1", key_command="echo wrong-key"),
            "broken": ProviderSettings(api="chat"),
            **{
                name: ProviderSettings(base_url="http://127.0.0.1:1")
                for name in ("ollama", "vllm", "llamacpp", "lmstudio")
            },
        }
        reports = {report.name: report for report in await look(Settings(providers=said))}
    for name in ("openai", "anthropic", "gemini"):
        assert (reports[name].reachable, reports[name].models) == (True, ("qwen3", "llama"))
        assert reports[name].key == "a command"
    error = reports["lab"].error
    assert error is not None
    assert error.code == "auth"
    assert reports["broken"].error is not None
    assert (reports["groq"].configured, reports["groq"].reachable) == (False, None)
    assert reports["ollama"].reachable is False
    text = "".join(report.model_dump_json() for report in reports.values())
    assert KEY not in text
    assert "wrong-key" not in text


@pytest.mark.anyio
async def test_a_base_url_is_shown_without_what_may_be_secret() -> None:
    said = {
        "one": ProviderSettings(api="chat", base_url=f"http://me:{KEY}@127.0.0.1:1/v1"),
        "two": ProviderSettings(api="chat", base_url=f"http://127.0.0.1:1/v1?key={KEY}#{KEY}"),
        "three": ProviderSettings(base_url=f"http://{KEY}@h"),
        "four": ProviderSettings(api="chat", base_url=f"http://{KEY}@[h"),
    }
    settings = Settings(providers=said)
    for name in said:
        (report,) = await look(settings, name)
        assert report.error is not None
        assert report.error.code == "invalid_options"
        assert KEY not in report.model_dump_json()


@pytest.mark.anyio
async def test_a_model_is_tried_out_with_one_call() -> None:
    settings = Settings(providers={"lab": ProviderSettings(api="chat", base_url="http://h")})

    async def trial(reply: StubReply) -> tuple[bool, bool, bool, bool]:
        with StubModelServer(reply) as stub:
            said = settings.providers["lab"].model_copy(update={"base_url": stub.url})
            report = await try_out(resolve("lab/m", settings=Settings(providers={"lab": said})))
        return report.works, report.answered, report.called, report.arguments_right

    assert await trial(StubReply(calls=[StubCall("repeat", {"word": "workbench"})])) == (True, True, True, True)
    assert await trial(StubReply(calls=[StubCall("repeat", {"word": "x"})])) == (False, True, True, False)
    assert await trial(StubReply(text="workbench")) == (False, True, False, False)
    assert await trial(StubReply(status=404, text="No such model.")) == (False, False, False, False)


@pytest.mark.anyio
async def test_a_provider_may_be_asked_for_whole_replies() -> None:
    with StubModelServer(StubReply(text="Hi.")) as stub:
        said = ProviderSettings(api="chat", base_url=stub.url, stream=False)
        await resolve("lab/m", settings=Settings(providers={"lab": said})).generate(request())
    assert "stream" not in stub.requests[0].body


@pytest.mark.anyio
async def test_a_server_that_refuses_stream_options_is_asked_without() -> None:
    with StubModelServer(StubReply(text="Hi.")) as stub:
        said = ProviderSettings(api="chat", base_url=stub.url, stream_usage=False)
        await resolve("lab/m", settings=Settings(providers={"lab": said})).generate(request())
    assert "stream_options" not in stub.requests[0].body


def test_no_configuration_is_an_empty_one() -> None:
    assert load() == NONE
