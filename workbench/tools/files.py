"""Tools that read and change files of the merged view."""

from __future__ import annotations

import errno
import os

from pydantic import Field

from workbench.errors import ToolError
from workbench.protocol.messages import ImageAttachment, ToolExecutionResult
from workbench.tools import replacing, text
from workbench.tools.base import Tool
from workbench.tools.outcome import Outcome
from workbench.tools.places import place
from workbench.tools.seen import SeenFiles
from workbench.tools.workspace_tool import RESULT_CHARACTERS, Arguments, WorkspaceTool, failed
from workbench.vfs import paths
from workbench.vfs.storage import Kind
from workbench.workspace import Workspace

_LINES = 2_000
_LINE_CHARACTERS = 2_000
_MOST_BYTES = 16 << 20
"""Of a file that is read at all: what is larger is looked at with `grep` or a command."""

_IMAGE_BYTES = 3 << 20
"""Of an image that a model is shown: in base64, and with the rest of the request, providers take no more."""

_IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


class ReadFile(Arguments):
    path: str = Field(description="The file, relative to the workspace's root.")
    first_line: int = Field(default=1, ge=1, description="The line to begin at, counted from 1.")
    lines: int = Field(default=_LINES, ge=1, description="How many lines to read.")


class WriteFile(Arguments):
    path: str = Field(description="The file, relative to the workspace's root; directories that are missing are made.")
    content: str = Field(description="The whole new content.")


class EditFile(Arguments):
    path: str = Field(description="The file, relative to the workspace's root.")
    old_text: str = Field(description="The text to replace, as it stands in the file, with enough lines to be unique.")
    new_text: str = Field(description="What to put in its place; empty to delete it.")
    replace_all: bool = Field(default=False, description="Replace it everywhere instead of exactly once.")


class ListFiles(Arguments):
    path: str = Field(default=".", description="The directory, relative to the workspace's root.")
    depth: int = Field(default=2, ge=1, le=8, description="How many levels below it.")
    ignored: bool = Field(default=False, description="Also what .gitignore files leave out.")


