"""What the model has read of the files, so that it never changes one that isn't as it read it."""

from __future__ import annotations

import difflib
import hashlib
from collections import OrderedDict

from workbench.tools import text
from workbench.vfs import paths

_KEPT_BYTES = 8 << 20
"""Of the contents that were read; of what is older only the digest is kept, and a difference can't be shown."""

_CONTEXT = 2


class SeenFiles:
    """The files as the model has last read or written them."""

    def __init__(self) -> None:
        self._digests: dict[bytes, bytes] = {}
        self._contents: OrderedDict[bytes, bytes] = OrderedDict()
        self._size = 0

    def note(self, path: bytes, content: bytes) -> None:
        """The model knows this content now."""
        self.forget(path)
        self._digests[path] = _digest(content)
        self._contents[path] = content
        self._size += len(content)
        while self._size > _KEPT_BYTES:
            _, oldest = self._contents.popitem(last=False)
            self._size -= len(oldest)

    def forget(self, path: bytes) -> None:
        """The file is gone."""
        self._digests.pop(path, None)
        self._size -= len(self._contents.pop(path, b""))

    def clear(self) -> None:
        """The model knows nothing any more: its conversation was rewound."""
        self._digests.clear()
        self._contents.clear()
        self._size = 0

    def difference(self, path: bytes, content: bytes) -> str | None:
        """What changed since the model read the file, None where it's as it read it, or never read it.

        The model knows this content from then on.
        """
        known = self._digests.get(path)
        if known is None or known == _digest(content):
            return None
        before = self._contents.get(path)
        self.note(path, content)
        shown = paths.display(path)
        old, new = (None if data is None else text.decoded(data) for data in (before, content))
        if old is None or new is None:
            return f"{shown} changed since you read it. Read it again, then repeat the change."
        lines = difflib.unified_diff(
            old.text.splitlines(), new.text.splitlines(), "as you read it", "as it is now", n=_CONTEXT, lineterm=""
        )
        return "\n".join((f"{shown} changed since you read it. Repeat your change on what it holds now:", *lines))


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
