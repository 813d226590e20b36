"""A file that moved and changed a little is shown as git shows one, and its patch still makes the same tree."""

from __future__ import annotations

import random

import pytest

from tests.review.test_diff import _git_diff, _git_tree, _landed
from workbench.review import diff
from workbench.review.changeset import ChangeKind
from workbench.review.similar import with_similar_renames


def seen(layers):
    return with_similar_renames(layers.changes().shown, layers.lower, layers.store)


def text(seed: int, lines: int) -> list[bytes]:
    generator = random.Random(seed)
    return [b"%d of %d, %s\n" % (number, seed, b"x" * generator.randrange(90)) for number in range(lines)]


@pytest.mark.parametrize("seed", range(8))
def test_renames_with_changes_are_those_that_git_finds(layers, apply_changes, seed) -> None:
    generator = random.Random(seed)
    for number in range(6):
        name = generator.choice([b"a/f%d", b"b/g%d.py", b"x%d/same"]) % number
        lines = text(number, generator.choice([8, 40]))
        layers.write("lower", name, b"".join(lines))
        layers.whiteout(name)
        kept = [line for line in lines if generator.random() < generator.choice([0.3, 0.6, 0.95])]
        end = generator.choice([b"", b"new\r\n" * 3, b"no end"])
        layers.write("upper", b"moved/" + name, b"".join(kept) + end)
    layers.write("upper", b"other", b"".join(text(99, 30)))
    _landed(layers, apply_changes)
    changes = seen(layers)
    git = _git_diff(layers, "--name-status", "--find-renames=50%")
    assert b"".join(diff.name_status(changes)) == git
    assert b"R0" in git
    stat = b"".join(diff.stat(changes, layers.lower, layers.store))
    assert stat == _git_diff(layers, "--stat=80", "--patience", "--find-renames=50%")


def test_the_patch_of_a_changed_rename_applies_with_git(layers, apply_changes) -> None:
    lines = text(1, 30)
    layers.write("lower", b"old name", b"".join(lines), 0o644)
    layers.whiteout(b"old name")
    layers.write("upper", b"d/new\tname", b"".join(lines[:-2]), 0o755)
    (change,) = (one for one in seen(layers) if not one.implied)
    assert (change.kind, change.renamed_from) == (ChangeKind.RENAMED, b"old name")
    patch = b"".join(diff.unified(seen(layers), layers.lower, layers.store))
    assert b"similarity index 88%" in patch
    assert _git_tree(layers, patch) == _landed(layers, apply_changes)


def test_what_has_little_in_common_or_isnt_a_file_is_no_rename(layers) -> None:
    layers.write("lower", b"a", b"".join(text(1, 30)))
    layers.whiteout(b"a")
    layers.write("upper", b"b", b"".join(text(2, 30)))
    layers.symlink("upper", b"c", b"a")
    layers.write("upper", b"empty", b"")
    assert {change.kind for change in seen(layers)} == {ChangeKind.ADDED, ChangeKind.DELETED}
    assert seen(layers) == layers.changes().shown
