from __future__ import annotations

import os
from pathlib import Path

from workbench.protocol.records import WorkspaceRecord
from workbench.vfs.identity import Identity, identify, same


def _identify(path: Path) -> Identity:
    fd = os.open(path, os.O_PATH)
    try:
        return identify(fd)
    finally:
        os.close(fd)


def _record(identity: Identity) -> WorkspaceRecord:
    record = WorkspaceRecord(root="", root_bytes=b"")
    return record.model_copy(update=identity._asdict())


def test_a_directory_is_the_same_wherever_it_moves(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    record = _record(_identify(tmp_path / "a"))
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "link").symlink_to("b")
    assert same(record, _identify(tmp_path / "b"))


def test_a_directory_made_anew_at_the_same_path_is_another(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    record = _record(_identify(tmp_path / "a"))
    (tmp_path / "a").rmdir()
    (tmp_path / "a").mkdir()
    assert not same(record, _identify(tmp_path / "a"))


def test_without_handles_inode_and_birth_time_decide() -> None:
    record = _record(Identity(b"", 7, 100))
    assert same(record, (b"", 7, 100))
    assert same(record, (b"handles came later", 7, 100))
    assert not same(record, (b"", 7, 101))
    assert not same(record, (b"", 8, 100))
    assert same(record, (b"", 7, 0))


def test_with_handles_nothing_else_decides() -> None:
    record = _record(Identity(b"one", 7, 100))
    assert same(record, (b"one", 8, 0))
    assert not same(record, (b"other", 7, 100))
