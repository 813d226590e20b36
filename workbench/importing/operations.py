"""What was done to one file, forwards and backwards, on contents in memory."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from workbench.errors import ToolError
from workbench.tools import hunks, patches, text
from workbench.tools.patches import Hunk
from workbench.tools.replacing import replace as put
from workbench.transcripts.changes import Append, Cell, Deed, Delete, Diff, Insert, Replace, Replacement, Write


class Unknown(Enum):
    """A content of which the records say only that there was one, or none."""

    UNKNOWN = "unknown"


UNKNOWN = Unknown.UNKNOWN
Content = bytes | None | Unknown
"""A file's bytes, None where there is none."""
Files = Mapping[bytes, Content]


class UnfitError(Exception):
    """An operation that doesn't fit what is there; why, as part of a sentence."""


@dataclass(frozen=True, slots=True)
class Hunks:
    """A file's hunks, parsed."""

    hunks: tuple[Hunk, ...]


FileDeed = Append | Cell | Delete | Hunks | Insert | Replace | Write


@dataclass(frozen=True, slots=True)
class Operation:
    """One deed on the file at a path, which is then at `target`. `creates` says that nothing was there before."""

    path: bytes
    deed: FileDeed
    target: bytes
    creates: bool = False

    def forward(self, files: Files) -> Files:
        """The files after it. Raises UnfitError."""
        now = files[self.path]
        if self.target != self.path and files[self.target] not in (None, UNKNOWN):
            raise UnfitError("something is at its new path already")
        after = self._after(now)
        if self.target == self.path:
            return {**files, self.path: after}
        return {**files, self.path: None, self.target: after}

    def _after(self, now: Content) -> Content:
        deed = self.deed
        if isinstance(deed, Write):
            made = deed.content.encode("utf-8", "replace")
            if self.creates and isinstance(now, bytes) and now != made:
                raise UnfitError("a file with another content is there")
            return made
        if now is UNKNOWN:
            return UNKNOWN if not isinstance(deed, Delete) else None
        if isinstance(deed, Append):
            return (now or b"") + deed.content.encode("utf-8", "replace")
        if isinstance(deed, Replace) and not now and deed.replacements[0].old == "":
            first, *rest = deed.replacements
            now = first.new.encode("utf-8", "replace")
            return _edited(now, lambda old: _replaced(old, rest)) if rest else now
        if now is None:
            raise UnfitError("no such file is there")
        match deed:
            case Delete():
                return None
            case Insert():
                return _edited(now, lambda old: _inserted(old, deed))
            case Replace():
                return _edited(now, lambda old: _replaced(old, deed.replacements))
            case Hunks():
                return _edited(now, lambda old: _patched(old, deed.hunks)) if deed.hunks else now
            case Cell():
                return _with_cell(now, deed)

    def backward(self, files: Files) -> Files | None:
        """The files before it, as far as they can be told from those after it; None where it can't have been done."""
        now = files[self.target]
        if self.target != self.path and files[self.path] not in (None, UNKNOWN):
            return None
        if self._removes and self._fits(files):
            return None
        before = now if now is UNKNOWN else self._before(now)
        if before is _NOT_DONE:
            return None
        if self.target == self.path:
            return {**files, self.path: before}
        return {**files, self.target: None, self.path: before}

    @property
    def _removes(self) -> bool:
        """Whether what it's made on isn't there any more after it."""
        match self.deed:
            case Replace(replacements):
                return any(each.old not in each.new for each in replacements)
            case Hunks(hunks):
                return any("\n".join(hunk.old) not in "\n".join(_turned(hunk).old) for hunk in hunks)
            case _:
                return False

    def _fits(self, files: Files) -> bool:
        try:
            return self.forward(files) != files
        except UnfitError:
            return False

    def _before(self, now: bytes | None) -> Any:
        deed = self.deed
        if isinstance(deed, Delete):
            return UNKNOWN if now is None else _NOT_DONE
        if now is None or isinstance(deed, Cell):
            return _NOT_DONE
        if isinstance(deed, Write):
            if now != deed.content.encode("utf-8", "replace"):
                return _NOT_DONE
            return None if self.creates else UNKNOWN
        if isinstance(deed, Append):
            added = deed.content.encode("utf-8", "replace")
            return (now.removesuffix(added) or None) if added and now.endswith(added) else _NOT_DONE
        try:
            match deed:
                case Insert():
                    return _edited(now, lambda old: _uninserted(old, deed))
                case Hunks():
                    return (
                        _edited(now, lambda old: _patched(old, tuple(map(_turned, deed.hunks)))) if deed.hunks else now
                    )
                case Replace():
                    return self._unreplaced(now, deed)
        except UnfitError:
            return _NOT_DONE

    def _unreplaced(self, now: bytes, deed: Replace) -> Any:
        first, *rest = deed.replacements
        if first.old == "" and not rest:
            return None if now == first.new.encode("utf-8", "replace") else _NOT_DONE
        turned = [Replacement(each.new, each.old, each.everywhere) for each in reversed(deed.replacements)]
        return _edited(now, lambda old: _replaced(old, turned))


