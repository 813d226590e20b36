"""The program that copies layers where an engine doesn't share our files: it runs beside a sandbox, over its volumes.

It answers requests on descriptors 0 and 1, in frames. A request is a frame of JSON.

* `{"do": "fill", "tree": path}` and a tree: it is written there, what was given is remembered; answered by `{}`.
* `{"do": "merge", "tree": path, "base": path}` and a tree: what was written before is a lower layer, and remembered in the
  file `base`, and the tree an upper one, that is laid over it; answered by `{}`.
* `{"do": "measure", "trees": [paths], "size": bool}`: answered by `{"room": [as of `Room`]}`, and what they take together as
  `size` where that is wanted.
* `{"do": "read", "tree": path, "whole": bool}`: answered by a tree, of everything or of what changed since the last
  request, then by `{"removed": [paths, in hex]}`. With the `base` of a merged tree what is read is the upper layer that it
  amounts to; `{"incomplete": true}` where it was never merged.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from workbench.sandbox.tree_departures import Base, Departures
from workbench.sandbox.tree_packer import Packer
from workbench.sandbox.tree_size import room_at, size_of
from workbench.sandbox.tree_stream import CHUNK, FRAME, FrameReader, FrameWriter, Known, open_tar
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


def _merge(root: int, path: str) -> Known:
    base = Departures(root, {}).base()
    unpacker = Unpacker(root, merge=True)
    unpacker.unpack(FrameReader(_frame))
    unpacker.close()
    with open(f"{path}.new", "w") as file:
        json.dump({at.hex(): found for at, found in base.items()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{path}.new", path)
    # All of it is told anew: what the layer has been made of says nothing of the merged tree.
    return dict.fromkeys(unpacker.paths)


def _read(packer: Packer, known: Known) -> Known:
    writer = FrameWriter(_send)
    now = packer.pack(writer, known)
    writer.end()
    _answer(writer, {"removed": [path.hex() for path in known if path not in now]})
    return now


def _answer(writer: FrameWriter, answer: dict[str, Any]) -> None:
    data = json.dumps(answer).encode()
    # Frames have a size, and a tree can have any number of names.
    for at in range(0, len(data), CHUNK):
        writer.write(data[at : at + CHUNK])
    writer.end()


def _tell(answer: dict[str, Any]) -> None:
    data = json.dumps(answer).encode()
    _send(FRAME.pack(len(data)) + data)


def _measured(request: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"room": room_at(request["trees"][0])}
    if request["size"]:
        answer["size"] = sum(map(size_of, request["trees"]))
    return answer


def _base(path: str) -> Base:
    with open(path) as file:
        return {bytes.fromhex(at): tuple(found) for at, found in json.load(file).items()}


def main() -> None:
    """Answer requests until there are none."""
    known: dict[str, Known] = {}
    os.umask(0)
    while True:
        try:
            request = json.loads(_frame())
        except EOFError:
            return
        if request["do"] == "measure":
            _tell(_measured(request))
            continue
        tree, base = str(request["tree"]), str(request.get("base") or "")
        for path in (tree, str(request.get("beside") or tree)):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
        root = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if request["do"] != "read":
                known[tree] = _merge(root, base) if request["do"] == "merge" else _fill(root)
                _tell({})
            elif base and not os.path.exists(base):
                writer = FrameWriter(_send)
                open_tar(writer).close()
                writer.end()
                _answer(writer, {"incomplete": True})
            else:
                packer = Departures(root, _base(base)) if base else Packer(root, layer=True)
                known[tree] = _read(packer, {} if request["whole"] else known.get(tree, {}))
        finally:
            os.close(root)


if __name__ == "__main__":
    main()
