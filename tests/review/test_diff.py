from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.errors import ConflictError
from workbench.review import diff
from workbench.review.lines import changed_ranges, hunks, split

_lines = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n", b"d\r\n", b"e"]), max_size=14).map(b"".join)


def _patch(layers, **options: Any) -> bytes:
    return b"".join(diff.unified(layers.changes().shown, layers.lower, layers.store, **options))


def _git_tree(layers, patch: bytes) -> dict[bytes, tuple[str, bytes]]:
    """What `git apply` makes of the lower with a patch, by path."""
    target = os.fsencode(layers.base / "applied")
    subprocess.run(["rm", "-rf", target], check=True)
    subprocess.run(["cp", "-a", layers.lower_path, target], check=True)
    layers.git("init", "-q", cwd=target)
    if patch:
        subprocess.run(["git", "apply", "--whitespace=nowarn", "-"], input=patch, cwd=target, check=True)
    return _tree(target)


def _tree(top: bytes) -> dict[bytes, tuple[str, bytes]]:
    """What git would keep of a directory: kind, executable bit and content of all that isn't a directory."""
    found = {}
    for parent, directories, files in os.walk(top):
        if b".git" in directories:
            directories.remove(b".git")
        for name in directories + files:
            path = os.path.join(parent, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                found[os.path.relpath(path, top)] = ("link", os.readlink(path))
            elif stat.S_ISREG(mode):
                with open(path, "rb") as file:
                    found[os.path.relpath(path, top)] = ("x" if mode & 0o100 else "-", file.read())
    return found


def _landed(layers, apply_changes) -> dict[bytes, tuple[str, bytes]]:
    target = os.fsencode(layers.base / "landed")
    subprocess.run(["rm", "-rf", target], check=True)
    subprocess.run(["cp", "-a", layers.lower_path, target], check=True)
    apply_changes(layers.changes(), target, layers.store)
    return _tree(target)


def _git_diff(layers, *arguments: str) -> bytes:
    """What git itself says of the change from the lower to the landed tree."""
    target = os.fsencode(layers.base / "landed")
    subprocess.run(["rm", "-rf", os.path.join(target, b".git")], check=True)
    layers.git("init", "-q", cwd=target)
    subprocess.run(
        ["git", "--work-tree", layers.lower_path, "add", "-A", "."],
        cwd=layers.lower_path,
        env={**os.environ, "GIT_DIR": os.path.join(os.fsdecode(target), ".git")},
        check=True,
    )
    tree = layers.git("write-tree", cwd=target).decode().strip()
    layers.git("add", "-A", cwd=target)
    options = ["--no-color", "--src-prefix=a/", "--dst-prefix=b/", "--find-renames=100%"]
    return layers.git("diff", "--cached", *options, *arguments, tree, cwd=target)


# Lines


@settings(max_examples=300, deadline=None)
@given(old=_lines, new=_lines)
def test_what_differs_turns_one_text_into_the_other(old, new) -> None:
    before, after = split(old), split(new)
    made: list[bytes] = []
    at = 0
    for old_from, old_to, new_from, new_to in changed_ranges(before, after):
        made += before[at:old_from]
        assert len(made) == new_from
        assert old_to > old_from or new_to > new_from
        made += after[new_from:new_to]
        at = old_to
    assert made + before[at:] == after


def test_a_few_edits_in_a_long_repetitive_file_stay_few_hunks() -> None:
    old = [b"%d\n" % (number % 500) for number in range(50_000)]
    new = list(old)
    for at in range(100, 50_000, 5_000):
        new[at] = b"changed\n"
    assert len(changed_ranges(old, new)) == 10


def test_two_long_files_with_nothing_in_common_are_one_change() -> None:
    generator = random.Random(1)
    old = [b"%d\n" % generator.randrange(3) for _ in range(50_000)]
    new = [b"%d\n" % generator.randrange(3, 6) for _ in range(50_000)]
    assert changed_ranges(old, new) == [(0, 50_000, 0, 50_000)]


def test_a_shortest_script_is_found() -> None:
    ranges = changed_ranges(list(map(bytes, zip(b"ABCABBA"))), list(map(bytes, zip(b"CBABAC"))))
    assert sum(old_to - old_from + new_to - new_from for old_from, old_to, new_from, new_to in ranges) == 5


def test_hunks_know_where_they_are_and_what_they_belong_to() -> None:
    old = b"".join(b"def f%d():\n    one\n    two\n    three\n    four\n    five\n" % number for number in range(4))
    new = old.replace(b"five\n", b"5\n", 1).replace(b"def f3():\n", b"def f3():\n    zero\n")
    first, second = hunks(old, new)
    assert (first.old_start, first.old_count, first.new_start, first.new_count) == (3, 7, 3, 7)
    assert first.heading == b"def f0():"
    assert (second.old_start, second.old_count, second.new_start, second.new_count) == (17, 6, 17, 7)
    assert b"+    zero\n" in second.lines


# Patches


def test_a_patch_reads_as_git_writes_it(layers, apply_changes) -> None:
    layers.write("lower", b"a.py", b"".join(b"line %d\n" % number for number in range(30)))
    layers.write("lower", b"gone", b"1\n2\n")
    layers.write("lower", b"run.sh", b"x\n")
    layers.write("lower", b"moved from", b"a whole file\n" * 3)
    layers.write("lower", b"kind", b"a file\n")
    layers.write("lower", b"one", b"no newline")
    layers.symlink("lower", b"link", b"a.py")
    layers.write("upper", b"a.py", b"".join(b"line %d\n" % number for number in range(30) if number != 12))
    layers.whiteout(b"gone")
    layers.write("upper", b"run.sh", b"x\n", 0o755)
    layers.whiteout(b"moved from")
    layers.write("upper", b"moved to", b"a whole file\n" * 3, 0o755)
    layers.symlink("upper", b"kind", b"target")
    layers.write("upper", b"one", b"no newline at all")
    layers.whiteout(b"link")
    layers.symlink("upper", b"link2", b"b.py")
    layers.write("upper", b"new/empty", b"")
    layers.write("upper", b"new/crlf", b"a\r\nb\r\n")
    layers.write("upper", 'new/"\t\N{SNOWMAN}\n'.encode() + b"\xff\\", b"odd\n")
    layers.write("upper", b"with space", b"1\n")
    layers.write("upper", b"binary", bytes(range(256)) * 300)
    _landed(layers, apply_changes)
    assert _patch(layers) == _git_diff(layers, "--binary")
    assert _patch(layers, binary=False) == _git_diff(layers)


def test_names_are_quoted_as_git_quotes_them() -> None:
    assert diff.quoted(b"plain name") == b"plain name"
    assert diff.quoted(b'a"b\\c\n\x01\xc3\xa9') == b'"a\\"b\\\\c\\n\\001\\303\\251"'


_RANDOM_SETS = 200 if os.environ.get("CI") == "true" else 25
_NAMES = [
    *(b"a", b"b", b"sp ace", b"new\nline", b"\xff\xfe", b'quo"te', b"tab\t", b"-d", b"back\\slash", b"n" * 200),
    *("\N{LATIN SMALL LETTER E WITH ACUTE}".encode(), b" lead", b"trail ", b"a b/c d", b"d/x", b"d/y", b"d/e/z"),
]


def _content(generator: random.Random) -> bytes:
    sort = generator.randrange(6)
    if sort == 0:
        return generator.randbytes(generator.randrange(400)) + b"\0"
    if sort == 1:
        return b""
    lines = [
        generator.choice([b"one", b"two", b"three", b"", b"cr\r", b"\xff"]) for _ in range(generator.randrange(20))
    ]
    return b"\n".join(lines) + generator.choice([b"", b"\n"])


def _random_layers(layers, generator: random.Random) -> None:
    names = [name for name in _NAMES if generator.random() < 0.7]
    for name in names:
        if generator.random() < 0.15:
            layers.symlink("lower", name, generator.choice([b"a", b"nowhere", b"new\nline"]))
        else:
            layers.write("lower", name, _content(generator), generator.choice([0o644, 0o755]))
    deleted: list[bytes] = []
    for name in _NAMES:
        dice = generator.random()
        full = layers.at("lower", name)
        if dice < 0.2 and os.path.lexists(full):
            deleted.append(full)
            layers.whiteout(name)
        elif dice < 0.3:
            layers.symlink("upper", name, generator.choice([b"a", b"other"]))
        elif dice < 0.5 and os.path.isfile(full) and not os.path.islink(full):
            with open(full, "rb") as file:
                lines = split(file.read())
            for _ in range(generator.randrange(1, 4)):
                lines.insert(generator.randrange(len(lines) + 1), b"new line\n")
            layers.write("upper", name, b"".join(lines), generator.choice([0o644, 0o755]))
        elif dice < 0.6:
            layers.write("upper", name, _content(generator), generator.choice([0o644, 0o755]))
    for number, full in enumerate(deleted):
        if generator.random() < 0.4 and not os.path.islink(full):
            with open(full, "rb") as file:
                layers.write("upper", b"moved/to %d" % number, file.read(), generator.choice([0o644, 0o755]))


@pytest.mark.parametrize("seed", range(_RANDOM_SETS))
def test_the_patch_of_a_random_change_set_applies_with_git_and_makes_the_same_tree(layers, apply_changes, seed) -> None:
    _random_layers(layers, random.Random(seed))
    landed = _landed(layers, apply_changes)
    patch = _patch(layers)
    assert _git_tree(layers, patch) == landed
    # And back again.
    target = os.fsencode(layers.base / "applied")
    if patch:
        subprocess.run(["git", "apply", "-R", "--whitespace=nowarn", "-"], input=patch, cwd=target, check=True)
    assert _tree(target) == _tree(layers.lower_path)


@pytest.mark.skipif(shutil.which("patch") is None, reason="there is no patch command")
@pytest.mark.parametrize("seed", range(10))
def test_the_patch_of_text_applies_with_the_patch_command(layers, apply_changes, seed) -> None:
    generator = random.Random(seed)
    # The command can't rename a name with a space or in quotes; git writes them no other way.
    names = [b"sp ace", b"a", b'quo"te', b"tab\t", b"\xff\xfe", b"d/x", b"d/e/z", b"e\xcc\x81", b"back\\slash"]
    texts = [
        b"one\ntwo\nthree\n",
        b"cr\r\nlf\r\n",
        b"no end",
        b"mixed\r\nlines\n",
        b"".join(b"%d\n" % n for n in range(40)),
    ]
    for number, name in enumerate(names):
        content = b"%d\n%s" % (number, generator.choice(texts))
        layers.write("lower", name, content, generator.choice([0o644, 0o755]))
    for number, name in enumerate(names):
        with open(layers.at("lower", name), "rb") as file:
            lines = split(file.read())
        if number % 4 == 0:
            lines[generator.randrange(len(lines))] = generator.choice([b"new\n", b"new\r\n"])
            layers.write(
                "upper", name, b"".join(lines) + generator.choice([b"", b"last"]), generator.choice([0o644, 0o755])
            )
        elif number % 4 == 1:
            layers.whiteout(name)
            layers.write("upper", b"moved/" + name, b"".join(lines), os.stat(layers.at("lower", name)).st_mode & 0o777)
        elif number % 4 == 2:
            layers.whiteout(name)
    layers.write("upper", b"brand new", generator.choice(texts), 0o755)
    target = os.fsencode(layers.base / "patched")
    subprocess.run(["cp", "-a", layers.lower_path, target], check=True)
    subprocess.run(["patch", "-p1", "--binary", "-s", "-d", target], input=_patch(layers), check=True)
    assert _tree(target) == _landed(layers, apply_changes)


def test_a_directory_that_became_a_file_and_one_that_a_file_became_apply(layers, apply_changes) -> None:
    layers.write("lower", b"was dir/a", b"1\n")
    layers.write("lower", b"was file", b"2\n")
    layers.symlink("lower", b"was link", b"x")
    layers.write("upper", b"was dir", b"3\n")
    layers.write("upper", b"was file/b", b"4\n")
    layers.write("upper", b"was link/c", b"5\n")
    assert _git_tree(layers, _patch(layers)) == _landed(layers, apply_changes)


def test_a_mode_that_git_has_no_word_for_is_still_shown_and_applies(layers) -> None:
    layers.write("lower", b"secret", b"1\n", 0o644)
    layers.write("upper", b"secret", b"1\n", 0o600)
    patch = _patch(layers)
    assert patch == b"diff --git a/secret b/secret\nold mode 100644\nnew mode 100600\n"
    assert _git_tree(layers, patch)


def test_a_binary_patch_of_a_file_in_the_side_store_applies(layers, apply_changes) -> None:
    generator = random.Random(1)
    old, new = generator.randbytes(9 << 20), generator.randbytes(9 << 20)
    layers.write("lower", b"big", old)
    layers.write("upper", b"big", new)
    assert _git_tree(layers, _patch(layers)) == _landed(layers, apply_changes)
    assert _patch(layers, binary=False).endswith(b"Binary files a/big and b/big differ\n")


def test_a_lower_that_changed_since_it_was_compared_is_said(layers) -> None:
    layers.write("lower", b"a", b"old\n")
    layers.write("upper", b"a", b"new\n")
    changes = layers.changes()
    layers.write("lower", b"a", b"odd\n")
    with pytest.raises(ConflictError) as caught:
        b"".join(diff.unified(changes.shown, layers.lower, layers.store))
    assert caught.value.paths == (b"a",)


def test_binary_is_told_by_a_nul_in_the_beginning_of_either_side(layers) -> None:
    layers.write("lower", b"was", b"\0")
    layers.write("upper", b"was", b"text")
    layers.write("upper", b"late", b"x" * 8000 + b"\0")
    layers.write("upper", b"text", b"x")
    layers.mkdir("upper", b"dir")
    told = {change.path: diff.is_binary(change, layers.lower, layers.store) for change in layers.changes().shown}
    assert told == {b"was": True, b"late": False, b"text": False, b"dir": False}


def test_hunks_of_a_change_are_those_of_its_patch(layers) -> None:
    layers.write("lower", b"a", b"1\n2\n")
    layers.write("upper", b"a", b"1\n3\n")
    (hunk,) = diff.hunks_of(layers.change(b"a"), layers.lower, layers.store)
    assert hunk.lines == (b" 1\n", b"-2\n", b"+3\n")
    assert b"".join(hunk.render()) in _patch(layers)


# Tables


@pytest.mark.parametrize("seed", range(12))
def test_the_tables_are_gits(layers, apply_changes, seed) -> None:
    generator = random.Random(seed)
    for number in range(6):
        name = b"/".join(generator.choice([b"src", b"a-long-directory-name", b"x", b"odd\t"]) for _ in range(3))
        size = generator.choice([1, 5, 60, 900])
        lines = [b"%d of file %d\n" % (line, number) for line in range(size)]
        layers.write("lower", name + b"/f%d" % number, b"".join(lines))
        if generator.random() < 0.3:
            layers.whiteout(name + b"/f%d" % number)
            layers.write("upper", b"src/moved/f%d" % number, b"".join(lines))
        else:
            kept = [line for line in lines if generator.random() < 0.8]
            layers.write("upper", name + b"/f%d" % number, b"".join(kept) + b"new\n" * generator.randrange(50))
    layers.write("upper", b"binary", b"\0" * generator.randrange(1, 5000))
    _landed(layers, apply_changes)
    changes = layers.changes().shown
    ours = b"".join(diff.stat(changes, layers.lower, layers.store))
    assert ours == _git_diff(layers, "--stat=80", "--patience")
    assert b"".join(diff.name_status(changes)) == _git_diff(layers, "--name-status")
    assert b"".join(diff.name_status(changes, nul=True)) == _git_diff(layers, "--name-status", "-z")


def test_an_empty_directory_is_in_the_tables_and_not_in_the_patch(layers) -> None:
    layers.mkdir("upper", b"new dir")
    layers.mkdir("lower", b"old")
    layers.whiteout(b"old")
    changes = layers.changes().shown
    assert _patch(layers) == b""
    assert b"".join(diff.name_status(changes)) == b"A\tnew dir/\nD\told/\n"
    assert b"".join(diff.stat(changes, layers.lower, layers.store)).startswith(
        b" new dir/ | 0\n old/     | 0\n 2 files"
    )


def test_no_changes_make_no_lines(layers) -> None:
    assert b"".join(diff.stat((), layers.lower, layers.store)) == b""
    assert list(diff.name_status(())) == []


def test_a_change_of_kind_has_gits_letter(layers) -> None:
    layers.write("lower", b"link", b"1")
    layers.write("lower", b"dir/a", b"1")
    layers.write("lower", b"file", b"1")
    layers.symlink("upper", b"link", b"x")
    layers.write("upper", b"dir", b"2")
    layers.write("upper", b"file/b", b"3")
    assert b"".join(diff.name_status(layers.changes().shown)) == (b"A\tdir\nD\tdir/a\nD\tfile\nA\tfile/b\nT\tlink\n")
