"""LiteLLM's proxy, a server of Chat Completions that others wrote, between our models and a provider on this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import httpx
import pytest

from tests.models.asking import KEY, TOOL, Deltas, message, request, result, said
from tests.suites.fetched import FULL, environment
from tests.waiting import wait_until
from workbench.errors import ModelRequestError
from workbench.models.keys import Key
from workbench.models.openai_chat import OpenAIChat
from workbench.models.profiles import PROFILES
from workbench.models.wire import Endpoint
from workbench.testing import StubCall, StubModelServer, StubReply, StubUsage

pytestmark = pytest.mark.skipif(not FULL, reason="installing LiteLLM takes minutes: WORKBENCH_SUITES=full")

# By the name of each model: what the provider behind it speaks.
_BEHIND = {"chat": "openai/m", "messages": "anthropic/claude-sonnet-4-5"}
_SCRIPT = (
    StubReply(text="Grüße, 世界 😀.", usage=StubUsage(input=10, output=7)),
    StubReply(calls=[StubCall("add", {"a": 1}), StubCall("now")]),
    StubReply(text="Done."),
    StubReply(status=400, text="prompt is too long: 9 tokens > 8 maximum"),
)


@contextmanager
def _proxy(upstream: str, place: Path) -> Iterator[str]:
    """The proxy's base URL, while it runs."""
    program = environment("litellm", "litellm[proxy]").parent / "litellm"
    address = {"openai/m": f"{upstream}/v1"}
    models = [
        {
            "model_name": name,
            "litellm_params": {"model": model, "api_base": address.get(model, upstream), "api_key": "up"},
        }
        for name, model in _BEHIND.items()
    ]
    settings = {"telemetry": False, "num_retries": 0}
    # JSON is YAML too.
    configuration = {"model_list": models, "litellm_settings": settings, "general_settings": {"master_key": KEY}}
    (place / "config.yaml").write_text(json.dumps(configuration))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [program, "--config", place / "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    # Its list of prices is on another machine.
    variables = {"PATH": os.environ["PATH"], "HOME": str(place), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    log = place / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(argv, env=variables, cwd=place, stdout=output, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            return httpx.get(f"{url}/health/liveliness", trust_env=False).is_success
        except httpx.HTTPError:
            return False

    try:
        wait_until(answers, "the proxy answers", seconds=300)
        yield f"{url}/v1"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def test_litellms_proxy_is_understood_whatever_is_behind_it(tmp_path: Path) -> None:
    ways = [(name, stream) for name in _BEHIND for stream in (True, False)]
    with StubModelServer(*_SCRIPT * len(ways)) as stub, _proxy(stub.url, tmp_path) as url:
        endpoint = Endpoint(provider="litellm", base_url=url, key=Key(value=KEY))
        for name, stream in ways:
            anyio.run(_converse, OpenAIChat(name, endpoint, profile=PROFILES["litellm"], stream=stream))
        nobody = OpenAIChat("nobody", endpoint, profile=PROFILES["litellm"])
        with pytest.raises(ModelRequestError, match="Invalid model name") as caught:
            anyio.run(nobody.generate, request())
    assert "workbench models" in str(caught.value.hint)


async def _converse(model: OpenAIChat) -> None:
    deltas = Deltas()
    hello = await model.generate(request(message("user", "Hello.")), deltas)
    assert hello.content == deltas.text() == "Grüße, 世界 😀."
    assert (hello.usage.input_tokens, hello.usage.output_tokens) == (10, 7)
    asked = message("user", "Go.")
    calling = await model.generate(request(asked, tools=(TOOL,)))
    assert [(call.name, call.arguments) for call in calling.tool_calls] == [("add", {"a": 1}), ("now", {})]
    assert calling.finish_reason == "tool_calls"
    # No tools are offered any more, which the proxy minds where they were called before.
    conversation = (asked, said(calling), *map(result, calling.tool_calls))
    assert (await model.generate(request(*conversation))).content == "Done."
    with pytest.raises(ModelRequestError, match="prompt is too long") as caught:
        await model.generate(request(asked))
    assert (caught.value.code, caught.value.status) == ("context_overflow", 400)
