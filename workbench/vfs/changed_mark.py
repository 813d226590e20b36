"""The mark that the real directory changed under an overlay, a file beside its record. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import os

_NAME = "lower-changed"


def mark_changed(overlay_path: str) -> None:
    """Say that the real directory changed under an overlay, mounted or not."""
    os.close(os.open(os.path.join(overlay_path, _NAME), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def is_marked_changed(overlay_path: str) -> bool:
    """Whether somebody said so since the overlay was last mounted."""
    return os.path.lexists(os.path.join(overlay_path, _NAME))


def clear_changed(overlay_path: str) -> None:
    """The overlay is about to be mounted over the directory as it is."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(overlay_path, _NAME))
