"""What every overlay has to keep: subclass `OverlayContract` beside your layers' tests."""

from __future__ import annotations

import errno
from pathlib import Path

from workbench.errors import OptionsError
from workbench.testing.storage_contract import NAMES
from workbench.testing.trees import Directory, File, Tree, raises
from workbench.vfs.overlay import Overlay
from workbench.vfs.storage import Kind, Storage

_LOWER: Tree = {
    b"f": File(b"lower f"),
    b"d/a": File(b"lower a"),
    b"d/b": File(b"lower b"),
    b"d/e/f": File(b"lower f"),
    b"d/e/g/h": File(b"lower h"),
    b"other/x": File(b"lower x"),
}


class OverlayContract:
    """The promises of `workbench.vfs.overlay.Overlay` over any lower and upper layer, as tests.

    A subclass has `make_overlay`, and by `names` may leave out what its layers can't have. `settle` is called after each
    change, and may return another overlay to go on with: `workbench.testing.freeze` makes every test meet a lower layer
    only.::

        class TestMine(OverlayContract):
            def make_overlay(self, lower, tmp_path):
                fill(os.fsencode(tmp_path), lower)      # workbench.testing.trees
                return Overlay(MyStorage(tmp_path), MemoryUpper())
    """

    names: tuple[bytes, ...] = NAMES

    def make_overlay(self, lower: Tree, tmp_path: Path) -> Overlay:
        """An overlay with exactly this tree in its lower layer. `tmp_path` is an empty directory, yours to use."""
        raise NotImplementedError

    def settle(self, overlay: Overlay) -> Overlay:
        """The overlay to go on with after a change."""
        return overlay

    # Files

    def test_a_lower_file_is_changed_in_the_upper_alone(self, tmp_path: Path) -> None:
        overlay = self.make_overlay(_LOWER, tmp_path)
        below = overlay.lower
        before = _contents(below)
        overlay.write_bytes(b"d/a", b"new a")
        overlay = self.settle(overlay)
        with overlay.open(b"d/b", "ab") as file:
            file.write(b" and more")
        overlay = self.settle(overlay)
        with overlay.open(b"d/e/f", "r+b") as file:
            file.seek(6)
            file.write(b"F!")
        overlay = self.settle(overlay)
        overlay.truncate(b"f", 3)
        overlay = self.settle(overlay)
        assert _contents(overlay) == {
            **before,
            b"d/a": b"new a",
            b"d/b": b"lower b and more",
            b"d/e/f": b"lower F!",
            b"f": b"low",
        }
        assert _contents(below) == before

    def test_a_new_file_is_there_with_its_bytes(self, tmp_path: Path) -> None:
        overlay = self.make_overlay(_LOWER, tmp_path)
        overlay.write_bytes(b"d/e/new", b"\0\xff")
        overlay = self.settle(overlay)
        overlay.create(b"empty")
        overlay = self.settle(overlay)
        assert overlay.read_bytes(b"d/e/new") == b"\0\xff"
        assert overlay.stat(b"empty").size == 0
        assert overlay.list(b"d/e") == [b"f", b"g", b"new"]

    def test_exclusive_creation_refuses_what_either_layer_has(self, tmp_path: Path) -> None:
        overlay = self.make_overlay(_LOWER, tmp_path)
        overlay.write_bytes(b"new", b"")
        overlay = self.settle(overlay)
        for path in (b"f", b"new", b"d"):
            with raises(errno.EEXIST, path):
                overlay.open(path, "xb")
            with raises(errno.EEXIST, path):
                overlay.create(path)
        overlay.create(b"f", exclusive=False)
        assert overlay.read_bytes(b"f") == b"lower f"

    def test_modes_of_opening_do_what_pythons_do(self, tmp_path: Path) -> None:
        overlay = self.make_overlay(_LOWER, tmp_path)
        with raises(errno.ENOENT, b"new"):
            overlay.open(b"new", "r+b")
        with overlay.open(b"f", "w+b") as file:
            assert file.read() == b""
            file.write(b"0123456789")
            file.seek(3)
            assert file.read(2) == b"34"
            file.truncate(6)
        overlay = self.settle(overlay)
        with overlay.open(b"f", "a+b") as file:
            assert file.tell() == 6
            file.write(b"!")
            file.seek(0)
            assert file.read() == b"012345!"
        for mode in ("r", "w", "rt", "b", "rwb", "wxb", ""):
            try:
                overlay.open(b"f", mode)
            except OptionsError:
                continue
            raise AssertionError(f"{mode!r} was taken for a mode")

    def test_opening_alone_changes_nothing(self, tmp_path: Path) -> None:
        overlay = self.make_overlay(_LOWER, tmp_path)
        before = overlay.stat(b"f")
        overlay.open(b"f", "r+b").close()
        overlay.open(b"f", "ab").close()
        assert overlay.stat(b"f") == before

    def test_an_open_file_survives_a_rename_and_a_deletion(self, tmp_path: Path) -> None:
        overlay = self.make_overlay(_LOWER, tmp_path)
        with overlay.open(b"d/a", "r+b") as early, overlay.open(b"d/e/f", "r+b") as gone:
            overlay.rename(b"d", b"moved")
            early.seek(0, 2)
            early.write(b" then moved")
            early.flush()
            assert overlay.read_bytes(b"moved/a") == b"lower a then moved"
            overlay.remove_tree(b"moved/e")
            gone.write(b"LOWER")
            gone.seek(0)
            assert gone.read() == b"LOWER f"
        assert not overlay.exists(b"d")
        assert overlay.list(b"moved") == [b"a", b"b"]

    def test_an_atomic_replace_leaves_open_files_with_the_old_content(self, tmp_path: Path) -> None:
        overlay = self.make_overlay(_LOWER, tmp_path)
        overlay.chmod(b"f", 0o751)
        overlay = self.settle(overlay)
        with overlay.open(b"f", "r+b") as old:
            overlay.write_bytes(b"f", b"new")
            assert old.read() == b"lower f"
        overlay = self.settle(overlay)
        assert overlay.read_bytes(b"f") == b"new"
        assert overlay.stat(b"f").mode == 0o751

    def test_an_editors_save_replaces_the_file(self, tmp_path: Path) -> None:
        overlay = self.make_overlay(_LOWER, tmp_path)
        overlay.write_bytes(b"d/.a.swp", b"saved")
        overlay = self.settle(overlay)
        overlay.rename(b"d/.a.swp", b"d/a")
        overlay = self.settle(overlay)
        assert overlay.read_bytes(b"d/a") == b"saved"
        assert overlay.list(b"d") == [b"a", b"b", b"e"]

    # Deletions

    def test_what_was_deleted_is_gone_with_all_that_was_below(self, tmp_path: Path) -> None:
        overlay = self.make_overlay(_LOWER, tmp_path)
        overlay.remove_tree(b"d")
        overlay = self.settle(overlay)
        overlay.unlink(b"f")
        overlay = self.settle(overlay)
        for path in (b"d", b"d/a", b"d/e/f", b"f"):
            assert not overlay.exists(path)
            with raises(errno.ENOENT, path):
                overlay.open(path)
        assert overlay.list(b"") == [b"other"]

    def test_a_deleted_then_recreated_directory_hides_what_was_in_it(self, tmp_path: Path) -> None:
        overlay = self.make_overlay(_LOWER, tmp_path)
        overlay.remove_tree(b"d")
        overlay = self.settle(overlay)
        overlay.makedirs(b"d/e")
        overlay = self.settle(overlay)
        overlay.write_bytes(b"d/e/new", b"")
        overlay = self.settle(overlay)
        assert not overlay.exists(b"d/e/f")
        assert overlay.list(b"d") == [b"e"]
        assert overlay.list(b"d/e") == [b"new"]

    def test_a_directory_emptied_entry_by_entry_can_be_removed(self, tmp_path: Path) -> None:
        overlay = self.make_overlay(_LOWER, tmp_path)
        with raises(errno.ENOTEMPTY, b"d"):
            overlay.rmdir(b"d")
        for path in (b"d/e/g/h", b"d/e/f", b"d/a", b"d/b"):
            overlay.unlink(path)
            overlay = self.settle(overlay)
        for path in (b"d/e/g", b"d/e", b"d"):
            overlay.rmdir(path)
            overlay = self.settle(overlay)
        assert not overlay.exists(b"d")
        assert overlay.list(b"") == [b"f", b"other"]

    def test_files_and_directories_take_each_others_place(self, tmp_path: Path) -> None:
        overlay = self.make_overlay(_LOWER, tmp_path)
        overlay.remove_tree(b"d")
        overlay = self.settle(overlay)
        overlay.write_bytes(b"d", b"a file now")
        overlay = self.settle(overlay)
        overlay.unlink(b"f")
        overlay = self.settle(overlay)
        overlay.mkdir(b"f")
        overlay = self.settle(overlay)
        overlay.write_bytes(b"f/below", b"")
        overlay = self.settle(overlay)
        assert overlay.read_bytes(b"d") == b"a file now"
        assert overlay.list(b"f") == [b"below"]
        with raises(errno.ENOTDIR, b"d/a"):
            overlay.stat(b"d/a")
        with raises(errno.ENOTDIR, b"d/new"):
            overlay.write_bytes(b"d/new", b"")

    # Renames

    def test_a_renamed_lower_directory_brings_all_of_its_content(self, tmp_path: Path) -> None:
        overlay = self.make_overlay(_LOWER, tmp_path)
        overlay.unlink(b"d/b")
        overlay = self.settle(overlay)
        overlay.write_bytes(b"d/new", b"new")
        overlay = self.settle(overlay)
        overlay.rename(b"d", b"other/moved")
        overlay = self.settle(overlay)
        assert not overlay.exists(b"d")
        assert _contents(overlay) == {
            b"f": b"lower f",
            b"other/x": b"lower x",
            b"other/moved/a": b"lower a",
            b"other/moved/e/f": b"lower f",
            b"other/moved/e/g/h": b"lower h",
            b"other/moved/new": b"new",
        }
        overlay.rename(b"other/moved", b"d")
        overlay = self.settle(overlay)
        assert overlay.list(b"d") == [b"a", b"e", b"new"]
        assert overlay.list(b"other") == [b"x"]

    def test_a_directory_moved_onto_a_deleted_one_shows_only_itself(self, tmp_path: Path) -> None:
        overlay = self.make_overlay(_LOWER, tmp_path)
        overlay.remove_tree(b"d")
        overlay = self.settle(overlay)
        overlay.makedirs(b"fresh/e")
        overlay = self.settle(overlay)
        overlay.rename(b"fresh", b"d")
        overlay = self.settle(overlay)
        assert overlay.list(b"d") == [b"e"]
        assert overlay.list(b"d/e") == []

    def test_a_rename_replaces_what_it_may(self, tmp_path: Path) -> None:
        overlay = self.make_overlay({**_LOWER, b"g/x": File()}, tmp_path)
        overlay.rename(b"d/a", b"f")
        overlay = self.settle(overlay)
        assert overlay.read_bytes(b"f") == b"lower a"
        assert not overlay.exists(b"d/a")
        overlay.unlink(b"g/x")
        overlay = self.settle(overlay)
        overlay.rename(b"d", b"g")
        overlay = self.settle(overlay)
        assert overlay.list(b"g") == [b"b", b"e"]
        assert not overlay.exists(b"d")

    def test_a_rename_refuses_what_it_may_not(self, tmp_path: Path) -> None:
        overlay = self.make_overlay(_LOWER, tmp_path)
        refused = [
            (b"missing", b"new", errno.ENOENT),
            (b"f", b"missing/new", errno.ENOENT),
            (b"f", b"d", errno.EISDIR),
            (b"d", b"f", errno.ENOTDIR),
            (b"d", b"other", errno.ENOTEMPTY),
            (b"d", b"d/e/new", errno.EINVAL),
            (b"d/e", b"d", errno.ENOTEMPTY),
            (b"f", b"f/new", errno.ENOTDIR),
            (b"", b"new", errno.EBUSY),
            (b"f", b"", errno.EBUSY),
        ]
        before = _contents(overlay)
        for src, dst, code in refused:
            with raises(code):
                overlay.rename(src, dst)
        for dst in (b"d/a", b"f"):
            with raises(errno.EEXIST, dst):
                overlay.rename(b"f", dst, replace=False)
        overlay.rename(b"f", b"f")
        assert _contents(overlay) == before

    # Copies, links, metadata

    def test_copies_are_of_their_own(self, tmp_path: Path) -> None:
        overlay = self.make_overlay(_LOWER, tmp_path)
        overlay.chmod(b"d/a", 0o755)
        overlay = self.settle(overlay)
        overlay.copy(b"d/a", b"copy")
        overlay = self.settle(overlay)
        overlay.copy(b"d", b"tree")
        overlay = self.settle(overlay)
        overlay.write_bytes(b"d/a", b"changed")
        overlay = self.settle(overlay)
        assert overlay.read_bytes(b"copy") == overlay.read_bytes(b"tree/a") == b"lower a"
        assert overlay.stat(b"copy").mode == overlay.stat(b"tree/a").mode == 0o755
        assert list(overlay.find(b"tree")) == [b"tree/" + name for name in (b"a", b"b", b"e", b"e/f", b"e/g", b"e/g/h")]
        with raises(errno.EEXIST, b"tree"):
            overlay.copy(b"d", b"tree")
        with raises(errno.EINVAL, b"d/e/new"):
            overlay.copy(b"d", b"d/e/new")

    def test_hard_links_are_one_file(self, tmp_path: Path) -> None:
        overlay = self.make_overlay(_LOWER, tmp_path)
        overlay.link(b"f", b"d/link")
        overlay = self.settle(overlay)
        with overlay.open(b"d/link", "ab") as file:
            file.write(b" through the link")
        assert overlay.read_bytes(b"d/link") == b"lower f through the link"
        overlay.unlink(b"f")
        overlay = self.settle(overlay)
        assert overlay.read_bytes(b"d/link") == b"lower f through the link"

    def test_a_symlink_is_an_entry_of_its_own(self, tmp_path: Path) -> None:
        overlay = self.make_overlay(_LOWER, tmp_path)
        overlay.symlink(b"../f", b"d/link")
        overlay = self.settle(overlay)
        overlay.symlink(b"d", b"to-d")
        overlay = self.settle(overlay)
        assert overlay.readlink(b"d/link") == b"../f"
        assert overlay.resolve(b"to-d/link") == b"f"
        for mode in ("rb", "r+b", "wb", "ab"):
            with raises(errno.ELOOP, b"d/link"):
                overlay.open(b"d/link", mode)
        with raises(errno.ELOOP, b"d/link"):
            overlay.write_bytes(b"d/link", b"")
        for act in (overlay.create, overlay.mkdir, overlay.unlink, overlay.remove_tree):
            with raises(errno.ENOTDIR, b"to-d/a"):
                act(b"to-d/a")
        overlay.rename(b"d/link", b"link")
        overlay = self.settle(overlay)
        overlay.remove_tree(b"to-d")
        overlay = self.settle(overlay)
        assert overlay.readlink(b"link") == b"../f"
        assert overlay.read_bytes(b"d/a") == b"lower a"

    def test_modes_and_times_stay_as_they_were_set(self, tmp_path: Path) -> None:
        overlay = self.make_overlay(_LOWER, tmp_path)
        for path in (b"f", b"d", b"d/e"):
            overlay.chmod(path, 0o750)
            overlay = self.settle(overlay)
            overlay.utime(path, 10**18)
            overlay = self.settle(overlay)
        for path in (b"f", b"d", b"d/e"):
            assert overlay.stat(path).mode == 0o750
            assert overlay.stat(path).mtime_ns == 10**18
        overlay.write_bytes(b"run", b"#!")
        overlay.chmod(b"run", 0o755)
        overlay = self.settle(overlay)
        overlay.rename(b"run", b"d/run")
        overlay = self.settle(overlay)
        assert overlay.stat(b"d/run").mode == 0o755

    def test_extended_attributes_stay_as_they_were_set(self, tmp_path: Path) -> None:
        overlay = self.make_overlay(_LOWER, tmp_path)
        for path in (b"f", b"d"):
            overlay.setxattr(path, b"user.note", b"\0\xff")
            overlay = self.settle(overlay)
            overlay.setxattr(path, b"user.other", b"")
            overlay = self.settle(overlay)
        overlay.rename(b"d", b"moved")
        overlay = self.settle(overlay)
        for path in (b"f", b"moved"):
            assert overlay.listxattr(path) == [b"user.note", b"user.other"]
            assert overlay.getxattr(path, b"user.note") == b"\0\xff"
            overlay.removexattr(path, b"user.note")
            overlay = self.settle(overlay)
            assert overlay.xattrs(path) == {b"user.other": b""}
            with raises(errno.ENODATA, path):
                overlay.getxattr(path, b"user.note")
        assert overlay.read_bytes(b"f") == b"lower f"

    def test_a_copy_up_is_not_seen(self, tmp_path: Path) -> None:
        overlay = self.make_overlay(_LOWER, tmp_path)
        before = {path: _shown(overlay, path) for path in [b"", *overlay.find()] if path != b"d/e/f"}
        overlay.chmod(b"d/e/f", 0o600)
        assert {path: _shown(overlay, path) for path in before} == before

    # Views

    def test_names_are_kept_byte_by_byte(self, tmp_path: Path) -> None:
        names = {*self.names, b".wh.f", b".wh..wh..opq", b".git", b"new\nline", b"tab\t", b"\xff\xfe", b"n" * 255}
        overlay = self.make_overlay(_LOWER, tmp_path)
        for name in sorted(names):
            overlay.write_bytes(b"d/e/" + name, name)
        overlay = self.settle(overlay)
        assert overlay.list(b"d/e") == sorted({*names, b"f", b"g"})
        for name in sorted(names):
            assert overlay.read_bytes(b"d/e/" + name) == name
            overlay.rename(b"d/e/" + name, b"other/" + name)
        overlay = self.settle(overlay)
        assert overlay.list(b"d/e") == [b"f", b"g"]
        for name in sorted(names):
            overlay.unlink(b"other/" + name)
        overlay = self.settle(overlay)
        assert overlay.list(b"other") == [b"x"]

    def test_walks_globs_and_finds_show_both_layers_in_order(self, tmp_path: Path) -> None:
        overlay = self.make_overlay(_LOWER, tmp_path)
        overlay.makedirs(b"d/c/deep")
        overlay.write_bytes(b"d/c/deep/f", b"")
        overlay.unlink(b"d/b")
        overlay = self.settle(overlay)
        assert list(overlay.walk(b"d")) == [
            (b"d", [b"c", b"e"], [b"a"]),
            (b"d/c", [b"deep"], []),
            (b"d/c/deep", [], [b"f"]),
            (b"d/e", [b"g"], [b"f"]),
            (b"d/e/g", [], [b"h"]),
        ]
        found = [b"d/a", b"d/c", b"d/c/deep", b"d/c/deep/f", b"d/e", b"d/e/f", b"d/e/g", b"d/e/g/h"]
        assert list(overlay.find(b"d")) == found
        assert list(overlay.find(b"d", kind=Kind.FILE)) == [b"d/a", b"d/c/deep/f", b"d/e/f", b"d/e/g/h"]
        assert overlay.glob(b"**/f") == [b"d/c/deep/f", b"d/e/f", b"f"]
        assert overlay.glob(b"d/**") == found
        assert overlay.glob(b"d/*") == [b"d/a", b"d/c", b"d/e"]
        assert overlay.glob(b"*/[ac]") == [b"d/a", b"d/c"]
        assert overlay.glob(b"d/?/**/f") == [b"d/c/deep/f", b"d/e/f"]
        assert overlay.glob(b"d/e/f") == [b"d/e/f"]
        assert overlay.glob(b"d/[!e]") == [b"d/a", b"d/c"]
        assert overlay.glob(b"nothing/*") == overlay.glob(b"f/*") == []

    def test_makedirs_makes_what_is_missing(self, tmp_path: Path) -> None:
        overlay = self.make_overlay({**_LOWER, b"empty": Directory()}, tmp_path)
        overlay.makedirs(b"d/x/y/z")
        overlay = self.settle(overlay)
        assert overlay.stat(b"d/x/y/z").kind is Kind.DIR
        with raises(errno.EEXIST, b"d/x"):
            overlay.makedirs(b"d/x")
        with raises(errno.EEXIST, b"f"):
            overlay.makedirs(b"f", exist_ok=True)
        with raises(errno.ENOTDIR):
            overlay.makedirs(b"f/x", exist_ok=True)
        overlay.makedirs(b"d/x", exist_ok=True)
        with raises(errno.EEXIST, b"d"):
            overlay.mkdir(b"d")
        with raises(errno.ENOENT, b"no/way"):
            overlay.mkdir(b"no/way")

    def test_the_scratch_directory_is_out_of_every_listing_and_reached_by_name(self, tmp_path: Path) -> None:
        overlay = self.make_overlay(_LOWER, tmp_path)
        overlay.makedirs(overlay.scratch + b"/sub")
        overlay.write_bytes(overlay.scratch + b"/plan", b"")
        overlay = self.settle(overlay)
        assert overlay.list(b"") == [b"d", b"f", b"other"]
        assert not any(path.startswith(overlay.scratch) for path in overlay.find())
        assert overlay.glob(b"**/plan") == overlay.glob(b"_*") == []
        assert overlay.glob(overlay.scratch + b"/*") == [overlay.scratch + b"/plan", overlay.scratch + b"/sub"]
        assert overlay.list(overlay.scratch) == [b"plan", b"sub"]
        assert overlay.read_bytes(overlay.scratch + b"/plan") == b""

    def test_no_path_leaves_the_root(self, tmp_path: Path) -> None:
        overlay = self.make_overlay(_LOWER, tmp_path)
        acts = (overlay.stat, overlay.list, overlay.open, overlay.create, overlay.mkdir, overlay.unlink, overlay.glob)
        for path in (b"/f", b"..", b"d/../f", b"d/./a", b"d//a", b"d/", b".", b"x\0"):
            for act in acts:
                try:
                    act(path)
                except OptionsError:
                    continue
                raise AssertionError(f"{act.__name__} took {path!r} for a path inside")


def _contents(storage: Storage) -> dict[bytes, bytes]:
    """The content of every file of a storage, by path."""
    found = {}
    waiting = [b""]
    while waiting:
        here = waiting.pop()
        for name in storage.list(here):
            path = here + b"/" + name if here else name
            kind = storage.stat(path).kind
            if kind is Kind.DIR:
                waiting.append(path)
            elif kind is Kind.FILE:
                with storage.open(path) as file:
                    found[path] = file.read()
    return found


def _shown(overlay: Overlay, path: bytes) -> tuple[object, ...]:
    stat = overlay.stat(path)
    size = 0 if stat.kind is Kind.DIR else stat.size
    return (stat.kind, stat.mode, stat.uid, stat.gid, size, stat.mtime_ns)
