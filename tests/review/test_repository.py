from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from workbench.review.changeset import Left
from workbench.review.index import UnreadableIndexError, read_index
from workbench.review.names import is_git
from workbench.review.repository import common_directory, fingerprint, shared_repositories, without_repositories
from workbench.vfs.local import LocalStorage


@pytest.mark.parametrize(
    "name",
    [
        b".git",
        b".GIT",
        b".Git",
        b"git~1",
        b"GIT~1",
        b".git.",
        b".git ",
        b".git. .",
        b".git::$INDEX_ALLOCATION",
        b".git\\hooks",
        b"x\\.git",
        "\N{ZERO WIDTH NON-JOINER}.git".encode(),
        ".g\N{ZERO WIDTH JOINER}i\N{ZERO WIDTH NO-BREAK SPACE}t".encode(),
    ],
)
def test_git_is_known_in_any_disguise(layers, name) -> None:
    assert is_git(name)
    layers.write("upper", b"d/" + name + b"/config", b"[core]")
    layers.write("upper", b"d/code", b"1")
    assert layers.told() == {b"d/code": "added"}
    assert layers.left() == {b"d/" + name: (Left.REPOSITORY, 1)}


@pytest.mark.parametrize("name", [b".gitignore", b".github", b"git", b"x.git", b".gitx", b"git~", b"\xff.git"])
def test_other_names_are_no_disguise(name) -> None:
    assert not is_git(name)


def test_a_git_file_is_left_as_a_git_directory_is(layers) -> None:
    layers.write("lower", b".git", b"gitdir: ../x")
    layers.write("upper", b".git", b"gitdir: /evil")
    layers.write("upper", b"sub/.git", b"gitdir: /evil")
    assert layers.told() == {b"sub": "added"}
    assert layers.left() == {b".git": (Left.REPOSITORY, 1), b"sub/.git": (Left.REPOSITORY, 1)}


def test_deleting_git_is_left_and_not_walked(layers) -> None:
    layers.git("init", "-q")
    layers.whiteout(b".git")
    assert layers.told() == {}
    assert layers.left() == {b".git": (Left.REPOSITORY, 1)}


def test_deleting_a_directory_with_a_repository_in_it_spares_the_repository(layers) -> None:
    layers.mkdir("lower", b"sub")
    layers.git("init", "-q", cwd=layers.at("lower", b"sub"))
    layers.write("lower", b"sub/code", b"1")
    layers.whiteout(b"sub")
    assert layers.told(implied=True) == {b"sub/code": "deleted"}
    assert layers.left() == {b"sub/.git": (Left.REPOSITORY, 1)}


@pytest.mark.parametrize(
    "names",
    [
        (b"HEAD", b"objects/x", b"refs/x", b"config"),
        (b"HEAD", b"commondir"),
        (b"head", b"OBJECTS/x", b"Refs/x"),
    ],
)
def test_a_directory_that_git_would_take_for_a_repository_is_left(layers, names) -> None:
    for name in names:
        layers.write("upper", b"d/evil/" + name, b"ref: refs/heads/x")
    layers.write("upper", b"d/evil/code.c", b"1")
    assert layers.told(implied=True) == {b"d": "added"}
    assert layers.left() == {b"d/evil": (Left.REPOSITORY, len(names) + 1)}


def test_a_repository_shape_that_both_layers_make_together_is_left(layers) -> None:
    layers.write("lower", b"d/HEAD", b"ref: refs/heads/x")
    layers.mkdir("lower", b"d/objects")
    layers.write("upper", b"d/refs/x", b"1")
    assert layers.told() == {}
    assert set(layers.left()) == {b"d"}


def test_a_repository_shape_that_only_a_partial_landing_would_make_is_left(layers) -> None:
    layers.write("lower", b".gitignore", b"HEAD\n")
    layers.write("lower", b"d/HEAD", b"ref: refs/heads/x")
    layers.whiteout(b"d/HEAD")
    layers.write("upper", b"d/objects/x", b"1")
    layers.write("upper", b"d/refs/x", b"1")
    assert layers.told() == {}
    assert set(layers.left()) == {b"d"}


def test_symlinks_make_a_repository_shape_too(layers) -> None:
    layers.write("upper", b"d/HEAD", b"ref: refs/heads/x")
    layers.symlink("upper", b"d/objects", b"../o")
    layers.symlink("upper", b"d/refs", b"../r")
    assert set(layers.left()) == {b"d"}


def test_a_workspace_that_becomes_a_repository_itself_lands_nothing(layers) -> None:
    for name in (b"HEAD", b"objects/x", b"refs/x"):
        layers.write("upper", name, b"1")
    layers.write("upper", b"code", b"1")
    assert layers.told() == {}
    assert set(layers.left()) == {b""}


