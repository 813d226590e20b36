"""A manifest in parts: written as what differs, it's the one that would be written anew, and what was one file is read."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.checkpoints.layers import Layers, Operations, fill
from workbench.checkpoints import manifest_format, objects, parts, tree, upkeep
from workbench.checkpoints.manifest import Entry, Manifest
from workbench.checkpoints.restore import restore
from workbench.checkpoints.store import Checkpoint, CheckpointStore
from workbench.errors import CheckpointError
from workbench.vfs.storage import Kind
from workbench.vfs.upper import LocalUpper


def tree_of(store: CheckpointStore, checkpoint: Checkpoint) -> bytes:
    return objects.decode_commit(store.object(bytes.fromhex(checkpoint.commit), objects.COMMIT))[0]


def written_anew(manifest: Manifest) -> bytes:
    return tree.build(manifest, objects.object_id)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few records a part that every few changes there are twice as many parts, or half."""
    monkeypatch.setattr(parts, "_RECORDS_A_PART", 4)


@pytest.mark.root
@pytest.mark.usefixtures("root", "small_parts")
@pytest.mark.parametrize("seed", range(6))
def test_what_is_written_as_a_difference_is_what_would_be_written_anew(layers: Layers, seed: int) -> None:
    fill(layers.lower)
    for batch in range(6):
        with layers.mounted() as merged:
            Operations(merged, seed * 100 + batch).run(25)
        # Every other time by a process that has nothing in memory.
        store = layers.store if batch % 2 else CheckpointStore(layers.store.directory)
        taken = replace(layers, store=store, number=batch).take()
        with CheckpointStore(layers.store.directory) as fresh:
            manifest = fresh.get(taken.commit).manifest
            assert tree_of(fresh, taken) == written_anew(manifest)
        assert (manifest.entries, manifest.bases) == (taken.manifest.entries, taken.manifest.bases)
        assert list(manifest.entries) == sorted(manifest.entries)
        assert list(manifest.bases) == sorted(manifest.bases)
        if store is not layers.store:
            store.close()


@pytest.mark.parametrize("old", ["file", "symlink", "directory", "nothing"])
@pytest.mark.parametrize("new", ["file", "symlink", "directory", "nothing"])
@pytest.mark.parametrize("name", ["a", ".gitignore", ".git"])
def test_whatever_takes_the_place_of_whatever_the_tree_is_what_would_be_written_anew(
    layers: Layers, old: str, new: str, name: str
) -> None:
    for number, kind in enumerate((old, new)):
        at = layers.upper / name
        if at.is_dir() and not at.is_symlink():
            (at / "below").unlink()
            at.rmdir()
        elif os.path.lexists(at):
            at.unlink()
        if kind == "file":
            at.write_text(f"content {number}")
        elif kind == "symlink":
            at.symlink_to(f"target {number}")
        elif kind == "directory":
            at.mkdir()
            (at / "below").write_text(f"below {number}")
        taken = layers.take()
        assert tree_of(layers.store, taken) == written_anew(taken.manifest)


def test_few_changes_write_few_objects_whatever_the_layer_holds(layers: Layers) -> None:
    for number in range(2000):
        (layers.upper / f"d{number // 50}").mkdir(exist_ok=True)
        (layers.upper / f"d{number // 50}" / f"f{number}").write_text(f"{number}")
    layers.take()
    packs = Path(layers.store.pack_directory)
    before = set(packs.glob("*.pack"))
    for number in (1, 999):
        (layers.upper / f"d{number // 50}" / f"f{number}").write_text("changed")
    layers.take()
    (pack,) = set(packs.glob("*.pack")) - before
    # The content; the trees of the root, f, m and two directories; two parts and the index; the commit.
    assert int.from_bytes(pack.read_bytes()[8:12], "big") <= 10


def as_before(store: CheckpointStore, directory: str, manifest: Manifest) -> bytes:
    """The tree of a manifest as it was written when that was one file."""
    with store._pack() as pack:
        top = objects.decode_tree(store.object(tree_of(store, store.list(directory)[0]), objects.TREE))
        top[b"m"] = (objects.MODE_FILE, pack.add(objects.BLOB, manifest_format.to_bytes(manifest)))
        tree_id = pack.add(objects.TREE, objects.encode_tree((name, *rest) for name, rest in top.items()))
        pack.publish()
    return tree_id


def test_a_checkpoint_of_before_is_read_restored_and_gone_on_from(
    layers: Layers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (layers.upper / "d").mkdir()
    (layers.upper / "d/f").write_text("first")
    first = layers.take()
    manifest = first.manifest
    old_tree = as_before(layers.store, "default", manifest)
    with monkeypatch.context() as patched:
        # The session's history as it would have been written then.
        patched.setattr("workbench.checkpoints.history._SCHEMA", 1)
        patched.setattr(layers.store, "_tree_id", lambda commit: old_tree)
        layers.store.rewrite("default", lambda row: True)
    with CheckpointStore(layers.store.directory) as store:
        (old,) = store.list("default")
        assert b"Workbench-Schema: 1" in store.object(bytes.fromhex(old.commit), objects.COMMIT)
        assert tree_of(store, old) == old_tree
        assert store.get(old.commit).manifest.entries == manifest.entries
        (layers.upper / "d/f").write_text("second")
        second = replace(layers, store=store).take()
        assert tree_of(store, second) == written_anew(second.manifest)
        with LocalUpper(os.fsencode(layers.upper)) as upper:
            restore(str(layers.upper), upper, store.get(old.commit).manifest, store)
        assert (layers.upper / "d/f").read_text() == "first"
        upkeep.collect(store)
        assert upkeep.verify(store).whole == 2


def entries(*names: bytes) -> dict[bytes, Entry]:
    found = {b"": Entry(b"", Kind.DIR, 0o755, 0, 0, 0, 1, 1, 1)}
    return found | {name: Entry(name, Kind.FIFO, 0o644, 0, 0, 0, 1, 1, 2) for name in names}


@pytest.mark.parametrize("damage", ["no index", "another index", "another number of parts", "a part less", "no number"])
@pytest.mark.usefixtures("small_parts")
def test_a_manifest_that_lacks_something_is_damage_and_never_a_smaller_one(damage: str) -> None:
    kept: dict[bytes, bytes] = {}

    def add(kind: int, data: bytes) -> bytes:
        oid = objects.object_id(kind, data)
        kept[oid] = data
        return oid

    manifest = Manifest(entries(*(b"d%d/f" % number for number in range(40))))
    made = objects.decode_tree(kept[parts.apart(manifest, add)])
    if damage == "no index":
        del made[parts.INDEX]
    elif damage == "another index":
        made[parts.INDEX] = (objects.MODE_FILE, add(objects.BLOB, b"something else\n"))
    elif damage == "another number of parts":
        index = kept[made[parts.INDEX][1]].replace(b"parts=8", b"parts=4")
        made[parts.INDEX] = (objects.MODE_FILE, add(objects.BLOB, index))
    elif damage == "a part less":
        del made[next(name for name in made if name != parts.INDEX)]
    else:
        made[b"zz"] = made.pop(next(name for name in made if name != parts.INDEX))
    oid = add(objects.TREE, objects.encode_tree((name, *rest) for name, rest in made.items()))
    with pytest.raises(CheckpointError) as caught:
        parts.Recorded.at(
            lambda wanted, kind: kept[wanted], oid, is_blob=False, whole=None, boot_id="", scanned_ns=0
        ).whole()
    assert caught.value.code == "store_corrupt"
