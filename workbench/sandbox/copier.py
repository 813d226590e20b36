"""The program that copies layers where an engine doesn't share our files: it runs beside a sandbox, over its volumes.

It answers requests on descriptors 0 and 1, in frames. A request is a frame of JSON.

* `{"do": "fill", "tree": path}` and a tree: it is written there, what was given is remembered; answered by `{}`.
* `{"do": "read", "tree": path, "whole": bool}`: answered by a tree, of everything or of what changed since the last
  request, then by `{"removed": [paths, in hex]}`.
"""

from __future__ import annotations

import contextlib
import json
import os

from workbench.sandbox.tree_packer import Packer
from workbench.sandbox.tree_stream import CHUNK, FRAME, FrameReader, FrameWriter, Known
from workbench.sandbox.tree_unpacker import Unpacker


def _read_exactly(size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def _frame() -> bytes:
    return _read_exactly(FRAME.unpack(_read_exactly(FRAME.size))[0])


def _send(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _fill(root: int) -> Known:
    unpacker = Unpacker(root)
    unpacker.unpack(FrameReader(_frame))
    unpacker.close()
    return Packer(root, layer=True).signatures()


def _read(root: int, known: Known) -> Known:
    writer = FrameWriter(_send)
    now = Packer(root, layer=True).pack(writer, known)
    writer.end()
    removed = json.dumps({"removed": [path.hex() for path in known if path not in now]}).encode()
    # Frames have a size, and a tree can have any number of names.
    for at in range(0, len(removed), CHUNK):
        writer.write(removed[at : at + CHUNK])
    writer.end()
    return now


def main() -> None:
    """Answer requests until there are none."""
    known: dict[str, Known] = {}
    os.umask(0)
    while True:
        try:
            request = json.loads(_frame())
        except EOFError:
            return
        tree = str(request["tree"])
        for path in (tree, str(request.get("beside") or tree)):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
        root = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if request["do"] == "fill":
                known[tree] = _fill(root)
                answer = b"{}"
                _send(FRAME.pack(len(answer)) + answer)
            else:
                known[tree] = _read(root, {} if request["whole"] else known.get(tree, {}))
        finally:
            os.close(root)


if __name__ == "__main__":
    main()
