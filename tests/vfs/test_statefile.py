from __future__ import annotations

import os
from pathlib import Path

import pytest

from workbench.errors import StateError
from workbench.protocol.records import MountRecord, OverlayRecord
from workbench.vfs.statefile import make_directory, read_json, write_json

RECORD = OverlayRecord(session="s", mounts=(MountRecord(name="v", backend="docker", boot_id="b", epoch_ns=2**62),))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "record.json")
    write_json(path, RECORD)
    assert read_json(path, OverlayRecord) == RECORD
    assert os.stat(path).st_mode & 0o777 == 0o600
    write_json(path, OverlayRecord(session="other"))
    assert read_json(path, OverlayRecord).session == "other"
    assert os.listdir(tmp_path) == ["record.json"]


def test_fields_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text('{"version": 2, "session": "s", "later": [1]}')
    assert read_json(str(tmp_path / "record.json"), OverlayRecord).session == "s"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "record.json")
    write_json(path, RECORD)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_json(path, OverlayRecord(session="other"))
    assert read_json(path, OverlayRecord) == RECORD
    assert os.listdir(tmp_path) == ["record.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"session": 1}', b"\xff\xfe", b"null"])
def test_a_corrupt_file_is_set_aside_and_said(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "record.json"
    for number in (1, 2):
        path.write_bytes(content)
        with pytest.raises(StateError) as caught:
            read_json(str(path), OverlayRecord)
        assert caught.value.code == "state_corrupt"
        aside = tmp_path / f"record.json.corrupt-{number}"
        assert str(aside) in (caught.value.hint or "")
        assert aside.read_bytes() == content
        with pytest.raises(FileNotFoundError):
            read_json(str(path), OverlayRecord)
    write_json(str(path), RECORD)
    assert read_json(str(path), OverlayRecord) == RECORD


def test_a_good_file_that_replaced_a_corrupt_one_meanwhile_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "record.json")
    Path(path).write_text("corrupt")
    validate = OverlayRecord.model_validate_json

    def replaced_after_the_read(content: bytes) -> OverlayRecord:
        if content == b"corrupt":
            write_json(path, RECORD)
        return validate(content)

    monkeypatch.setattr(OverlayRecord, "model_validate_json", replaced_after_the_read)
    assert read_json(path, OverlayRecord) == RECORD
    assert os.listdir(tmp_path) == ["record.json"]


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_json(str(tmp_path / "record.json"), OverlayRecord)


def test_a_directory_is_made_with_what_is_missing_above_it_for_its_owner_alone(tmp_path: Path) -> None:
    make_directory(str(tmp_path / "a" / "b" / "c"))
    for path in ("a", "a/b", "a/b/c"):
        assert (tmp_path / path).stat().st_mode & 0o777 == 0o700
    (tmp_path / "a").chmod(0o755)
    make_directory(str(tmp_path / "a"))
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o755
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError):
        make_directory(str(tmp_path / "link" / "below"))
