"""An upper layer in memory."""

from __future__ import annotations


class MemoryUpper:
    """Signature first; the body follows. `Overlay(lower, MemoryUpper())`."""
