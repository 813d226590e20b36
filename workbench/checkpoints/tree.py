"""The tree of a checkpoint, made for people as much as for us.

::

    f/…   the upper layer's files and symlinks, each component escaped as in `names`
    b/…   the base of each changed file: what the lower layer held there before
    d/…   by blob id, what lies too deep in f or b for git's own tools
    m/…   the manifest, see `parts`

so that plain git reads it::

    git -C checkpoints.git log --format='%h %s' refs/workbench/default/tip
    git -C checkpoints.git show refs/workbench/default/tip:f/src/a.py
    git -C checkpoints.git diff refs/workbench/default/tip~1:f refs/workbench/default/tip:f
    git -C checkpoints.git diff refs/workbench/default/tip:b refs/workbench/default/tip:f

Of a checkpoint that differs from another in a few paths only the trees above those paths are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import NamedTuple, TypeVar

from workbench.checkpoints import names, objects, parts, side_store
from workbench.checkpoints.manifest import Base, Entry, Manifest
from workbench.checkpoints.parts import Add, Difference, Read, Recorded
from workbench.vfs.storage import Kind

_FILES, _BASES, _DEEP, _MANIFEST = b"f", b"b", b"d", b"m"

_MAX_DEPTH = 500
"""git-config(1), core.maxTreeDepth: git refuses trees deeper than 2048 levels, on some platforms 512."""

_EXECUTABLE = 0o111

_Tree = dict[bytes, tuple[bytes, bytes]]
"""By name, the mode and the id."""

_NOTHING = (b"", b"")

R = TypeVar("R", Entry, Base)


def recorded(tree_id: bytes, read: Read, *, whole: Manifest | None, boot_id: str, scanned_ns: int) -> Recorded:
    """The manifest in a tree; the rest as of `Recorded.at`. Raises CheckpointError (store_corrupt), OSError."""
    found = objects.decode_tree(read(tree_id, objects.TREE)).get(_MANIFEST)
    if found is None:
        raise objects.corrupt(f"the checkpoint with the tree {tree_id.hex()} has no manifest")
    is_blob = found[0] != objects.MODE_TREE
    return Recorded.at(read, found[1], is_blob=is_blob, whole=whole, boot_id=boot_id, scanned_ns=scanned_ns)


def build(manifest: Manifest, add: Add) -> bytes:
    """Make a manifest's tree out of objects that are already in the store; returns its id."""
    top: _Tree = {_MANIFEST: (objects.MODE_TREE, parts.apart(manifest, add))}
    deep: set[bytes] = set()
    for name, leaves in _leaves(Difference.between(Manifest(), manifest), add):
        shallow = []
        for leaf in leaves:
            if _is_deep(leaf):
                deep.add(leaf.oid)
            else:
                shallow.append(leaf)
        _put(top, name, _edited(None, shallow, None, add))
    if deep:
        content = ((oid.hex().encode(), objects.MODE_FILE, oid) for oid in deep)
        _put(top, _DEEP, add(objects.TREE, objects.encode_tree(content)))
    return add(objects.TREE, _encoded(top))


def edit(tree_id: bytes, known: Recorded, difference: Difference, read: Read, add: Add) -> bytes:
    """Make the tree of a manifest that differs from `known`, which is the one in a tree; returns its id.

    It's the one that `build` makes. Raises CheckpointError (store_corrupt), OSError.
    """
    manifest = known.edited(difference, add)
    top = objects.decode_tree(read(tree_id, objects.TREE))
    changed = _leaves(difference, add)
    if manifest is None or _DEEP in top or any(map(_is_deep, chain.from_iterable(leaves for _, leaves in changed))):
        return build(after(known.whole(), difference), add)
    top[_MANIFEST] = (objects.MODE_TREE, manifest)
    for name, leaves in changed:
        if leaves:
            _put(top, name, _edited(top[name][1] if name in top else None, leaves, read, add))
    return add(objects.TREE, _encoded(top))


def after(manifest: Manifest, difference: Difference) -> Manifest:
    """A manifest with what differs in it."""
    return manifest.with_entries(
        parts.changed(manifest.entries, difference.entries), parts.changed(manifest.bases, difference.bases)
    )


