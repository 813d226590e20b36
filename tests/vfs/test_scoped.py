"""One directory of a storage as a storage of its own, and the ways that don't lead out of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.errors import OptionsError
from workbench.vfs.local import LocalStorage
from workbench.vfs.storage import Kind


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[LocalStorage]:
    for name in ("tenant-7/sub", "tenant-7-evil", "tenant-8"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "tenant-7/mine").write_bytes(b"mine")
    (tmp_path / "tenant-7/sub/deep").write_bytes(b"deep")
    (tmp_path / "tenant-7-evil/secret").write_bytes(b"secret")
    (tmp_path / "tenant-8/secret").write_bytes(b"secret")
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("tenant-8")
    (tmp_path / "tenant-7/out").symlink_to("../tenant-8")
    (tmp_path / "tenant-7/far").symlink_to(tmp_path / "tenant-8")
    with LocalStorage(os.fsencode(tmp_path)) as storage:
        yield storage


def test_a_scope_shows_what_is_below_it_and_nothing_beside_it(tenants: LocalStorage) -> None:
    tenant = tenants.scope(b"tenant-7")
    assert tenant.entries(b"") == [
        (b"far", Kind.SYMLINK),
        (b"mine", Kind.FILE),
        (b"out", Kind.SYMLINK),
        (b"sub", Kind.DIR),
    ]
    assert tenant.list(b"sub") == [b"deep"]
    assert tenant.stat(b"").kind is Kind.DIR
    with tenant.open(b"sub/deep") as file:
        assert file.read() == b"deep"
    assert tenant.readlink(b"out") == b"../tenant-8"


def test_paths_that_would_climb_or_start_at_the_root_are_refused(tenants: LocalStorage) -> None:
    tenant = tenants.scope(b"tenant-7")
    for path in (b"..", b"../tenant-8/secret", b"sub/../../tenant-8", b"/etc/passwd", b"-evil/../..", b".", b"a\0b"):
        for call in (tenant.stat, tenant.list, tenant.open, tenant.readlink, tenant.entries):
            with pytest.raises(OptionsError):
                call(path)


def test_a_neighbour_whose_name_begins_alike_is_elsewhere(tenants: LocalStorage) -> None:
    tenant = tenants.scope(b"tenant-7")
    with pytest.raises(FileNotFoundError):
        tenant.stat(b"-evil/secret")
    with pytest.raises(OptionsError):
        tenants.scope(b"tenant")


def test_symlinks_that_lead_out_are_not_followed(tenants: LocalStorage) -> None:
    tenant = tenants.scope(b"tenant-7")
    for path in (b"out/secret", b"far/secret"):
        for call in (tenant.stat, tenant.open):
            with pytest.raises(NotADirectoryError) as refused:
                call(path)
            assert refused.value.filename == path
    with pytest.raises(OSError, match="symbolic links"):
        tenant.open(b"out")


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"/",
        b"/tenant-7",
        b"tenant-7/",
        b".",
        b"..",
        b"../x",
        b"tenant-7/..",
        b"tenant-7/../tenant-8",
        b"./tenant-7",
        b"tenant-7//sub",
        b"gone",
        b"tenant-7/gone",
        b"file",
        b"file/x",
        b"link",
        b"link/x",
        b"tenant-7/out",
        b"tenant-7\0",
        b"x" * 300,
    ],
)
def test_a_scope_that_is_no_directory_of_its_own_is_refused(tenants: LocalStorage, wrong: bytes) -> None:
    with pytest.raises(OptionsError) as refused:
        tenants.scope(wrong)
    assert refused.value.code == "invalid_options"
    assert refused.value.hint


def test_a_scope_in_a_scope_is_confined_by_both(tenants: LocalStorage) -> None:
    inner = tenants.scope(b"tenant-7").scope(b"sub")
    assert inner.list(b"") == [b"deep"]
    with pytest.raises(FileNotFoundError) as missing:
        inner.stat(b"mine")
    assert missing.value.filename == b"mine"


def test_a_scope_that_is_swapped_for_a_symlink_afterwards_fails_closed(tenants: LocalStorage, tmp_path: Path) -> None:
    tenant = tenants.scope(b"tenant-7")
    (tmp_path / "tenant-7").rename(tmp_path / "away")
    (tmp_path / "tenant-7").symlink_to("tenant-8")
    with pytest.raises(NotADirectoryError):
        tenant.open(b"secret")
    with pytest.raises(NotADirectoryError):
        tenant.list(b"")
