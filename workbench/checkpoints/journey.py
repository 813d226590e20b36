"""Where an overlay says that its upper layer is on its way to another state; `workbench.timeline` writes it."""

from __future__ import annotations

import os

_NAME = "journey.json"


def journey_path(overlay_path: str) -> str:
    """The file that says so, in an overlay's directory."""
    return os.path.join(overlay_path, _NAME)


def is_under_way(overlay_path: str) -> bool:
    """Whether a journey was begun and not ended. Raises OSError."""
    return os.path.exists(journey_path(overlay_path))
