"""The tree of a checkpoint, made for people as much as for us.

::

    f/…   the upper layer's files and symlinks, each component escaped as in `names`
    b/…   the base of each changed file: what the lower layer held there before
    d/…   by blob id, what lies too deep in f or b for git's own tools
    m     the manifest, see `manifest_format`

so that plain git reads it::

    git -C checkpoints.git log --format='%h %s' refs/workbench/default/tip
    git -C checkpoints.git show refs/workbench/default/tip:f/src/a.py
    git -C checkpoints.git diff refs/workbench/default/tip~1:f refs/workbench/default/tip:f
    git -C checkpoints.git diff refs/workbench/default/tip:b refs/workbench/default/tip:f
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from workbench.checkpoints import manifest_format, names, objects, side_store
from workbench.checkpoints.manifest import Manifest
from workbench.vfs.storage import Kind

MANIFEST = b"m"
_FILES, _BASES, _DEEP = b"f", b"b", b"d"

_MAX_DEPTH = 500
"""git-config(1), core.maxTreeDepth: git refuses trees deeper than 2048 levels, on some platforms 512."""

_EXECUTABLE = 0o111

Add = Callable[[int, bytes], bytes]
"""Takes an object's kind and content in, and returns its id."""


def build(manifest: Manifest, add: Add) -> bytes:
    """Make a manifest's tree out of objects that are already in the store; returns its id."""
    top = [(MANIFEST, objects.MODE_FILE, add(objects.BLOB, manifest_format.to_bytes(manifest)))]
    deep: set[bytes] = set()
    for name, items in ((_FILES, _files(manifest, add)), (_BASES, _bases(manifest))):
        tree = _directories(items, deep, add)
        if tree is not None:
            top.append((name, objects.MODE_TREE, tree))
    if deep:
        content = ((oid.hex().encode(), objects.MODE_FILE, oid) for oid in deep)
        top.append((_DEEP, objects.MODE_TREE, add(objects.TREE, objects.encode_tree(content))))
    return add(objects.TREE, objects.encode_tree(top))


_Item = tuple[bytes, bytes, bytes]


def _files(manifest: Manifest, add: Add) -> Iterable[_Item]:
    for entry in manifest.entries.values():
        if not entry.blob:
            continue
        if entry.blob.startswith(side_store.PREFIX):
            oid = add(objects.BLOB, side_store.pointer(entry.blob, entry.size))
        else:
            oid = bytes.fromhex(entry.blob)
        yield entry.path, _mode(entry.kind, entry.mode), oid


def _bases(manifest: Manifest) -> Iterable[_Item]:
    for base in manifest.bases.values():
        if base.blob:
            yield base.path, _mode(base.kind, base.mode), bytes.fromhex(base.blob)


def _mode(kind: Kind, mode: int) -> bytes:
    if kind is Kind.SYMLINK:
        return objects.MODE_SYMLINK
    return objects.MODE_EXECUTABLE if mode & _EXECUTABLE else objects.MODE_FILE


def _directories(items: Iterable[_Item], deep: set[bytes], add: Add) -> bytes | None:
    """Add the trees of nested directories; returns the outermost one's id, None where there is nothing."""
    children: dict[bytes, list[_Item]] = {}
    for path, mode, oid in items:
        if path.count(b"/") >= _MAX_DEPTH:
            deep.add(oid)
            continue
        above, _, name = path.rpartition(b"/")
        escaped = names.escape(name, symlink=mode == objects.MODE_SYMLINK)
        _make_room(children, above)
        children[above].append((escaped, mode, oid))
    for directory in sorted(children, key=lambda path: path.count(b"/"), reverse=True):
        if directory:
            tree = add(objects.TREE, objects.encode_tree(children[directory]))
            above, _, name = directory.rpartition(b"/")
            children[above].append((names.escape(name), objects.MODE_TREE, tree))
    top = children.get(b"")
    return None if top is None else add(objects.TREE, objects.encode_tree(top))


def _make_room(children: dict[bytes, list[_Item]], directory: bytes) -> None:
    while directory not in children:
        children[directory] = []
        if not directory:
            return
        directory = directory.rpartition(b"/")[0]
