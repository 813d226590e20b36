"""The registries of models and tools: what is the default, what is replaced, in which order they are listed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from workbench.agent.models import ModelRegistry
from workbench.errors import DuplicateToolError, ModelNotFoundError
from workbench.protocol.messages import (
    CompletionRequest,
    CompletionResponse,
    ModelInfo,
    TokenDelta,
    ToolExecutionResult,
    ToolSchema,
)
from workbench.tools.base import ToolContext
from workbench.tools.registry import ToolRegistry


class Model:
    def __init__(self, id: str, label: str | None = None) -> None:
        self.info = ModelInfo(id=id, provider="test", label=label)

    async def generate(
        self, request: CompletionRequest, on_delta: Callable[[TokenDelta], None] | None = None
    ) -> CompletionResponse:
        raise NotImplementedError


class Tool:
    def __init__(self, name: str) -> None:
        self.schema = ToolSchema(name=name, description="", parameters={"type": "object"})

    def execute(self, args: dict[str, Any], context: ToolContext) -> ToolExecutionResult:
        raise NotImplementedError


def test_the_first_registered_model_becomes_the_default() -> None:
    """ "The first registered model becomes the default unless defaultModel was configured"; "get defaultModel"."""
    models = ModelRegistry()
    assert models.default_model is None
    first = Model("first")
    models.register(first)
    models.register(Model("a second"))
    assert models.default_model == "first"
    assert models.get() is first


def test_a_configured_default_is_the_default_whenever_it_comes() -> None:
    """ "The first registered model becomes the default unless defaultModel was configured"; "constructor(options?: {
    defaultModel? })"."""
    models = ModelRegistry(default_model="configured")
    models.register(Model("first"))
    assert models.default_model == "configured"
    with pytest.raises(ModelNotFoundError) as raised:
        models.get()
    assert raised.value.code == "model_not_found"
    assert raised.value.hint is not None
    assert "first" in raised.value.hint
    configured = Model("configured")
    dispose = models.register(configured)
    assert models.get() is configured
    dispose()
    models.register(Model("third"))
    assert models.default_model is None
    models.register(configured)
    assert models.default_model == "configured"


@pytest.mark.parametrize("by", ["set_default", "register"])
def test_an_explicit_choice_is_overridden_by_no_later_registration(by: str) -> None:
    """ "setDefault marks an explicit choice, which later registrations cannot override"; "register(model, { setDefault
    })"."""
    for configured in (None, "configured"):
        models = ModelRegistry(default_model=configured)
        models.register(Model("first"))
        models.register(Model("chosen"), set_default=by == "register")
        if by == "set_default":
            models.set_default("chosen")
        for id in ("configured", "first", "another", "chosen"):
            models.register(Model(id))
            assert models.default_model == "chosen"
        models.register(Model("chosen later"), set_default=True)
        assert models.default_model == "chosen later"


def test_once_the_default_is_disposed_of_there_is_none() -> None:
    """Disposal of the default is defined: none of the others takes its place by itself."""
    models = ModelRegistry()
    dispose = models.register(Model("first"))
    dispose_second = models.register(Model("second"))
    dispose()
    assert models.default_model is None
    with pytest.raises(ModelNotFoundError) as raised:
        models.get()
    assert raised.value.code == "no_default_model"
    assert raised.value.hint is not None
    assert "second" in raised.value.hint
    models.set_default("second")
    assert models.get().info.id == "second"
    dispose_second()
    assert models.default_model is None
    models.register(Model("third"))
    assert models.default_model == "third"


def test_disposing_of_another_leaves_the_default() -> None:
    """ "register returns a disposer": a second call does nothing."""
    models = ModelRegistry()
    models.register(Model("first"))
    with models.register(Model("second")) as dispose:
        assert models.has("second")
    assert not models.has("second")
    assert models.default_model == "first"
    dispose()
    assert models.size == 1


def test_registering_an_id_again_replaces_its_model_and_the_old_disposer_does_nothing() -> None:
    """register returns a disposer."""
    models = ModelRegistry()
    dispose_old = models.register(Model("m", "old"))
    dispose_new = models.register(Model("m", "new"))
    dispose_old()
    assert models.size == 1
    assert models.get("m").info.label == "new"
    assert models.default_model == "m"
    dispose_new()
    assert (models.size, models.default_model) == (0, None)


def test_a_missing_model_can_not_be_had_or_chosen() -> None:
    """ "get(id?): throws when missing or no default"; "has(id): boolean"."""
    models = ModelRegistry()
    models.register(Model("m"))
    for attempt in (models.get, models.set_default):
        with pytest.raises(ModelNotFoundError) as raised:
            attempt("missing")
        assert raised.value.code == "model_not_found"
    assert models.default_model == "m"
    assert not models.has("missing")


def test_models_are_listed_by_id_whatever_the_order_of_their_coming() -> None:
    """ "list(): ModelInfo[]"; "get size(): number"."""
    models = ModelRegistry()
    for id in ("c", "a", "b"):
        models.register(Model(id))
    assert [info.id for info in models.list()] == ["a", "b", "c"]
    assert models.size == 3


def test_a_second_tool_of_one_name_is_refused_until_the_first_is_disposed_of() -> None:
    """ "register(tool): () => void; throws on duplicate name"; "get(name): Tool | undefined"."""
    tools = ToolRegistry()
    first = Tool("t")
    dispose = tools.register(first)
    with pytest.raises(DuplicateToolError) as raised:
        tools.register(Tool("t"))
    assert raised.value.code == "duplicate_tool"
    assert tools.get("t") is first
    dispose()
    assert tools.get("t") is None
    second = Tool("t")
    tools.register(second)
    dispose()
    assert tools.get("t") is second


def test_tools_and_schemas_are_sorted_by_name() -> None:
    """ "list() and schemas() are sorted by tool name so prompts and console output are stable across restarts"; "get
    size(): number"."""
    tools = ToolRegistry()
    for name in ("c", "a", "b"):
        tools.register(Tool(name))
    assert [tool.schema.name for tool in tools.list()] == ["a", "b", "c"]
    assert [schema.name for schema in tools.schemas()] == ["a", "b", "c"]
    assert tools.size == 3
