"""What of another agent's session is imported."""

from __future__ import annotations

from enum import StrEnum


class Part(StrEnum):
    """What alone is imported."""

    CONVERSATION = "conversation"
    FILES = "files"
