"""Paths as a language model writes them, and as it's shown them."""

from __future__ import annotations

import os
import re

from anyio import to_thread

from workbench.errors import OptionsError
from workbench.vfs import paths
from workbench.workspace import Workspace

_ESCAPED = re.compile(rb"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|([nrt\\]))")
_CONTROLS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"\\": b"\\"}


async def place(workspace: Workspace, named: str) -> bytes:
    """The path of the merged view that is meant, its symlinks followed as far as there is something; "" is the root.

    A relative path starts at the workspace's root; an absolute one has to lie below it. A name as `paths.display` shows
    it is understood where there's none of the very letters. Raises OptionsError for a path that leads out, OSError.
    """

    def find() -> bytes:
        path = inside(workspace.root, named)
        if b"\\" in path and workspace.view.kind(path) is None:
            meant = unescaped(path)
            if workspace.view.kind(meant) is not None:
                path = meant
        return _followed(workspace, path)

    return await to_thread.run_sync(find)


def inside(root: bytes, named: str) -> bytes:
    """The path below `root` that is named, by name alone: `..` isn't resolved through symlinks. Raises OptionsError."""
    try:
        name = os.fsencode(named)
    except UnicodeEncodeError:
        raise _leads_out(named) from None
    above: list[bytes] = []
    components = name.split(b"/")
    if name.startswith(b"/"):
        here = [part for part in root.split(b"/") if part]
        components = [part for part in components if part]
        if components[: len(here)] != here:
            raise _leads_out(named)
        components = components[len(here) :]
    for component in components:
        if component == b"..":
            if not above:
                raise _leads_out(named)
            above.pop()
        elif component not in (b"", b"."):
            above.append(component)
    path = b"/".join(above)
    if b"\0" in path:
        raise _leads_out(named)
    return path


def unescaped(path: bytes) -> bytes:
    """What `paths.display` shows in the way of this."""

    def character(found: re.Match[bytes]) -> bytes:
        byte, short, long, control = found.groups()
        if byte is not None:
            return bytes([int(byte, 16)])
        if control is not None:
            return _CONTROLS[control]
        return chr(int(short or long, 16)).encode("utf-8", "surrogatepass")

    return _ESCAPED.sub(character, path)


def _followed(workspace: Workspace, path: bytes) -> bytes:
    """Symlinks resolved in what there is of the path; what isn't there yet is added to it as named."""
    names = paths.parts(path)
    for count in range(len(names), -1, -1):
        try:
            there = workspace.view.resolve(b"/".join(names[:count]))
        except FileNotFoundError:
            continue
        return paths.join(there, *names[count:])
    return path


def _leads_out(named: str) -> OptionsError:
    shown = paths.display(named.encode("utf-8", "backslashreplace"))
    return OptionsError(
        f"'{shown}' isn't a path in the workspace.",
        hint="Give one relative to the workspace's root, without leaving it.",
    )
