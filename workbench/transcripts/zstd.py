"""Decompression in pieces of bounded size, whatever a file claims to hold."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterable, AsyncIterator

MAGIC = b"\x28\xb5\x2f\xfd"
_FED_BYTES = 256  # of which zstd makes 8 MB at most
_WINDOW_BYTES = 1 << 27


async def decompress(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The decompressed bytes of a zstd file. Raises OSError where they are damaged; a file cut short just ends."""
    import zstandard  # only where a compressed session is read

    decoder = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES).decompressobj(read_across_frames=True)
    async for chunk in chunks:
        for at in range(0, len(chunk), _FED_BYTES):
            try:
                piece = decoder.decompress(chunk[at : at + _FED_BYTES])
            except zstandard.ZstdError as error:
                raise OSError(errno.EIO, f"damaged zstd data: {error}") from error
            if piece:
                yield piece
