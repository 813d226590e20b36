"""What went wrong where others reviewed and committed: each is a kind of fault, tried on ours."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import git_in
from tests.review.landing import Landing, without_syncs
from tests.review.test_carried import Agent
from tests.review.test_merge import edit, merged, upper
from workbench.review.branch import make_branch
from workbench.review.changeset import Included
from workbench.review.decisions import Review
from workbench.review.diff import unified
from workbench.review.selection import selected

CRLF = b"".join(b"line %d\r\n" % number for number in range(30))


@pytest.fixture
def landing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Landing]:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    made = Landing(tmp_path)
    with without_syncs():
        yield made
    made.close()


@pytest.mark.parametrize("layer", ["lower", "upper"])
def test_nothing_that_a_repository_configures_runs_for_a_look_a_patch_a_merge_a_branch_or_a_commit(
    landing: Landing, tmp_path: Path, layer: str
) -> None:
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\ntouch "{ran}"\ncat\n')
    program.chmod(0o755)
    landing.write("lower", b"f", CRLF)
    landing.git("init", "-q", "-b", "main")
    landing.git("add", "-A")
    landing.git("commit", "-q", "-m", "first")
    landing.write(layer, b".gitattributes", b"* filter=evil diff=evil merge=evil text=auto ident\n")
    settings = ("filter.evil.clean", "filter.evil.smudge", "filter.evil.process", "diff.evil.textconv", "diff.external")
    config = b"[core]\n\trepositoryformatversion = 0\n\tbare = false\n"
    for name in (*settings, "diff.evil.command", "merge.evil.driver", "core.fsmonitor", "core.pager", "gpg.program"):
        section, _, key = name.rpartition(".")
        first, _, second = section.partition(".")
        config += f'[{first} "{second}"]\n'.replace(' ""', "").encode() + f"\t{key} = {program}\n".encode()
    landing.write(layer, b".git/config", config + b"[commit]\n\tgpgSign = true\n")
    for hook in (b"pre-commit", b"post-checkout", b"reference-transaction", b"post-index-change"):
        landing.write(layer, b".git/hooks/" + hook, program.read_bytes(), 0o755)
    landing.write("upper", b"f", CRLF.replace(b"line 3\r", b"line three\r"))
    manifest, changes = landing.review()
    assert b"+line three\r\n" in b"".join(unified(changes.shown, landing.lower, landing.store))
    make_branch(landing.lower, changes, landing.store, "agent")
    edit(landing, b"f", CRLF.replace(b"line 20\r", b"line twenty\r"))
    after = merged(landing, manifest).manifest
    landing.land((after, landing.changes(after)))
    assert {b"line three\r\n", b"line twenty\r\n"} <= set(landing.read(b"f").splitlines(keepends=True))
    assert not ran.exists()
    if layer == "lower":
        # What a look by git itself would have done.
        landing.git("diff", "HEAD")
        assert ran.exists()


def test_line_ends_stay_what_they_were_in_a_part_and_in_a_merge(landing: Landing) -> None:
    landing.write("lower", b"part", CRLF)
    landing.write("lower", b"merged", CRLF)
    landing.write("upper", b"part", CRLF.replace(b"line 3\r", b"three\r").replace(b"line 25\r", b"twenty-five\r"))
    landing.write("upper", b"merged", CRLF.replace(b"line 3\r", b"three\r"))
    manifest, changes = landing.review()
    review = Review(changes, Included(), landing.lower, landing.store)
    first, _ = review.hunks(next(change for change in changes.shown if change.path == b"part"))
    review.decide_hunk(first.id, True)
    with landing.store.adding() as sink:
        part = selected(changes, review.selection(), landing.lower, landing.store, sink)
    landing.land((manifest, part))
    assert landing.read(b"part") == CRLF.replace(b"line 3\r", b"three\r")
    edit(landing, b"merged", CRLF.replace(b"line 3\r", b"3\r").replace(b"line 20\r", b"twenty\r"))
    merged(landing, manifest)
    found = upper(landing, b"merged")
    assert b"three\r\n" in found
    assert found.count(b"\n") == found.count(b"\r\n")


def test_a_persons_own_uncommitted_work_and_ignored_secrets_are_no_changes_of_the_agents(landing: Landing) -> None:
    landing.write("lower", b"f", b"committed\n")
    landing.write("lower", b".gitignore", b"secret\n")
    landing.git("init", "-q", "-b", "main")
    landing.git("add", "-A")
    landing.git("commit", "-q", "-m", "first")
    landing.write("lower", b"f", b"the person's, not committed\n")
    landing.write("lower", b"secret", b"key\n")
    landing.write("lower", b"untracked", b"the person's\n")
    landing.write("upper", b"g", b"the agent's\n")
    _, changes = landing.review()
    assert [change.path for change in changes.changes] == [b"g"]
    assert changes.left == ()
    made = make_branch(landing.lower, changes, landing.store, "agent")
    assert landing.git("ls-tree", "--name-only", made.commit).split() == [b".gitignore", b"f", b"g"]
    assert landing.git("show", f"{made.commit}:f") == b"committed\n"


def test_a_name_with_a_line_end_in_a_configuration_says_nothing_else_in_a_commit(
    landing: Landing, tmp_path: Path
) -> None:
    landing.write("lower", b"f", b"1\n")
    landing.git("init", "-q", "-b", "main")
    landing.git("add", "-A")
    landing.git("commit", "-q", "-m", "first")
    landing.git("config", "user.name", "A\n\nM 120000 inline evil")
    landing.git("config", "user.email", "a@example.com")
    landing.write("upper", b"f", b"2\n")
    made = make_branch(landing.lower, landing.review()[1], landing.store, "agent")
    assert landing.git("ls-tree", "--name-only", made.commit).split() == [b"f"]
    assert b"evil" not in landing.git("cat-file", "commit", made.commit)


def test_a_shallow_clone_gets_a_branch_with_the_agents_commits(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    try:
        lower = Path(os.fsdecode(agent.landing.lower_path))
        (lower / "f").write_text("one and a half\n")
        agent.real("commit", "-q", "-a", "-m", "later")
        full = lower.rename(tmp_path / "full")
        subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{full}", str(lower)], check=True)
        subprocess.run(["rm", "-rf", str(agent.copy)], check=True)
        subprocess.run(["cp", "-a", str(lower), str(agent.copy)], check=True)
        agent.landing.lower.close()
        agent.landing.lower = type(agent.landing.lower)(agent.landing.lower_path)
        second = agent.commit("second", f="two\n")
        (agent.copy / "g").write_text("not committed\n")
        agent.overlay()
        made = agent.branch()
        assert made.carried == (second,)
        assert git_in(lower)("log", "--format=%s", "agent").splitlines() == ["the rest", "second", "later"]
    finally:
        agent.landing.close()


def test_objects_that_only_an_alternate_of_the_agents_has_dont_come_over(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    try:
        other = tmp_path / "other"
        other.mkdir()
        foreign = git_in(other)
        foreign("init", "-q", "-b", "main")
        (other / "secret").write_text("secret\n")
        blob = foreign("hash-object", "-w", "secret").strip()
        (agent.copy / ".git/objects/info").mkdir(exist_ok=True)
        (agent.copy / ".git/objects/info/alternates").write_text(f"{other}/.git/objects\n")
        agent.git("update-index", "--add", "--cacheinfo", f"100644,{blob},stolen")
        agent.git("commit", "-q", "-m", "stolen")
        agent.overlay()
        assert "can't be taken" in agent.refused()
    finally:
        agent.landing.close()