class _Leaf(NamedTuple):
    """A change of a file in a tree: the name that it had, the one that it has, and what it is; empty where it's nothing."""

    path: bytes
    old: bytes
    new: bytes
    mode: bytes
    oid: bytes


def _leaves(difference: Difference, add: Add) -> tuple[tuple[bytes, list[_Leaf]], ...]:
    def pointer(entry: Entry) -> bytes:
        return add(objects.BLOB, side_store.pointer(entry.blob, entry.size))

    return (
        (_FILES, _changed(difference.entries, pointer)),
        (_BASES, _changed(difference.bases, lambda base: bytes.fromhex(base.blob))),
    )


def _changed(pairs: Iterable[tuple[R | None, R | None]], big: Callable[[R], bytes]) -> list[_Leaf]:
    found = []
    for old, new in pairs:
        had = _name(old) if old is not None and old.blob else b""
        if new is not None and new.blob:
            oid = big(new) if new.blob.startswith(side_store.PREFIX) else bytes.fromhex(new.blob)
            found.append(_Leaf(new.path, had, _name(new), _mode(new.kind, new.mode), oid))
        elif old is not None and had:
            found.append(_Leaf(old.path, had, b"", b"", b""))
    return found


def _name(record: Entry | Base) -> bytes:
    return names.escape(record.path.rpartition(b"/")[2], symlink=record.kind is Kind.SYMLINK)


def _mode(kind: Kind, mode: int) -> bytes:
    if kind is Kind.SYMLINK:
        return objects.MODE_SYMLINK
    return objects.MODE_EXECUTABLE if mode & _EXECUTABLE else objects.MODE_FILE


def _is_deep(leaf: _Leaf) -> bool:
    return leaf.path.count(b"/") >= _MAX_DEPTH


def _edited(tree_id: bytes | None, leaves: Iterable[_Leaf], read: Read | None, add: Add) -> bytes | None:
    """A tree with some files changed in it, and in those below it; returns its id, None where it's empty."""
    changes: dict[bytes, list[_Leaf]] = {b"": []}
    for leaf in leaves:
        above = leaf.path.rpartition(b"/")[0]
        _make_room(changes, above)
        changes[above].append(leaf)
    directories = sorted((path for path in changes if path), key=lambda path: path.count(b"/"))
    contents: dict[bytes, _Tree] = {b"": _content(tree_id, read)}
    for path in directories:
        above, _, name = path.rpartition(b"/")
        mode, oid = contents[above].get(names.escape(name), (b"", b""))
        contents[path] = _content(oid if mode == objects.MODE_TREE else None, read)
    for path, some in changes.items():
        _change(contents[path], some, contents)
    for path in reversed(directories):
        above, _, name = path.rpartition(b"/")
        tree = add(objects.TREE, _encoded(contents[path])) if contents[path] else None
        _put(contents[above], names.escape(name), tree)
    return add(objects.TREE, _encoded(contents[b""])) if contents[b""] else None


def _change(content: _Tree, leaves: Iterable[_Leaf], trees: Mapping[bytes, _Tree]) -> None:
    for leaf in leaves:
        if leaf.old and content.get(leaf.old, _NOTHING)[0] != objects.MODE_TREE:
            content.pop(leaf.old, None)
        # A base may stand above others of another time: where git can't hold both, it's those that it holds.
        if leaf.new and (leaf.path in trees or content.get(leaf.new, _NOTHING)[0] != objects.MODE_TREE):
            content[leaf.new] = (leaf.mode, leaf.oid)


def _put(content: _Tree, name: bytes, tree_id: bytes | None) -> None:
    if tree_id is not None:
        content[name] = (objects.MODE_TREE, tree_id)
    elif content.get(name, _NOTHING)[0] == objects.MODE_TREE:
        del content[name]


def _content(tree_id: bytes | None, read: Read | None) -> _Tree:
    return {} if tree_id is None or read is None else objects.decode_tree(read(tree_id, objects.TREE))


def _encoded(content: _Tree) -> bytes:
    return objects.encode_tree((name, mode, oid) for name, (mode, oid) in content.items())


def _make_room(changes: dict[bytes, list[_Leaf]], directory: bytes) -> None:
    while directory not in changes:
        changes[directory] = []
        directory = directory.rpartition(b"/")[0]
