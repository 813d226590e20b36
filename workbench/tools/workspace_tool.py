"""What the tools over a workspace share: arguments as a model, errors that a language model can act on."""

from __future__ import annotations

import errno
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from workbench.errors import WorkbenchError
from workbench.protocol.messages import ToolExecutionResult, ToolSchema
from workbench.tools.base import ToolContext
from workbench.vfs import paths

RESULT_CHARACTERS = 40_000
"""How long a result gets; the loop's own bound is in bytes of JSON, and leaves this whole where it is plain text."""


class Arguments(BaseModel):
    """What a tool is called with: nothing but its fields, and text isn't taken for a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


A = TypeVar("A", bound=Arguments)


class WorkspaceTool(Generic[A]):
    """A function over validated arguments as a tool; its name and its docstring are what the model reads.

    What it raises on purpose (WorkbenchError, OSError) is an error result with the next step in it; anything else is a
    defect, and passes through.
    """

    def __init__(
        self,
        function: Callable[[A], Awaitable[str | ToolExecutionResult]],
        arguments: type[A],
        *,
        permission: Literal["auto", "ask"] = "auto",
        parallel: bool = False,
        resources: Sequence[str] = (),
    ) -> None:
        """`parallel` and `resources` as in `ToolSchema`."""
        self._function = function
        self._arguments = arguments
        self._schema = ToolSchema(
            name=getattr(function, "__name__", ""),
            description=inspect.getdoc(function) or "",
            parameters=_without_titles(arguments.model_json_schema()),
            permission=permission,
            parallel=parallel,
            resources=tuple(resources),
        )

    @property
    def schema(self) -> ToolSchema:
        """What the model is offered."""
        return self._schema

    async def execute(self, args: dict[str, Any], context: ToolContext) -> ToolExecutionResult:
        """Run with arguments; see the class for what becomes of errors."""
        try:
            result = await self._function(self._arguments.model_validate(args))
        except ValidationError as error:
            return failed(issues(error))
        except WorkbenchError as error:
            return failed(f"{error.message} {error.hint}" if error.hint else error.message)
        except OSError as error:
            return failed(_told(error))
        return result if isinstance(result, ToolExecutionResult) else ToolExecutionResult(content=shortened(result))


def issues(error: ValidationError) -> str:
    """What is wrong with arguments, a line for each."""
    return "\n".join(f"{_where(issue['loc'])}: {issue['msg']}" for issue in error.errors())


def failed(message: str) -> ToolExecutionResult:
    """An expected failure, for the model to read."""
    return ToolExecutionResult(content=shortened(message), is_error=True)


def shortened(text: str, most: int = RESULT_CHARACTERS) -> str:
    """A text of at most about so many characters: its first and last half, and how much lies between."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def _told(error: OSError) -> str:
    if isinstance(error.filename, bytes):
        why = "it's a symlink that leads out of the workspace" if error.errno == errno.EXDEV else error.strerror
        return f"{paths.display(error.filename) or '.'}: {why}."
    return f"{error.strerror or error}."


def _where(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location)) or "arguments"


def _without_titles(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema without the titles that pydantic makes of names: they cost tokens and say nothing."""
    properties = {
        name: {key: value for key, value in field.items() if key != "title"}
        for name, field in schema.get("properties", {}).items()
    }
    kept = {key: value for key, value in schema.items() if key not in ("title", "description")}
    return {**kept, "properties": properties}
