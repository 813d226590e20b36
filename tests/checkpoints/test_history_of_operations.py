"""Differential: random histories on the kernel's own overlay, checkpoints on the way, and back to each of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.checkpoints.layers import Layers, Operations, fill, show
from workbench.checkpoints.restore import pending, restore
from workbench.checkpoints.scan import Hasher, scan
from workbench.checkpoints.store import Checkpoint
from workbench.vfs.upper import LocalUpper

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("root")]


@pytest.mark.parametrize("seed", range(12))
def test_every_checkpoint_of_a_history_can_be_gone_back_to(layers: Layers, seed: int) -> None:
    fill(layers.lower)
    dice = random.Random(seed)
    recorded: list[tuple[Checkpoint, dict[bytes, object]]] = []
    current = None
    for round_number in range(3):
        with layers.mounted() as merged:
            for batch in range(2):
                Operations(merged, seed * 100 + round_number * 10 + batch).run(60)
                checkpoint = layers.take(previous=current)
                current = None
                recorded.append((checkpoint, dict(show(merged))))
        target, _ = dice.choice(recorded)
        current = _restore(layers, target)
    for checkpoint, expected in dice.sample(recorded, len(recorded)):
        _restore(layers, checkpoint)
        with layers.mounted() as merged:
            assert show(merged) == expected


def _restore(layers: Layers, target: Checkpoint) -> object:
    """Restore a checkpoint read back from the store, and look at the layer with fresh eyes."""
    manifest = layers.store.get(target.commit).manifest
    inode = layers.upper.stat().st_ino
    with LocalUpper(bytes(layers.upper)) as upper:
        restored = restore(str(layers.upper), upper, manifest, layers.store)
        assert scan(upper, Hasher(), boot_id="another boot", previous=restored) == restored.entries
    assert layers.upper.stat().st_ino == inode
    assert restored.bases == manifest.bases
    assert restored.entries.keys() == manifest.entries.keys()
    assert pending(str(layers.upper)) is None
    return restored


def test_a_restore_leaves_the_times_of_what_it_does_not_change(layers: Layers, tmp_path: Path) -> None:
    fill(layers.lower)
    with layers.mounted() as merged:
        (merged / "stays").write_text("as it is")
        first = layers.take()
        (merged / "goes").write_text("away")
        second = layers.take()
    before = (layers.upper / "stays").stat()
    with LocalUpper(bytes(layers.upper)) as upper:
        restore(str(layers.upper), upper, first.manifest, layers.store, current=second.manifest)
    after = (layers.upper / "stays").stat()
    assert (before.st_ino, before.st_mtime_ns, before.st_ctime_ns) == (
        after.st_ino,
        after.st_mtime_ns,
        after.st_ctime_ns,
    )
