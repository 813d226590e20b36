"""A branch of the real repository has exactly the changes, and nothing else of it moves or runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.review.landing import Landing, everything, without_syncs
from tests.trees import snapshot
from workbench.errors import CommitError, OptionsError
from workbench.review.branch import Branch, make_branch
from workbench.vfs.storage import Kind


@pytest.fixture
def landing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Landing]:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    made = Landing(tmp_path)
    with without_syncs():
        yield made
    made.close()


def commit_all(landing: Landing) -> None:
    landing.git("init", "-q", "-b", "main")
    landing.git("add", "-A")
    landing.git("commit", "-q", "-m", "first")


def branch(landing: Landing, name: str = "agent", **options: str) -> Branch:
    return make_branch(landing.lower, landing.review()[1], landing.store, name, **options)


def shown(landing: Landing, revision: str) -> dict[bytes, tuple[bytes, bytes]]:
    """By path the mode and the content in a revision."""
    found = {}
    for line in filter(None, landing.git("ls-tree", "-r", "-z", revision).split(b"\0")):
        told, _, path = line.partition(b"\t")
        found[path] = told.split(b" ")[0], landing.git("cat-file", "blob", told.split(b" ")[2].decode())
    return found


def working_tree(landing: Landing, path: bytes) -> tuple[bytes, bytes]:
    full = landing.at("lower", path)
    if os.path.islink(full):
        return b"120000", os.readlink(full)
    return (b"100755" if os.stat(full).st_mode & 0o100 else b"100644"), landing.read(path)


def test_a_branch_has_what_a_commit_would_land_and_nothing_else_moves(landing: Landing) -> None:
    everything(landing)
    for name in (b"new\nline", b'q"uote', b"tab\t", b"sp ace ", b"\xff", "\u65e5\u672c".encode(), b"-dash"):
        landing.write("upper", b"odd/" + name, b"content of " + name)
    commit_all(landing)
    before = {path: node for path, node in snapshot(landing.lower_path).items() if not path.startswith(b".git/")}
    index, head = landing.read(b".git/index"), landing.read(b".git/HEAD")
    made = branch(landing, message="two\nlines", author="Some Body <some@example.com>")
    after = {path: node for path, node in snapshot(landing.lower_path).items() if not path.startswith(b".git/")}
    assert {path: node for path, node in after.items() if path != b".git"} == {
        path: node for path, node in before.items() if path != b".git"
    }
    assert (landing.read(b".git/index"), landing.read(b".git/HEAD")) == (index, head)
    assert landing.git("log", "-1", "--format=%an <%ae>|%B", "agent") == b"Some Body <some@example.com>|two\nlines\n"
    assert landing.git("rev-parse", "agent~1") == landing.git("rev-parse", "main")
    assert made.commit.encode() == landing.git("rev-parse", "agent").strip()
    assert made.uncommitted == ()
    landing.git("fsck", "--strict", "--full")
    on_branch = shown(landing, "agent")
    landing.land()
    leaves = [
        path
        for path, node in landing.tree().items()
        if not path.startswith(b".git/") and landing.lower.stat(path).kind is not Kind.DIR
    ]
    assert on_branch == {path: working_tree(landing, path) for path in leaves}


def test_no_hook_no_filter_and_no_attribute_has_a_say(landing: Landing, tmp_path: Path) -> None:
    landing.write("lower", b"f", b"old\r\n")
    landing.write("lower", b".gitattributes", b"* text=auto eol=lf filter=evil ident\n")
    commit_all(landing)
    ran = tmp_path / "ran"
    for name in ("reference-transaction", "post-commit", "pre-commit", "post-checkout", "update", "post-index-change"):
        landing.write("lower", b".git/hooks/" + name.encode(), f"#!/bin/sh\ntouch {ran}\n".encode(), 0o755)
    landing.git("config", "filter.evil.clean", f"touch {ran}; cat")
    landing.git("config", "core.fsmonitor", f"touch {ran}")
    landing.git("config", "core.hooksPath", ".git/hooks")
    landing.write("upper", b"f", b"new\r\n$Id$\n")
    branch(landing)
    assert not ran.exists()
    assert shown(landing, "agent")[b"f"] == (b"100644", b"new\r\n$Id$\n")
    # The same hooks would have run.
    landing.git("branch", "other")
    assert ran.exists()


def test_what_the_person_changed_and_didnt_commit_is_named(landing: Landing) -> None:
    for name in (b"dirty", b"clean"):
        landing.write("lower", name, b"1\n")
    commit_all(landing)
    landing.write("lower", b"dirty", b"1\nperson\n")
    landing.write("lower", b"untracked", b"person\n")
    for name in (b"dirty", b"clean", b"untracked"):
        landing.write("upper", name, b"agent\n")
    assert branch(landing).uncommitted == (b"dirty", b"untracked")


def test_a_repository_without_a_commit_gets_a_branch_of_its_own(landing: Landing) -> None:
    landing.git("init", "-q", "-b", "main")
    landing.write("upper", b"f", b"1\n")
    branch(landing)
    assert landing.git("rev-list", "--count", "agent") == b"1\n"


def test_the_author_is_whom_the_persons_configuration_names(landing: Landing, tmp_path: Path) -> None:
    landing.write("lower", b"f", b"1\n")
    commit_all(landing)
    landing.write("upper", b"f", b"2\n")
    branch(landing, "nobody")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.gitconfig").write_text("[user]\n\tname = A Person\n\temail = p@example.com\n")
    branch(landing, "person")
    told = [landing.git("log", "-1", "--format=%an <%ae> %cn", name).strip() for name in ("nobody", "person")]
    assert told == [b"workbench <workbench@localhost> workbench", b"A Person <p@example.com> A Person"]


def test_what_cant_be_a_branch_is_refused_with_a_code(landing: Landing) -> None:
    landing.write("lower", b"f", b"1\n")
    landing.write("upper", b"f", b"2\n")
    with pytest.raises(CommitError) as caught:
        branch(landing)
    assert caught.value.code == "no_repository"
    commit_all(landing)
    branch(landing)
    with pytest.raises(CommitError) as caught:
        branch(landing)
    assert caught.value.code == "branch_exists"
    # A directory of branches is in the way.
    with pytest.raises(CommitError) as caught:
        branch(landing, "agent/below")
    assert caught.value.code == "commit_failed"
    assert not [name for name in os.listdir(landing.at("lower", b".git")) if b"crash" in name]
    for name in ("-x", "a b", "a..b", "", "x.lock", "a\nb", "@{-1}"):
        with pytest.raises(OptionsError):
            branch(landing, name)
    for author in ("nobody", "a <b>\ncommitter x <y>", "<x>"):
        with pytest.raises(OptionsError):
            branch(landing, "other", author=author)
    assert landing.git("branch", "--format=%(refname:short)").split() == [b"agent", b"main"]
