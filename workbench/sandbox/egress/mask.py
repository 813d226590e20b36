"""A secret that a server says back is hidden from whoever asked: every occurrence becomes as many asterisks."""

from __future__ import annotations


class Mask:
    """Goes over one response. Holds back only what may be the beginning of the secret, so that streams stay streams."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._cover = b"*" * len(secret)
        self._held = b""

    def whole(self, data: bytes) -> bytes:
        """Data that nothing precedes or follows, without the secret."""
        return data.replace(self._secret, self._cover)

    def headers(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """A response's headers, without the secret."""
        return [(self.whole(name), self.whole(value)) for name, value in headers]

    def feed(self, data: bytes) -> bytes:
        """The next piece of the body: what of it, and of what was held back, can be shown."""
        data = self.whole(self._held + data)
        held = next(
            (
                size
                for size in range(min(len(self._secret) - 1, len(data)), 0, -1)
                if data.endswith(self._secret[:size])
            ),
            0,
        )
        self._held = data[len(data) - held :]
        return data[: len(data) - held]

    def end(self) -> bytes:
        """What was held back, when nothing follows."""
        rest, self._held = self._held, b""
        return rest
