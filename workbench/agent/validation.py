"""Whether arguments are what a tool's schema says, in words that a model can act on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry

from workbench.protocol.records import INTEGER_BITS, Frozen

_ISSUES = 20
_MESSAGE_CHARACTERS = 300
_LEVELS = 100


class JsonValidationIssue(Frozen):
    """One thing wrong with a value; `path` is as in `items[2].name`, empty for the value itself."""

    path: str
    message: str


def validate_arguments(schema: Mapping[str, Any], args: object) -> tuple[JsonValidationIssue, ...]:
    """What is wrong with `args`, the first of it in the order of the paths; nothing where they fit the schema.

    Raises jsonschema's and referencing's errors where the schema itself is wrong, or refers to something outside itself.
    """
    # An empty registry: a reference must not become a request.
    validator = Draft202012Validator(schema, registry=Registry())
    issues = [
        JsonValidationIssue(path=_path(error.absolute_path), message=_cut(error.message))
        for error in islice(validator.iter_errors(args), _ISSUES)
    ]
    return tuple(sorted(issues, key=lambda issue: (issue.path, issue.message)))


def is_plain_json(value: object) -> bool:
    """Whether a value is made of what JSON has, nested in at most a hundred levels: no copy, store or request fails over it.

    JSON has neither infinity nor what is no number; and of an integer Python writes no more than some thousand digits.
    """
    level = [value]
    for _ in range(_LEVELS):
        deeper: list[object] = []
        for one in level:
            if isinstance(one, dict):
                if not all(isinstance(key, str) for key in one):
                    return False
                deeper.extend(one.values())
            elif isinstance(one, list | tuple):
                deeper.extend(one)
            elif isinstance(one, float):
                if not math.isfinite(one):
                    return False
            elif isinstance(one, int):
                if one.bit_length() > INTEGER_BITS:
                    return False
            elif not (one is None or isinstance(one, str)):
                return False
        if not deeper:
            return True
        level = deeper
    return False


def format_validation_issues(issues: Sequence[JsonValidationIssue]) -> str:
    """`path: message`, a line each; what is wrong with the value itself has no path."""
    return "\n".join(f"{issue.path}: {issue.message}" if issue.path else issue.message for issue in issues)


def _path(parts: Iterable[str | int]) -> str:
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _cut(message: str) -> str:
    # The message repeats the value, however long that is.
    return message if len(message) <= _MESSAGE_CHARACTERS else message[:_MESSAGE_CHARACTERS] + "…"
