"""What a tool call does to files, told from its name and arguments, or from a record of what came of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from workbench.transcripts.edits import named_file, patch_texts
from workbench.transcripts.values import items, mapping, parse, string

_CONTENT = ("content", "contents", "file_text", "fileText", "newContent", "new_content", "text")
_OLD = ("old_string", "oldString", "old_str", "old_text", "oldText", "search", "old")
_NEW = ("new_string", "newString", "new_str", "new_text", "newText", "replace", "new")
_EVERYWHERE = ("replace_all", "replaceAll", "change_all", "allow_multiple")
_DIFF = ("diff", "patch", "unified_diff")
_WORKDIR = ("workdir", "cwd", "working_directory")
_SEARCH = re.compile(r"[<-]{6,} ?SEARCH>?\s*")
_MIDDLE = re.compile(r"={6,}\s*")
_REPLACED = re.compile(r"[>+]{6,} ?REPLACE>?\s*")
_ABOUT = re.compile(r":(?:start|end)_line:.*|-{5,}\s*")


@dataclass(frozen=True, slots=True)
class Write:
    """The whole content."""

    content: str


@dataclass(frozen=True, slots=True)
class Append:
    """Something at the end."""

    content: str


@dataclass(frozen=True, slots=True)
class Insert:
    """Something after so many lines."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Replacement:
    """A passage in the place of another, where that stands once, or `everywhere`. An empty `old` makes the file."""

    old: str
    new: str
    everywhere: bool = False


@dataclass(frozen=True, slots=True)
class Replace:
    """One after the other."""

    replacements: tuple[Replacement, ...]


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch that names its files, between `*** Begin Patch` and `*** End Patch`."""

    text: str


@dataclass(frozen=True, slots=True)
class Diff:
    """A file's hunks in the unified format, with or without headers; `moved_to` is its path after them."""

    text: str
    moved_to: str | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """A notebook's cell, by its id or its number: `mode` is `replace`, `insert` (after it) or `delete`."""

    id: str
    source: str
    mode: str
    kind: str


@dataclass(frozen=True, slots=True)
class Delete:
    """It goes."""


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """It was written, and the records don't say with what."""


Deed = Write | Append | Insert | Replace | Patch | Diff | Cell | Delete | Unrecorded


@dataclass(frozen=True, slots=True)
class FileChange:
    """What is done to a file. `path` is as recorded, empty where a patch names its files; a relative one starts at
    `directory`, where that is told."""

    path: str
    deed: Deed
    directory: str = ""


def changes_of_call(name: str, arguments: str) -> tuple[FileChange, ...]:
    """What a call does, in order; nothing where its arguments don't say."""
    try:
        given: object = parse(arguments.encode("utf-8", "replace"))
    except ValueError:
        given = arguments
    directory = next((string(mapping(given)[key]) for key in _WORKDIR if mapping(given).get(key)), "")
    if patches := patch_texts(given):
        return tuple(FileChange("", Patch(text), directory) for text in patches)
    path = named_file(mapping(given))
    if not path:
        return ()
    return (FileChange(path, _deed(name.lower(), mapping(given)), directory),)


def recorded_changes(record: object) -> tuple[FileChange, ...]:
    """What a record says of files that were written: their contents, or how they differ."""
    return tuple(_recorded(record, 0))


def _recorded(value: object, depth: int) -> Iterator[FileChange]:
    fields = mapping(value)
    listed = [(string(mapping(change).get("path")), change) for change in items(fields.get("changes"))]
    for path, change in listed + list(mapping(fields.get("changes")).items()):
        if path and (deed := _recorded_deed(mapping(change))) is not None:
            yield FileChange(path, deed)
    if depth < 3:
        for each in fields.values():
            yield from _recorded(each, depth + 1)


def _recorded_deed(change: dict[str, Any]) -> Deed | None:
    kind = string(change.get("type") or mapping(change.get("kind")).get("type") or change.get("kind"))
    diff = string(change.get("unified_diff") or change.get("diff"))
    if kind == "delete":
        return Delete()
    if kind == "add":
        return Write(string(change.get("content")) or diff)
    moved_to = string(change.get("move_path") or mapping(change.get("kind")).get("move_path")) or None
    return Diff(diff, moved_to) if diff or moved_to else None


def _deed(name: str, given: dict[str, Any]) -> Deed:
    if "delete" in name or "remove" in name:
        return Delete()
    if "new_source" in given or "notebook_path" in given:
        mode = string(given.get("edit_mode")) or "replace"
        cell = given.get("cell_id") if given.get("cell_id") is not None else given.get("cell_number")
        kind = string(given.get("cell_type")) or "code"
        return Cell("" if cell is None else str(cell), string(given.get("new_source")), mode, kind)
    if "insert_line" in given or given.get("command") == "insert":
        line = given.get("insert_line")
        text = _first(given, ("insert_text", *_NEW, "text"))
        return Insert(line, text) if isinstance(line, int) and text is not None else Unrecorded()
    if replacements := tuple(_replacements(given)):
        return Replace(replacements)
    if (diff := _first(given, _DIFF)) is not None and (deed := _of_diff(diff)) is not None:
        return deed
    content = _first(given, _CONTENT)
    if content is None:
        return Unrecorded()
    return Append(content) if given.get("mode") == "append" else Write(content)


def _replacements(given: dict[str, Any]) -> Iterator[Replacement]:
    several = next((given[key] for key in ("edits", "edit", "replacements") if key in given), None)
    for one in (given, *(map(mapping, items(several) or [several]))):
        old, new = _first(one, _OLD), _first(one, _NEW)
        if old is not None and new is not None:
            many = one.get("expected_replacements")
            everywhere = any(one.get(key) is True for key in _EVERYWHERE) or (isinstance(many, int) and many > 1)
            yield Replacement(old, new, everywhere)


def _of_diff(diff: str) -> Deed | None:
    if blocks := tuple(search_blocks(diff)):
        return Replace(blocks)
    return Diff(diff) if "@@" in diff else None


def search_blocks(text: str) -> Iterator[Replacement]:
    """The passages that stand between the marks SEARCH and REPLACE, each on a line of its own."""
    old: list[str] | None = None
    new: list[str] | None = None
    for line in text.split("\n"):
        if _SEARCH.fullmatch(line):
            old, new = [], None
        elif old is not None and new is None and _MIDDLE.fullmatch(line):
            new = []
        elif old is not None and new is not None and _REPLACED.fullmatch(line):
            yield Replacement("\n".join(old), "\n".join(new))
            old = new = None
        elif new is not None:
            new.append(line)
        elif old is not None and (old or not _ABOUT.fullmatch(line)):
            old.append(line)


def _first(given: dict[str, Any], names: tuple[str, ...]) -> str | None:
    return next((given[name] for name in names if isinstance(given.get(name), str)), None)