class FileTools:
    """Tools over the files of one workspace, which share what the model has read."""

    def __init__(self, workspace: Workspace, seen: SeenFiles) -> None:
        self._workspace = workspace
        self._seen = seen

    def tools(self) -> tuple[Tool, ...]:
        """All of them."""
        return (
            WorkspaceTool(self.read_file, ReadFile, parallel=True),
            WorkspaceTool(self.write_file, WriteFile),
            WorkspaceTool(self.edit_file, EditFile),
            WorkspaceTool(self.list_files, ListFiles, parallel=True),
        )

    async def read_file(self, args: ReadFile) -> ToolExecutionResult:
        """Read a file of the workspace: its lines, each after its number and a tab. Long files come in parts."""
        path = await place(self._workspace, args.path)
        content = await self._content(path)
        self._seen.note(path, content)
        if (media_type := _image_type(content)) is not None:
            if len(content) > _IMAGE_BYTES:
                return failed(f"{paths.display(path)} is an image of {len(content)} bytes, too large to be shown.")
            image = ImageAttachment(media_type=media_type, data=content)
            return ToolExecutionResult(content=f"An image ({media_type}, {len(content)} bytes).", images=(image,))
        read = text.decoded(content)
        if read is None:
            return failed(f"{paths.display(path)} is a binary file of {len(content)} bytes.")
        return ToolExecutionResult(content=_numbered(read, args.first_line, args.lines))

    async def write_file(self, args: WriteFile) -> str:
        """Write a whole file, new or in the place of what is there. To change a part of a file, use edit_file."""
        return await self._carry_out(await self.written(args))

    async def edit_file(self, args: EditFile) -> str:
        """Replace a passage of a file. The passage has to be in the file exactly once, unless replace_all is set."""
        return await self._carry_out(await self.edited(args))

    async def list_files(self, args: ListFiles) -> str:
        """List a directory of the workspace as a tree, without what its .gitignore files leave out."""
        path = await place(self._workspace, args.path)
        tree = await self._workspace.tree(path, depth=args.depth, ignored=args.ignored)
        if not tree.lines:
            return "The directory is empty."
        return "\n".join((*tree.lines, *(() if tree.complete else ("[... more was left out]",))))

    async def written(self, args: WriteFile) -> Outcome:
        """What `write_file` comes to. Raises ToolError, OptionsError, OSError."""
        path = await place(self._workspace, args.path)
        before = await self._content(path) if await self._workspace.files.kind(path) is not None else None
        old = text.decoded(before) if before is not None else None
        if before is not None and (difference := self._seen.difference(path, before)) is not None:
            raise _changed(difference)
        # Its encoding stays; its line endings are the model's, who writes all of them.
        content = _encoded(old or text.Text(""), args.content)
        lines = args.content.count("\n") + (not args.content.endswith("\n") and bool(args.content))
        told = f"{'Wrote' if before is None else 'Replaced'} {paths.display(path)}: {text.counted(lines, 'line')}."
        return Outcome(path, before, content, told)

    async def edited(self, args: EditFile) -> Outcome:
        """What `edit_file` comes to. Raises as `written`."""
        path = await place(self._workspace, args.path)
        content = await self._content(path)
        old = text.decoded(content)
        if old is None:
            raise ToolError(f"{paths.display(path)} is a binary file.", hint="Change it with a command.")
        if (difference := self._seen.difference(path, content)) is not None:
            raise _changed(difference)
        replaced = replacing.replace(old, args.old_text, args.new_text, everywhere=args.replace_all)
        times = "" if replaced.count == 1 else f" {replaced.count} times"
        loosely = " The old text was found only with other white space than you gave." if replaced.loosely else ""
        return Outcome(path, content, _encoded(old, replaced.text), f"Edited {paths.display(path)}{times}.{loosely}")

    async def _content(self, path: bytes) -> bytes:
        status = await self._workspace.files.stat(path)
        if status.kind is Kind.DIR:
            raise paths.error(errno.EISDIR, path)
        if status.size > _MOST_BYTES:
            raise ToolError(
                f"{paths.display(path)} has {status.size} bytes, more than can be read here.",
                hint="Look for what you need with grep, or with a command.",
            )
        return await self._workspace.files.read(path)

    async def _carry_out(self, outcome: Outcome) -> str:
        assert outcome.after is not None
        await self._workspace.files.makedirs(os.path.dirname(outcome.path), exist_ok=True)
        await self._workspace.files.write(outcome.path, outcome.after)
        self._seen.note(outcome.path, outcome.after)
        return outcome.told


def _numbered(read: text.Text, first: int, count: int) -> str:
    lines = read.text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        return "The file is empty."
    if first > len(lines):
        return f"The file has only {text.counted(len(lines), 'line')}."
    shown: list[str] = []
    size = 0
    for number, line in enumerate(lines[first - 1 : first - 1 + count], start=first):
        line = line.removesuffix("\r")
        if len(line) > _LINE_CHARACTERS:
            line = f"{line[:_LINE_CHARACTERS]}[... {len(line) - _LINE_CHARACTERS} more characters]"
        size += len(line) + 8
        if size > RESULT_CHARACTERS and shown:
            break
        shown.append(f"{number}\t{line}")
    last = first + len(shown) - 1
    notes = [f"lines {first} to {last} of {len(lines)}"] if len(shown) < len(lines) else []
    if read.encoding != "utf-8" or read.mark:
        notes.append(read.encoding + (" with a byte order mark" if read.mark else ""))
    if read.newline == "\r\n":
        notes.append("lines end in CRLF, which is kept")
    return "\n".join((*shown, *((f"[{'; '.join(notes)}]",) if notes else ())))


def _encoded(old: text.Text, content: str) -> bytes:
    try:
        return old.encoded(content)
    except UnicodeEncodeError as error:
        raise ToolError(
            f"The file is in {old.encoding}, which has no character {error.object[error.start]!a}.",
            hint="Use characters that the file's encoding has.",
        ) from error


def _image_type(content: bytes) -> str | None:
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((media_type for mark, media_type in _IMAGES if content.startswith(mark)), None)


def _changed(difference: str) -> ToolError:
    return ToolError(difference, code="invalid_arguments")