_NOT_DONE = object()


def of_diff(diff: Diff) -> Hunks:
    """The hunks of a diff of one file. Raises UnfitError where it can't be read."""
    if not diff.text.strip():
        return Hunks(())
    whole = diff.text if "\n+++ " in f"\n{diff.text}" else f"--- file\n+++ file\n{diff.text}"
    try:
        return Hunks(tuple(patches.parse(whole)[0].hunks))
    except ToolError as error:
        raise UnfitError("its record can't be read as a patch") from error


def of_patch(patch: str) -> list[tuple[str, FileDeed, str, bool]]:
    """Each file of a patch: its path, what is done to it, its path afterwards, whether it's made. Raises UnfitError."""
    try:
        files = patches.parse(patch)
    except ToolError as error:
        raise UnfitError("its record can't be read as a patch") from error
    found: list[tuple[str, FileDeed, str, bool]] = []
    for file in files:
        if file.old is None:
            made = _patched(text.Text(""), tuple(file.hunks))
            found.append((file.new or "", Write(made), file.new or "", True))
        elif file.new is None:
            found.append((file.old, Delete(), file.old, False))
        else:
            found.append((file.old, Hunks(tuple(file.hunks)), file.new, False))
    return found


def said(deed: Deed | Hunks) -> str:
    """What is done, as one word."""
    match deed:
        case Write():
            return "write"
        case Delete():
            return "delete"
        case _:
            return "edit"


def _edited(data: bytes, edit: Any) -> bytes:
    old = text.decoded(data)
    if old is None:
        raise UnfitError("a binary file is there")
    try:
        return old.encoded(edit(old))
    except UnicodeEncodeError as error:
        raise UnfitError("the file's encoding lacks a character of it") from error


def _replaced(old: text.Text, replacements: Any) -> str:
    for each in replacements:
        try:
            done = put(old, each.old, each.new, everywhere=each.everywhere)
        except ToolError as error:
            raise UnfitError("the old text isn't there, or more than once") from error
        if done.loosely:
            raise UnfitError("the old text isn't there to the letter")
        old = replace(old, text=done.text)
    return old.text


def _patched(old: text.Text, wanted: tuple[Hunk, ...]) -> str:
    try:
        return hunks.apply(old, wanted, "the file")
    except ToolError as error:
        raise UnfitError("the lines of the patch aren't there") from error


def _turned(hunk: Hunk) -> Hunk:
    signs = {"+": "-", "-": "+"}
    lines = [(signs.get(sign, sign), line) for sign, line in hunk.lines]
    return replace(hunk, lines=lines, ends_old=hunk.ends_new, ends_new=hunk.ends_old)


def _inserted(old: text.Text, deed: Insert) -> str:
    lines = old.text.splitlines(keepends=True)
    if not 0 <= deed.line <= len(lines):
        raise UnfitError("the file has fewer lines")
    added = deed.text if deed.text.endswith("\n") else f"{deed.text}\n"
    return "".join((*lines[: deed.line], added, *lines[deed.line :]))


def _uninserted(old: text.Text, deed: Insert) -> str:
    lines = old.text.splitlines(keepends=True)
    added = (deed.text if deed.text.endswith("\n") else f"{deed.text}\n").splitlines(keepends=True)
    if deed.line < 0 or lines[deed.line : deed.line + len(added)] != added:
        raise UnfitError("the inserted text isn't there")
    return "".join((*lines[: deed.line], *lines[deed.line + len(added) :]))


def _with_cell(data: bytes, deed: Cell) -> bytes:
    """A notebook with one cell replaced, inserted or deleted, written as notebooks are."""
    try:
        notebook = json.loads(data)
        cells = notebook["cells"]
        at = _cell_at(cells, deed)
        if deed.mode == "delete":
            del cells[at]
        elif deed.mode == "insert":
            cells.insert(at + 1, _new_cell(deed, with_id="id" in (cells or [{}])[0]))
        else:
            cells[at]["source"] = deed.source
            if cells[at].get("cell_type") == "code":
                cells[at]["outputs"], cells[at]["execution_count"] = [], None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UnfitError("the notebook, or its cell, isn't there") from error
    return json.dumps(notebook, ensure_ascii=False, indent=1).encode("utf-8", "replace")


def _cell_at(cells: list[dict[str, Any]], deed: Cell) -> int:
    """A cell's index; of one to be inserted at the beginning -1."""
    for number, cell in enumerate(cells):
        if deed.id and deed.id in (cell.get("id"), f"cell-{number}", str(number)):
            return number
    if deed.mode == "insert" and not deed.id:
        return -1
    raise LookupError(deed.id)


def _new_cell(deed: Cell, *, with_id: bool) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": deed.kind, "metadata": {}, "source": deed.source}
    if deed.kind == "code":
        cell.update(execution_count=None, outputs=[])
    return {**cell, "id": f"cell-{zlib.crc32(deed.source.encode(errors='replace')):08x}"} if with_id else cell
