"""The files that a patch in the format of `apply_patch` is about."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.transcripts.models import EditAction

_HEADERS: tuple[tuple[str, EditAction], ...] = (
    ("*** Add File: ", "add"),
    ("*** Update File: ", "update"),
    ("*** Delete File: ", "delete"),
)
_MOVE = "*** Move to: "


def patched_files(patch: str) -> Iterator[tuple[str, EditAction, str | None]]:
    """Each file's path, what is done to it, and its new path where it is moved."""
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
