"""What a project's own `.devcontainer/devcontainer.json` offers as an image: told to people, never used unasked."""

from __future__ import annotations

import json
import re
import shlex

from workbench.vfs import paths
from workbench.vfs.storage import Storage

PATH = b".devcontainer/devcontainer.json"

_SIZE_LIMIT = 1 << 20

# Strings are matched first, so that what looks like a comment in one stays.
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING_COMMA = re.compile(r'"(?:\\.|[^"\\])*"|,(?=\s*[\]}])', re.DOTALL)


def offered(root: Storage) -> str | None:
    """Say which image a project offers for its development, and how to use it.

    The file is the workspace's and proves nothing: a file that can't be read, or isn't one, offers nothing.

    Args:
        root: the workspace.

    Returns one line for people, or None.
    """
    try:
        with root.open(PATH) as file:
            text = file.read(_SIZE_LIMIT).decode("utf-8", "replace")
    except OSError:
        return None
    try:
        settings = json.loads(_without_comments(text))
    except (ValueError, RecursionError):
        return None
    if not isinstance(settings, dict):
        return None
    where = PATH.decode("ascii")
    if isinstance(image := settings.get("image"), str) and image:
        return f"{where} names the image {_shown(image)}: --image {_quoted(image)} uses it."
    build = settings.get("build")
    build = build if isinstance(build, dict) else {}
    recipe = build.get("dockerfile") or settings.get("dockerFile")
    if not isinstance(recipe, str) or not recipe:
        return None
    context = build.get("context", settings.get("context", "."))
    context = context if isinstance(context, str) and context else "."
    command = f"docker build -t NAME -f .devcontainer/{_quoted(recipe)} .devcontainer/{_quoted(context)}"
    return f"{where} builds an image from {_shown(recipe)}: `{command}`, then --image NAME uses it."


def _without_comments(text: str) -> str:
    text = _TOKEN.sub(lambda match: match[0] if match[0].startswith('"') else " ", text)
    return _TRAILING_COMMA.sub(lambda match: match[0] if match[0].startswith('"') else "", text)


def _shown(text: str) -> str:
    return paths.display(text.encode("utf-8", "surrogatepass"))


def _quoted(text: str) -> str:
    return _shown(shlex.quote(text))
