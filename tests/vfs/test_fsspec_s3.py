"""An object store as a lower layer; where s3fs and a server that stands in for S3 (moto) are installed.

s3fs pins the fsspec of its day: `tests/suites/test_releases.py` runs this in an environment of its own.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest

from workbench.testing import Directory, File, StorageContract, Tree
from workbench.vfs.fsspec_storage import FsspecStorage
from workbench.vfs.memory import MemoryUpper
from workbench.vfs.overlay import Overlay
from workbench.vfs.storage import Kind, Storage

pytest.importorskip("s3fs", reason="tests/suites/test_releases.py runs it, in an environment of its own")
moto = pytest.importorskip("moto.server")

# Those of the clients and of the server that stands in.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", autouse=True)
def address() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    TestS3.address = f"http://{host.replace('0.0.0.0', '127.0.0.1')}:{port}"
    yield TestS3.address
    server.stop()


def bucket(address: str, tree: dict[str, bytes]) -> tuple[Any, str]:
    keys = {"key": "a", "secret": "b"}
    fs = fsspec.filesystem("s3", endpoint_url=address, skip_instance_cache=True, use_listings_cache=False, **keys)
    name = f"bucket-{uuid.uuid4().hex}"
    fs.mkdir(name)
    for path, content in tree.items():
        fs.pipe_file(f"{name}/{path}", content)
    return fs, name


class TestS3(StorageContract):
    symlinks = False
    address: ClassVar[str]

    def make_storage(self, tree: Tree, tmp_path: Path) -> Storage:
        objects = {
            os.fsdecode(path) + ("/" if isinstance(entry, Directory) else ""): entry.content
            if isinstance(entry, File)
            else b""
            for path, entry in tree.items()
        }
        return FsspecStorage(*bucket(self.address, objects))


def test_an_overlay_over_one_tenants_objects_writes_to_none_of_them(address: str) -> None:
    fs, name = bucket(address, {"tenant-7/a": b"mine", "tenant-7/d/e": b"E", "tenant-7-evil/x": b"theirs"})
    overlay = Overlay(FsspecStorage(fs, f"s3://{name}").scope(b"tenant-7"), MemoryUpper())
    with overlay.open(b"a", "r+b") as file:
        file.write(b"M")
    overlay.rename(b"d", b"moved")
    assert list(overlay.find(kind=Kind.FILE)) == [b"a", b"moved/e"]
    assert overlay.read_bytes(b"a") == b"Mine"
    assert fs.cat(f"{name}/tenant-7/a") == b"mine"
    assert overlay.lower.stat(b"a").mtime_ns > 0


def test_what_is_an_object_and_a_prefix_is_one_file(address: str) -> None:
    storage = FsspecStorage(*bucket(address, {"both": b"object", "both/x": b"below"}))
    assert storage.entries(b"") == [(b"both", Kind.FILE)]
    with storage.open(b"both") as file:
        assert file.read() == b"object"
    with pytest.raises(NotADirectoryError):
        storage.list(b"both")
