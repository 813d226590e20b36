"""What a benchmark yields."""

from __future__ import annotations

import os
from typing import NamedTuple

REPEATS = int(os.environ.get("WORKBENCH_REPEATS", "15"))


class Row(NamedTuple):
    """Something of ours against something else; a `note` says why there is no such number."""

    what: str
    ours_ms: float
    against: str
    theirs_ms: float
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.ours_ms / self.theirs_ms

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """As a table shows it."""
        ours = f"{self.ours_ms:.1f}"
        if self.note:
            return self.what, ours, self.against, "", self.note
        return self.what, ours, self.against, f"{self.theirs_ms:.1f}", f"{self.ratio:.2f}"
