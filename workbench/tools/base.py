"""What a tool is, what it's called with, and how a function becomes one."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import typing
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Literal, Protocol

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import to_jsonable_python

from workbench.errors import OptionsError, ToolError
from workbench.protocol.messages import ChatMessage, ToolExecutionResult, ToolSchema
from workbench.protocol.signal import CancelSignal


class ToolSession(Protocol):
    """The session as its tools see it; `metadata` is one map per session, shared by all its calls, for caches and counters."""

    @property
    def id(self) -> str: ...
    @property
    def workspace(self) -> str: ...
    @property
    def messages(self) -> tuple[ChatMessage, ...]: ...
    @property
    def metadata(self) -> MutableMapping[str, Any]: ...


class ToolContext(Protocol):
    """What a call knows of where it runs. `signal` is for tools in worker threads, which no cancel scope reaches."""

    @property
    def session(self) -> ToolSession: ...
    @property
    def call_id(self) -> str: ...
    @property
    def signal(self) -> CancelSignal: ...
    @property
    def logger(self) -> logging.Logger: ...
    def progress(self, message: str) -> None:
        """Tell the clients how it goes; callable from any thread."""


class Tool(Protocol):
    """Something that a model can call."""

    @property
    def schema(self) -> ToolSchema: ...
    def execute(
        self, args: dict[str, Any], context: ToolContext
    ) -> Awaitable[ToolExecutionResult] | ToolExecutionResult:
        """Run with validated arguments.

        A coroutine function runs in the event loop, any other in a worker thread. Whatever it raises is reported to the
        model as `tool_panicked`, a ToolError with its own code.
        """


def tool(
    *,
    name: str | None = None,
    permission: Literal["auto", "ask"] = "auto",
    parallel: bool = False,
    resources: Sequence[str] = (),
) -> Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function: its schema from the signature, the descriptions from the docstring.

    A parameter annotated as ToolContext gets the context and isn't offered to the model. What the function returns is the
    result's content: text as it is, None as nothing, a ToolExecutionResult as such, anything else as JSON. The decorator
    raises OptionsError where a parameter has no name to be given by, or a resource isn't a parameter.
    """

    def make(function: Callable[..., Any]) -> Tool:
        kind = _AsyncFunctionTool if inspect.iscoroutinefunction(function) else _FunctionTool
        return kind(function, name or function.__name__, permission, parallel, tuple(resources))

    return make


class _FunctionTool:
    """A tool made of a function, which runs in a worker thread."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        permission: Literal["auto", "ask"],
        parallel: bool,
        resources: tuple[str, ...],
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._arguments, self._context_names = _arguments_of(function, name)
        self._names = {key: str(field.alias) for key, field in self._arguments.model_fields.items()}
        if missing := [resource for resource in resources if resource not in self._names.values()]:
            raise OptionsError(f"The tool {name} has no parameter {missing[0]}, which it names as a resource.")
        documentation = docstring_parser.parse(inspect.getdoc(function) or "")
        description = "\n\n".join(
            part for part in (documentation.short_description, documentation.long_description) if part
        )
        self.schema = ToolSchema(
            name=name,
            description=description,
            parameters=_parameters(self._arguments),
            permission=permission,
            parallel=parallel,
            resources=resources,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself."""
        return self._function(*args, **kwargs)

    def execute(
        self, args: dict[str, Any], context: ToolContext
    ) -> Awaitable[ToolExecutionResult] | ToolExecutionResult:
        """Call the function. Raises ToolError (`invalid_arguments`), and whatever the function raises."""
        return _result(self._function(**self._keywords(args, context)))

    def _keywords(self, args: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        try:
            arguments = self._arguments.model_validate(args)
        except ValidationError as error:
            issues = "\n".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
            raise ToolError(issues, code="invalid_arguments") from error
        keywords = {name: getattr(arguments, key) for key, name in self._names.items()}
        return keywords | dict.fromkeys(self._context_names, context)


class _AsyncFunctionTool(_FunctionTool):
    """A tool made of a coroutine function."""

    async def execute(self, args: dict[str, Any], context: ToolContext) -> ToolExecutionResult:
        """As for any tool, in the event loop."""
        return _result(await self._function(**self._keywords(args, context)))


def _arguments_of(function: Callable[..., Any], name: str) -> tuple[type[BaseModel], tuple[str, ...]]:
    """A model of the parameters that a model gives, and the names of those that get the context."""
    hints = typing.get_type_hints(function, include_extras=True)
    described = {
        parameter.arg_name: parameter.description
        for parameter in docstring_parser.parse(inspect.getdoc(function) or "").params
    }
    fields: dict[str, Any] = {}
    contexts = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise OptionsError(f"The tool {name} can't be given its parameter {parameter.name} by name.")
        hint = hints.get(parameter.name, Any)
        if hint is ToolContext:
            contexts.append(parameter.name)
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        field = Field(default, alias=parameter.name, description=described.get(parameter.name))
        # Under its own name a parameter might be one of pydantic's.
        fields[f"argument_{len(fields)}"] = (hint, field)
    config = ConfigDict(extra="forbid")
    return create_model(name, __config__=config, **fields), tuple(contexts)


def _parameters(arguments: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema, without the titles that pydantic makes of the names: models pay for every token."""
    schema = arguments.model_json_schema()
    for part in (schema, *schema.get("properties", {}).values()):
        part.pop("title", None)
    return schema


def _result(value: object) -> ToolExecutionResult:
    if isinstance(value, ToolExecutionResult):
        return value
    if value is None or isinstance(value, str):
        return ToolExecutionResult(content=value or "")
    return ToolExecutionResult(content=json.dumps(to_jsonable_python(value), ensure_ascii=False))
