"""Which files a tool call writes, told from its name and arguments."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from workbench.transcripts.models import EditAction
from workbench.transcripts.values import items, mapping, parse, string

_HEADERS: tuple[tuple[str, EditAction], ...] = (
    ("*** Add File: ", "add"),
    ("*** Update File: ", "update"),
    ("*** Delete File: ", "delete"),
)
_MOVE = "*** Move to: "
_PATCH = "*** Begin Patch"
_END = "*** End Patch"
_WRITERS = frozenset(
    (
        "create",
        "create_file",
        "create_new_file",
        "edit",
        "edit_file",
        "editor",
        "editedexistingfile",
        "newfilecreated",
        "multi_edit",
        "multiedit",
        "notebookedit",
        "replace",
        "search_replace",
        "str_replace",
        "str_replace_based_edit_tool",
        "str_replace_editor",
        "text_editor",
        "write",
        "write_file",
        "write_to_file",
        "replace_in_file",
        "apply_diff",
        "applieddiff",
        "edit_file_v2",
        "writefile",
        "strreplacefile",
    )
)
_PATHS = ("file_path", "filePath", "path", "absolute_path", "notebook_path", "target_file", "targetFile", "filepath")
_DELETERS = frozenset(("delete_file", "deletefile"))
_ONLY_READ = frozenset(("view", "read", "undo_edit"))


def written_files(name: str, arguments: object) -> Iterator[tuple[str, EditAction, str | None]]:
    """Each file that a call writes: its path, what is done to it, and its new path where it is moved."""
    tool = _tool(name)
    writes = tool in _WRITERS or tool in _DELETERS
    if isinstance(arguments, str):
        if _PATCH in arguments:
            yield from _patched(_patch_in(arguments))
            return
        # An escape may spell any letter of a patch.
        may_tell = arguments.startswith("{") and (writes or "\\u" in arguments)
        arguments = _parsed(arguments) if may_tell else None
    given = mapping(arguments)
    patches = []
    for value in given.values():
        for text in value if isinstance(value, list) else (value,):
            if isinstance(text, str) and _PATCH in text:
                patches.append(text)
    if patches:
        yield from _patched("\n".join(patches))
    elif writes and (path := named_file(given)):
        if tool in _DELETERS:
            yield path, "delete", None
        elif given.get("command") not in _ONLY_READ:
            yield path, "add" if given.get("command") == "create" else "update", None


@lru_cache(maxsize=256)
def _tool(name: str) -> str:
    return name.rpartition("__")[2].rpartition(".")[2].lower()


def named_file(arguments: dict[str, Any]) -> str:
    """The file that a call's arguments name, "" where there is none."""
    for key in _PATHS:
        if value := arguments.get(key):
            return string(value)
    return ""


def patch_texts(arguments: object) -> list[str]:
    """The patches that stand in a call's arguments, in commands too, each from its beginning to its end."""
    found = []
    for text in _strings(arguments):
        begin = text.find(_PATCH)
        while begin >= 0 and (end := text.find(_END, begin)) >= 0:
            found.append(text[begin : end + len(_END)])
            begin = text.find(_PATCH, end)
    return found


def _patched(patch: str) -> Iterator[tuple[str, EditAction, str | None]]:
    found: tuple[str, EditAction] | None = None
    for line in patch.splitlines():
        if line.startswith(_MOVE) and found is not None:
            yield found[0], "move", line.removeprefix(_MOVE).strip()
            found = None
            continue
        for header, action in _HEADERS:
            if line.startswith(header):
                if found is not None:
                    yield *found, None
                found = (line.removeprefix(header).strip(), action)
    if found is not None:
        yield *found, None


def _patch_in(arguments: str) -> str:
    """These arguments themselves, or strings in the JSON that they are."""
    parsed = _parsed(arguments)
    return arguments if parsed is None else "\n".join(_strings(parsed))


def _parsed(text: str) -> Any:
    try:
        return parse(text.encode("utf-8", "replace"))
    except ValueError:
        return None


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for each in [*items(value), *mapping(value).values()]:
        yield from _strings(each)
