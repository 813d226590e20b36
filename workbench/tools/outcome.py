"""What a call that changes files comes to, before it's carried out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from workbench.review.diff import quoted
from workbench.review.lines import hunks
from workbench.tools import text


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one file is to become.

    `before` is what it holds now, None where there is none; `after` what it will, None where it goes. `source` is another
    path that it's moved from. `mode` None leaves its mode. `told` is for the model, once it's done.
    """

    path: bytes
    before: bytes | None
    after: bytes | None
    told: str
    source: bytes | None = None
    mode: int | None = None

    def patch(self) -> Iterator[bytes]:
        """It as a patch for people to read, in pieces that each end a line."""
        if self.source is not None:
            yield b"rename from %s\nrename to %s\n" % (quoted(self.source), quoted(self.path))
        if self.mode is not None:
            yield b"new mode %06o\n" % (0o100000 | self.mode)
        yield b"--- %s\n" % (b"/dev/null" if self.before is None else quoted(b"a/" + (self.source or self.path)))
        yield b"+++ %s\n" % (b"/dev/null" if self.after is None else quoted(b"b/" + self.path))
        old, new = text.decoded(self.before or b""), text.decoded(self.after or b"")
        if old is None or new is None:
            yield b"Binary: %d bytes before, %d after\n" % (len(self.before or b""), len(self.after or b""))
            return
        for hunk in hunks(old.text.encode("utf-8", "replace"), new.text.encode("utf-8", "replace")):
            yield from hunk.render()
