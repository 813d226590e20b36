"""Functions as tools: the schema from the signature and the docstring."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from workbench.errors import DuplicateToolError, OptionsError, ToolError
from workbench.protocol.messages import ToolExecutionResult
from workbench.protocol.signal import CancelSignal
from workbench.tools.base import Tool, ToolContext, tool
from workbench.tools.registry import ToolRegistry


class Point(BaseModel):
    x: int
    y: int = 0


@dataclass
class Context:
    """What a tool is given outside a run."""

    session: Any = None
    call_id: str = "call"
    signal: CancelSignal = None  # type: ignore[assignment]
    logger: logging.Logger = logging.getLogger("tests")  # noqa: RUF009

    def progress(self, message: str) -> None:
        """Nobody listens."""


def execute(one: Tool, **arguments: Any) -> ToolExecutionResult:
    result = one.execute(arguments, Context())
    assert isinstance(result, ToolExecutionResult)
    return result


@tool(permission="ask", parallel=True, resources=["path"])
def edit(path: str, context: ToolContext, mode: Literal["all", "first"] = "first", *, at: Point | None = None) -> str:
    """Edit a file.

    It stays where it is.

    Args:
        path: where it is
        mode: which matches
    """
    return f"{path} {mode} {at.x if at else '-'} {context.call_id}"


def test_the_schema_comes_from_the_signature_and_the_docstring() -> None:
    schema = edit.schema
    assert (schema.name, schema.description) == ("edit", "Edit a file.\n\nIt stays where it is.")
    assert (schema.permission, schema.parallel, schema.resources) == ("ask", True, ("path",))
    parameters = schema.parameters
    assert parameters["required"] == ["path"]
    assert parameters["additionalProperties"] is False
    assert parameters["properties"]["path"] == {"type": "string", "description": "where it is"}
    assert parameters["properties"]["mode"]["enum"] == ["all", "first"]
    assert set(parameters["properties"]) == {"path", "mode", "at"}


def test_arguments_become_what_the_function_is_annotated_with() -> None:
    assert execute(edit, path="a", at={"x": 3}).content == "a first 3 call"


def test_arguments_that_do_not_fit_are_an_error_that_says_where() -> None:
    with pytest.raises(ToolError) as raised:
        execute(edit, path="a", at={"x": "three"})
    assert raised.value.code == "invalid_arguments"
    assert raised.value.message.startswith("at.x: ")


def test_a_function_stays_callable_as_it_is() -> None:
    assert edit("a", Context()) == "a first - call"  # type: ignore[operator]
    assert edit.__doc__.startswith("Edit a file.")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (None, ""),
        ("text", "text"),
        ({"a": [1, "é"]}, '{"a": [1, "é"]}'),
        (Point(x=1), '{"x": 1, "y": 0}'),
        ([Point(x=1)], '[{"x": 1, "y": 0}]'),
        (3, "3"),
    ],
)
def test_what_a_function_returns_is_the_content(value: object, content: str) -> None:
    @tool()
    def give() -> Any:
        """Give."""
        return value

    assert execute(give).content == content


def test_a_result_is_returned_as_it_is() -> None:
    result = ToolExecutionResult(content="x", data=1, is_error=True, terminate=True)

    @tool()
    def give() -> ToolExecutionResult:
        """Give."""
        return result

    assert execute(give) is result


@pytest.mark.anyio
async def test_a_coroutine_function_is_awaited() -> None:
    @tool(name="other_name")
    async def give(number: Annotated[int, Field(ge=1)]) -> int:
        """Give."""
        return number

    assert give.schema.name == "other_name"
    assert give.schema.parameters["properties"]["number"]["minimum"] == 1
    assert (await give.execute({"number": 2}, Context())).content == "2"  # type: ignore[misc]


def test_parameters_may_be_called_what_a_model_has_of_its_own() -> None:
    @tool()
    def odd(json: str, model_config: str, schema: str = "s", _hidden: int = 1) -> str:
        """Odd names."""
        return f"{json} {model_config} {schema} {_hidden}"

    assert set(odd.schema.parameters["properties"]) == {"json", "model_config", "schema", "_hidden"}
    assert execute(odd, json="a", model_config="b", _hidden=2).content == "a b s 2"


def test_a_parameter_that_cannot_be_given_by_name_is_refused() -> None:
    with pytest.raises(OptionsError, match="args"):

        @tool()
        def many(*args: str) -> str:
            """Many."""
            return ""

    with pytest.raises(OptionsError, match="nowhere"):

        @tool(resources=["nowhere"])
        def one(path: str) -> str:
            """One."""
            return ""


def test_a_registry_sorts_by_name_and_refuses_a_second_tool_of_a_name() -> None:
    """ "register(tool): throws on duplicate name"; "list() and schemas() are sorted by tool name"; "register returns a
    disposer"."""
    registry = ToolRegistry()

    def named(name: str) -> Tool:
        @tool(name=name)
        def nothing() -> None:
            """Nothing."""

        return nothing

    tools = [named(name) for name in ("b", "c", "a")]
    disposers = [registry.register(one) for one in tools]
    assert [one.schema.name for one in registry.list()] == ["a", "b", "c"]
    assert [schema.name for schema in registry.schemas()] == ["a", "b", "c"]
    with pytest.raises(DuplicateToolError):
        registry.register(named("a"))
    assert (registry.get("a"), registry.get("x"), registry.size) == (tools[2], None, 3)
    disposers[2]()
    again = named("a")
    registry.register(again)
    disposers[2]()
    assert registry.get("a") is again
