"""What was shown: which digest stands for which checkpoint, and on which terminal it was last seen.

One small file a digest and terminal, `shown/<digest>[-<terminal>].json` in the overlay's directory, written whenever a
change set is shown. A commit names a digest that is found here, or it is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time

from workbench.errors import CommitError, StateError
from workbench.protocol.records import IncludedRecord, SelectionRecord, ShownRecord
from workbench.review.compare import digest_of
from workbench.vfs.statefile import read_json, write_json

_NAME = re.compile(r"[0-9a-f]{64}(-[0-9a-f]{8})?")
_KEPT = 200
_NOTHING = digest_of(())


class ShownDigests:
    """The digests shown of one overlay."""

    def __init__(self, overlay_path: str) -> None:
        self._directory = os.path.join(overlay_path, "shown")

    def add(
        self,
        digest: str,
        checkpoint: str,
        terminal: str,
        selection: SelectionRecord | None = None,
        included: IncludedRecord | None = None,
    ) -> None:
        """Note that `digest`, of `checkpoint`, was shown on `terminal`; the others as in `ShownRecord`.

        `terminal` is empty where there was none, or where less than the whole was shown: on which ones the same digest
        was shown before stays. That there is nothing is no last thing that a commit takes by itself.
        """
        if terminal and digest == _NOTHING:
            self.withdraw(terminal)
            terminal = ""
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        write_json(
            self._file(digest, terminal),
            ShownRecord(
                digest=digest,
                checkpoint=checkpoint,
                terminal=terminal,
                shown_ns=time.time_ns(),
                selection=selection,
                included=included or IncludedRecord(),
            ),
        )
        for record in self._newest_first()[_KEPT:]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._file(record.digest, record.terminal))

    def find(self, digest: str) -> ShownRecord:
        """Raises CommitError (digest_unknown) where it was never shown; a unique beginning of 8 or more digits is enough."""
        if re.fullmatch(r"[0-9a-f]{8,64}", digest):
            found = [record for record in self._newest_first() if record.digest.startswith(digest)]
            if len({record.digest for record in found}) == 1:
                return found[0]
        raise CommitError(
            f"The digest {digest!r} was never shown for this session.",
            code="digest_unknown",
            hint="Look at the changes with `workbench diff`, and commit the digest it names.",
        )

    def find_some(self, digest: str) -> ShownRecord:
        """As `find`. Raises CommitError (nothing_to_commit) where it's the digest of no change at all."""
        record = self.find(digest)
        if record.digest == _NOTHING:
            raise CommitError(
                "There is nothing to commit.", code="nothing_to_commit", hint="Change something first: workbench exec."
            )
        return record

    def last(self, terminal: str | None = None) -> ShownRecord | None:
        """The digest last shown on `terminal`, or anywhere where it's None."""
        for record in self._newest_first():
            if terminal is None or record.terminal == terminal:
                return record
        return None

    def withdraw(self, terminal: str) -> None:
        """No longer say that anything was shown last on a terminal; each digest can still be named."""
        for record in self._newest_first():
            if terminal and record.terminal == terminal:
                self.add(record.digest, record.checkpoint, "", record.selection, record.included)
                os.unlink(self._file(record.digest, terminal))

    def checkpoints(self) -> list[str]:
        """The commits of the checkpoints that they stand for: what may still be landed."""
        return [record.checkpoint for record in self._newest_first()]

    def clear(self) -> None:
        """Forget them all: what they stood for is landed or gone."""
        for record in self._newest_first():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._file(record.digest, record.terminal))

    def _file(self, digest: str, terminal: str) -> str:
        suffix = f"-{hashlib.sha256(terminal.encode()).hexdigest()[:8]}" if terminal else ""
        return os.path.join(self._directory, f"{digest}{suffix}.json")

    def _newest_first(self) -> list[ShownRecord]:
        records = []
        for name in os.listdir(self._directory) if os.path.isdir(self._directory) else ():
            if _NAME.fullmatch(name.removesuffix(".json")):
                # One that was damaged is set aside: what it stood for was never shown.
                with contextlib.suppress(FileNotFoundError, StateError):
                    records.append(read_json(os.path.join(self._directory, name), ShownRecord))
        return sorted(records, key=lambda record: record.shown_ns, reverse=True)