def test_a_bare_repository_of_the_lower_stays_whole(layers) -> None:
    layers.mkdir("lower", b"bare")
    layers.git("init", "-q", "--bare", cwd=layers.at("lower", b"bare"))
    layers.write("upper", b"bare/config", b"[core]\n\tfsmonitor = evil\n")
    layers.whiteout(b"bare/HEAD")
    assert layers.left() == {b"bare": (Left.REPOSITORY, 2)}
    shutil.rmtree(layers.at("upper", b"bare"))
    layers.whiteout(b"bare")
    assert layers.told() == {}
    os.unlink(layers.at("upper", b"bare"))
    layers.write("upper", b"bare", b"a file")
    assert layers.told() == {}
    assert layers.left() == {b"bare": (Left.REPOSITORY, 1)}


# Agreeing on a repository again


def _commit(layers, cwd: bytes | None = None) -> None:
    layers.git("init", "-q", "-b", "main", cwd=cwd)
    layers.git("commit", "-q", "--allow-empty", "-m", "x", cwd=cwd)


def test_what_the_upper_has_of_the_lowers_repository_is_dropped(layers) -> None:
    _commit(layers)
    layers.write("upper", b".git/index", b"stale")
    layers.write("upper", b".git/refs/heads/main", b"1")
    layers.write("upper", b"src/a", b"1")
    layers.whiteout(b".git/HEAD")
    manifest = layers.manifest()
    assert shared_repositories(manifest, layers.lower) == (b".git",)
    kept = without_repositories(manifest, layers.lower)
    assert list(kept.entries) == [b"", b"src", b"src/a"]
    assert not any(path.startswith(b".git") for path in kept.bases)
    assert without_repositories(kept, layers.lower) is kept


def test_a_deleted_and_a_replaced_repository_come_back(layers) -> None:
    _commit(layers)
    layers.whiteout(b".git")
    assert list(without_repositories(layers.manifest(), layers.lower).entries) == [b""]
    os.unlink(layers.at("upper", b".git"))
    layers.mkdir("upper", b".git", opaque=True)
    layers.write("upper", b".git/HEAD", b"ref: refs/heads/other")
    assert list(without_repositories(layers.manifest(), layers.lower).entries) == [b""]


def test_a_repository_that_the_agent_made_stays(layers) -> None:
    _commit(layers)
    layers.mkdir("lower", b"sub")
    layers.write("upper", b"sub/.git/HEAD", b"ref: refs/heads/x")
    layers.write("upper", b"bare/HEAD", b"x")
    layers.write("upper", b"bare/objects/x", b"x")
    layers.write("upper", b"bare/refs/x", b"x")
    manifest = layers.manifest()
    assert without_repositories(manifest, layers.lower) is manifest


def test_a_repository_below_a_hidden_directory_is_the_agents_own(layers) -> None:
    layers.mkdir("lower", b"sub")
    _commit(layers, layers.at("lower", b"sub"))
    layers.mkdir("upper", b"sub", opaque=True)
    layers.write("upper", b"sub/.git/HEAD", b"ref: refs/heads/x")
    manifest = layers.manifest()
    assert without_repositories(manifest, layers.lower) is manifest


def test_nested_and_bare_repositories_of_the_lower_are_dropped_too(layers) -> None:
    for name in (b"sub", b"bare"):
        layers.mkdir("lower", name)
    _commit(layers, layers.at("lower", b"sub"))
    layers.git("init", "-q", "--bare", cwd=layers.at("lower", b"bare"))
    layers.write("upper", b"sub/.git/index", b"1")
    layers.write("upper", b"sub/code", b"1")
    layers.write("upper", b"bare/refs/heads/x", b"1")
    manifest = layers.manifest()
    assert shared_repositories(manifest, layers.lower) == (b"bare", b"sub/.git")
    assert list(without_repositories(manifest, layers.lower).entries) == [b"", b"sub", b"sub/code"]


# Fingerprints


def test_no_repository_has_no_fingerprint(layers) -> None:
    assert fingerprint(layers.lower) == ""
    layers.mkdir("lower", b".git")
    assert fingerprint(layers.lower) == ""


def test_a_fingerprint_follows_head_refs_and_index_and_nothing_else(layers) -> None:
    _commit(layers)
    layers.write("lower", b"a", b"1")
    layers.git("add", "a")
    layers.git("branch", "other")
    was = fingerprint(layers.lower)
    assert len(was) == 64
    # What only tidies up: stat data, packed refs, reflogs, objects.
    os.utime(layers.at("lower", b"a"), (1, 1))
    layers.git("status")
    layers.git("pack-refs", "--all")
    layers.git("gc", "-q")
    layers.git("update-index", "--index-version", "4")
    assert fingerprint(layers.lower) == was
    seen = {was}
    for command in (
        ("update-index", "--chmod=+x", "a"),
        ("symbolic-ref", "HEAD", "refs/heads/other"),
        ("commit", "-q", "-m", "y"),
        ("tag", "v1"),
        ("branch", "-D", "main"),
        ("rm", "-q", "--cached", "a"),
    ):
        layers.git(*command)
        seen.add(fingerprint(layers.lower))
    assert len(seen) == 7


