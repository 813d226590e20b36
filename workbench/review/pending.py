"""The mark of a commit on its way: a symlink in the commits' directory that names it. Imports nothing heavy."""

from __future__ import annotations

import os

PENDING = ".pending"


def pending(commits_dir: str) -> bool:
    """Whether a commit was cut short and waits for `recover`, or is on its way at this moment: one look at one name."""
    return os.path.lexists(os.path.join(commits_dir, PENDING))
