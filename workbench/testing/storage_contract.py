"""What every storage has to keep: subclass `StorageContract` beside your storage's tests."""

from __future__ import annotations

import errno
from pathlib import Path

from workbench.errors import OptionsError
from workbench.testing.trees import Directory, File, Link, Tree, raises
from workbench.vfs.storage import Kind, Storage

_TREE: Tree = {
    b"empty": Directory(),
    b"d/e/f": File(b"deep"),
    b"d/b": File(b"b"),
    b"d/a": File(b""),
    b"d/z": File(b"z"),
    b"d-e": File(b"beside d/e"),
    b"big": File(bytes(range(256)) * 4096),
}
NAMES = (
    b"..two",
    b"a..b",
    b"-dash",
    b" leading",
    b"trailing ",
    b"dot.",
    b"CON",
    b"star*",
    b"what?",
    b"[bracket]",
    b"co:lon",
    b"com,ma",
    b"quote'\"",
    "\u00e9".encode(),
    "e\u0301".encode(),
)


class StorageContract:
    """The promises of `workbench.vfs.storage.Storage`, as tests.

    A subclass has `make_storage`, and says by `symlinks` and `empty_directories` what its storage can't have at all, and
    by `names` which names. Each test gets a storage of its own::

        class TestMine(StorageContract):
            def make_storage(self, tree, tmp_path):
                fill(os.fsencode(tmp_path), tree)      # workbench.testing.trees
                return MyStorage(tmp_path)
    """

    symlinks = True
    empty_directories = True
    names: tuple[bytes, ...] = NAMES

    def make_storage(self, tree: Tree, tmp_path: Path) -> Storage:
        """A storage with exactly this tree in it. `tmp_path` is an empty directory, whose making is up to you."""
        raise NotImplementedError

    def _storage(self, tmp_path: Path) -> Storage:
        tree = {path: entry for path, entry in _TREE.items() if self.empty_directories or entry != Directory()}
        return self.make_storage(tree, tmp_path)

    def test_a_listing_has_the_names_alone_sorted_bytewise(self, tmp_path: Path) -> None:
        storage = self._storage(tmp_path)
        expected = [b"big", b"d", b"d-e", *([b"empty"] if self.empty_directories else [])]
        assert storage.list(b"") == expected
        assert storage.list(b"d") == [b"a", b"b", b"e", b"z"]
        if self.empty_directories:
            assert storage.list(b"empty") == []

    def test_stats_tell_kinds_and_sizes(self, tmp_path: Path) -> None:
        storage = self._storage(tmp_path)
        kinds = {path: storage.stat(path).kind for path in (b"", b"d", b"d/e", b"d/e/f", b"d/a")}
        assert kinds == {b"": Kind.DIR, b"d": Kind.DIR, b"d/e": Kind.DIR, b"d/e/f": Kind.FILE, b"d/a": Kind.FILE}
        assert storage.stat(b"d/e/f").size == 4
        assert storage.stat(b"d/a").size == 0
        assert storage.stat(b"big").size == 256 * 4096
        for path in (b"d", b"d/a"):
            assert 0 <= storage.stat(path).mode <= 0o7777

    def test_a_file_reads_as_it_was_written_from_any_place(self, tmp_path: Path) -> None:
        storage = self._storage(tmp_path)
        with storage.open(b"d/e/f") as file:
            assert file.read() == b"deep"
        with storage.open(b"d/a") as file:
            assert file.read() == b""
        with storage.open(b"big") as file:
            assert file.read(3) == b"\0\1\2"
            assert file.seek(-256, 2) == 256 * 4095
            assert file.read() == bytes(range(256))
            assert file.tell() == 256 * 4096
            file.seek(256 * 17 + 65)
            assert file.read(2) == b"AB"

    def test_two_open_files_do_not_share_a_position(self, tmp_path: Path) -> None:
        storage = self._storage(tmp_path)
        with storage.open(b"d/e/f") as one, storage.open(b"d/e/f") as other:
            assert one.read(2) == b"de"
            assert other.read() == b"deep"
            assert one.read() == b"ep"

    def test_what_is_not_there_is_said_with_its_path(self, tmp_path: Path) -> None:
        storage = self._storage(tmp_path)
        for method in (storage.stat, storage.list, storage.open, storage.readlink):
            for path in (b"missing", b"d/missing", b"missing/deeper/still"):
                with raises(errno.ENOENT, path):
                    method(path)

    def test_a_path_through_a_file_is_not_a_directory(self, tmp_path: Path) -> None:
        storage = self._storage(tmp_path)
        for method in (storage.stat, storage.list, storage.open, storage.readlink):
            with raises(errno.ENOTDIR, b"d/b/below"):
                method(b"d/b/below")

    def test_the_wrong_kind_is_refused(self, tmp_path: Path) -> None:
        storage = self._storage(tmp_path)
        with raises(errno.ENOTDIR, b"d/b"):
            storage.list(b"d/b")
        with raises(errno.EISDIR, b"d"):
            storage.open(b"d")
        with raises(errno.EINVAL, b"d/b"):
            storage.readlink(b"d/b")
        with raises(errno.EINVAL, b"d"):
            storage.readlink(b"d")

    def test_no_path_leaves_the_root(self, tmp_path: Path) -> None:
        storage = self._storage(tmp_path)
        for path in (b"/d", b"..", b"d/../../d", b"d/./b", b"d//b", b"d/", b".", b"d\0"):
            for method in (storage.stat, storage.list, storage.open, storage.readlink):
                try:
                    method(path)
                except OptionsError:
                    continue
                raise AssertionError(f"{path!r} was taken for a path inside")

    def test_a_name_that_begins_alike_is_another(self, tmp_path: Path) -> None:
        storage = self._storage(tmp_path)
        assert storage.list(b"d/e") == [b"f"]
        assert storage.stat(b"d-e").kind is Kind.FILE
        with raises(errno.ENOENT, b"d-"):
            storage.stat(b"d-")

    def test_names_are_kept_byte_by_byte(self, tmp_path: Path) -> None:
        storage = self.make_storage({b"d/" + name: File(name) for name in self.names}, tmp_path)
        assert storage.list(b"d") == sorted(self.names)
        for name in self.names:
            with storage.open(b"d/" + name) as file:
                assert file.read() == name

    def test_a_symlink_is_told_and_never_followed(self, tmp_path: Path) -> None:
        if not self.symlinks:
            return
        tree = {**_TREE, b"to-d": Link(b"d"), b"out": Link(b"/etc/passwd"), b"loop": Link(b"loop")}
        storage = self.make_storage(tree, tmp_path)
        for path, target in ((b"to-d", b"d"), (b"out", b"/etc/passwd"), (b"loop", b"loop")):
            assert storage.stat(path).kind is Kind.SYMLINK
            assert storage.readlink(path) == target
            with raises(errno.ELOOP, path):
                storage.open(path)
            with raises(errno.ENOTDIR, path):
                storage.list(path)
        for method in (storage.stat, storage.list, storage.open):
            with raises(errno.ENOTDIR, b"to-d/b"):
                method(b"to-d/b")