def test_a_linked_worktrees_fingerprint_covers_its_own_head_and_the_common_refs(layers, tmp_path) -> None:
    main = os.fsencode(tmp_path / "main")
    os.mkdir(main)
    _commit(layers, main)
    os.rmdir(layers.lower_path)
    layers.git("worktree", "add", "-q", os.fsdecode(layers.lower_path), cwd=main)
    with LocalStorage(layers.lower_path) as lower:
        seen = {fingerprint(lower)}
        layers.git("tag", "v1", cwd=main)
        seen.add(fingerprint(lower))
        layers.git("commit", "-q", "--allow-empty", "-m", "y")
        seen.add(fingerprint(lower))
        layers.git("checkout", "-q", "--detach")
        seen.add(fingerprint(lower))
        assert len(seen) == 4


def test_an_index_is_read_in_every_version_and_damage_is_said(layers) -> None:
    layers.git("init", "-q")
    for number in range(40):
        layers.write("lower", b"d%d/file%d" % (number % 3, number), b"1")
    layers.git("add", "-A")
    deep = b"y/" * 2500 + b"z"
    subprocess.run(
        ["git", "update-index", "--index-info"],
        input=b"100644 e69de29bb2d1d6434b8b29ae775ad8c2e48c5391\t" + deep + b"\n",
        cwd=layers.lower_path,
        check=True,
    )
    listed = [line.split(b"\t", 1)[1] for line in layers.git("ls-files", "-s", "-z").split(b"\0") if line]
    for version in ("2", "3", "4"):
        layers.git("update-index", "--index-version", version)
        if version == "3":
            layers.git("update-index", "--skip-worktree", "d0/file0")
        with open(layers.at("lower", b".git/index"), "rb") as file:
            data = file.read()
        assert [entry.path for entry in read_index(data)] == listed
    for damaged in (b"", data[:11], data[:200], b"x" + data[1:], data[:8] + b"\xff" * 4 + data[12:]):
        with pytest.raises(UnreadableIndexError):
            read_index(damaged)
    layers.git("update-index", "--split-index")
    with open(layers.at("lower", b".git/index"), "rb") as file, pytest.raises(UnreadableIndexError):
        read_index(file.read())


# The common directory


def test_an_ordinary_repository_needs_no_common_directory(layers) -> None:
    assert common_directory(layers.lower_path, layers.lower) is None
    layers.git("init", "-q")
    assert common_directory(layers.lower_path, layers.lower) is None


def test_a_linked_worktree_needs_the_main_git_directory(layers, tmp_path) -> None:
    main = os.fsencode(tmp_path / "main")
    os.mkdir(main)
    _commit(layers, main)
    os.rmdir(layers.lower_path)
    layers.git("worktree", "add", "-q", os.fsdecode(layers.lower_path), cwd=main)
    with LocalStorage(layers.lower_path) as lower:
        assert common_directory(layers.lower_path, lower) == main + b"/.git"


def test_a_separate_git_directory_is_found_outside_and_ignored_inside(layers, tmp_path) -> None:
    outside = os.fsencode(tmp_path / "outside.git")
    layers.git("init", "-q", "--separate-git-dir", os.fsdecode(outside))
    assert common_directory(layers.lower_path, layers.lower) == outside
    os.rename(outside, layers.at("lower", b".real"))
    layers.write("lower", b".git", b"gitdir: .real\n")
    assert common_directory(layers.lower_path, layers.lower) is None


def test_a_submodule_needs_its_git_directory(layers, tmp_path) -> None:
    origin, outer = os.fsencode(tmp_path / "origin"), os.fsencode(tmp_path / "outer")
    for path in (origin, outer):
        os.mkdir(path)
        _commit(layers, path)
    layers.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", os.fsdecode(origin), "sub", cwd=outer)
    with LocalStorage(outer + b"/sub") as lower:
        assert common_directory(outer + b"/sub", lower) == outer + b"/.git/modules/sub"


def test_a_git_file_that_names_a_repository_of_somebody_else_is_not_followed(layers, tmp_path) -> None:
    main, tree, outer = (os.fsencode(tmp_path / name) for name in ("main", "tree", "outer"))
    for path in (main, outer):
        os.mkdir(path)
        _commit(layers, path)
    layers.git("worktree", "add", "-q", os.fsdecode(tree), cwd=main)
    layers.write("lower", b".git", b"gitdir: " + main + b"/.git/worktrees/tree\n")
    assert common_directory(layers.lower_path, layers.lower) is None
    layers.write("lower", b".git", b"gitdir: /etc\n")
    assert common_directory(layers.lower_path, layers.lower) is None
    layers.write("lower", b".git", b"nonsense")
    assert common_directory(layers.lower_path, layers.lower) is None
    layers.write("lower", b".git", b"gitdir: /nonexistent\n")
    assert common_directory(layers.lower_path, layers.lower) is None
