"""What a conversation is exported as, one's own and another agent's alike."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Format(StrEnum):
    """A kind of document."""

    MARKDOWN = "markdown"
    JSON = "json"
    HTML = "html"


_SHORT = {"md": Format.MARKDOWN}


def _format(name: str) -> Format:
    try:
        return _SHORT.get(name) or Format(name)
    except ValueError:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(Format)} (md is markdown).") from None


def _completed(incomplete: str) -> list[str]:
    return [name for name in Format if name.startswith(incomplete)]


FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        metavar="|".join(Format),
        parser=_format,
        autocompletion=_completed,
        help="Markdown (md for short), one HTML file that loads nothing, or all of it as JSON.",
    ),
]
