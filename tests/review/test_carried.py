"""The agent's own commits come over as they are, each verified, and nothing else of its repository does."""

from __future__ import annotations

import os
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import git_in
from tests.review.landing import Landing, without_syncs
from tests.trees import snapshot
from workbench.errors import CommitError
from workbench.review.branch import Branch, make_branch
from workbench.review.carried import carried

Git = Callable[..., str]


class Agent:
    """A repository with one commit, and in the overlay a working copy of it, in which somebody else commits."""

    def __init__(self, directory: Path) -> None:
        self.landing = Landing(directory)
        self.landing.write("lower", b"f", b"one\n")
        self.landing.write("lower", b"g", b"one\n")
        self.real = git_in(Path(os.fsdecode(self.landing.lower_path)))
        self.real("init", "-q", "-b", "main")
        self.real("add", "-A")
        self.real("commit", "-q", "-m", "first")
        self.copy = directory / "copy"
        subprocess.run(["cp", "-a", self.landing.lower_path, self.copy], check=True)
        self.git = git_in(self.copy)
        self.work = directory / "work"
        self.work.mkdir()

    def commit(self, message: str, **files: str) -> str:
        for name, content in files.items():
            (self.copy / name).write_text(content)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message, "--author", "Agent <agent@example.com>")
        return self.git("rev-parse", "HEAD").strip()

    def overlay(self) -> None:
        """Have the overlay hold what the working copy has otherwise than the lower."""
        before, after = snapshot(self.landing.lower_path, times=False), snapshot(self.copy, times=False)
        for path, node in after.items():
            full = os.path.join(os.fsencode(self.copy), path)
            if os.path.isfile(full) and before.get(path) != node:
                with open(full, "rb") as file:
                    self.landing.write("upper", path, file.read())
        gone = before.keys() - after.keys()
        for path in gone:
            if os.path.dirname(path) not in gone:
                self.landing.whiteout(path)

    def branch(self, name: str = "agent") -> Branch:
        manifest, changes = self.landing.review()
        history = carried(manifest, self.landing.lower, self.landing.store, str(self.work))
        return make_branch(self.landing.lower, changes, self.landing.store, name, message="the rest", history=history)

    def refused(self) -> str:
        before = snapshot(self.landing.lower_path)
        with pytest.raises(CommitError) as caught:
            self.branch()
        assert caught.value.code == "history_unavailable"
        assert snapshot(self.landing.lower_path) == before
        assert os.listdir(self.work) == []
        return caught.value.message


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    with without_syncs():
        yield made
    made.landing.close()


@pytest.mark.parametrize("is_packed", [False, True], ids=["loose objects", "a pack"])
def test_commits_come_over_with_their_ids_and_their_authors(agent: Agent, is_packed: bool) -> None:
    ids = [agent.commit("second", f="two\n"), agent.commit("third", h="new\n")]
    if is_packed:
        agent.git("gc", "-q", "--prune=now")
    agent.overlay()
    made = agent.branch()
    assert (made.commit, list(made.carried)) == (ids[-1], ids)
    told = agent.real("log", "--format=%s %an", "agent").splitlines()
    assert told == ["third Agent", "second Agent", "first A"]
    assert agent.real("show", "agent:h") == "new\n"
    assert agent.real("rev-parse", "HEAD") != agent.real("rev-parse", "agent")
    agent.real("fsck", "--strict", "--no-dangling")


def test_what_wasnt_committed_comes_as_a_commit_on_top(agent: Agent) -> None:
    (second,) = [agent.commit("second", f="two\n")]
    (agent.copy / "f").write_text("three\n")
    (agent.copy / "g").unlink()
    agent.overlay()
    made = agent.branch()
    assert agent.real("log", "--format=%s", "agent").splitlines() == ["the rest", "second", "first"]
    assert agent.real("rev-parse", "agent^").strip() == second
    assert agent.real("ls-tree", "--name-only", "agent").split() == ["f"]
    assert agent.real("show", "agent:f") == "three\n"
    assert made.commit == agent.real("rev-parse", "agent").strip()


def test_config_hooks_and_refs_stay_behind(agent: Agent, tmp_path: Path) -> None:
    agent.commit("second", f="two\n")
    agent.git("config", "core.pager", f"touch {tmp_path}/ran")
    agent.git("config", "core.fsmonitor", f"touch {tmp_path}/ran")
    agent.git("tag", "v1")
    agent.git("branch", "other")
    hook = agent.copy / ".git" / "hooks" / "reference-transaction"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    (tmp_path / "ran").unlink(missing_ok=True)
    agent.overlay()
    before = snapshot(agent.landing.lower_path, times=False)
    agent.branch()
    after = snapshot(agent.landing.lower_path, times=False)
    new = {path for path in after if path not in before}
    places = (b".git/objects/", b".git/refs/heads/agent", b".git/logs/refs/heads/agent")
    assert all(path.startswith(places) for path in new), new
    assert {path for path in before if after[path] != before[path]} <= {b".git"}
    assert agent.real("for-each-ref", "--format=%(refname)").split() == ["refs/heads/agent", "refs/heads/main"]
    assert not (tmp_path / "ran").exists()
    assert os.listdir(agent.work) == []


def test_a_risky_path_of_any_commit_is_named(agent: Agent) -> None:
    agent.commit("second", **{".envrc": "x=1\n"})
    agent.git("rm", "-q", ".envrc")
    agent.commit("third", f="two\n")
    agent.overlay()
    manifest, _ = agent.landing.review()
    found = carried(manifest, agent.landing.lower, agent.landing.store, str(agent.work))
    assert found.risky == (b".envrc",)


def _amend(agent: Agent) -> None:
    (agent.copy / "f").write_text("two\n")
    agent.git("commit", "-q", "-a", "--amend", "-m", "amended")


def _tree_with(name: bytes) -> Callable[[Agent], None]:
    def make(agent: Agent) -> None:
        blob = agent.git("hash-object", "-w", "f").strip()
        tree = b"100644 %s\0%s" % (name, bytes.fromhex(blob))
        written = subprocess.run(
            ["git", "hash-object", "-t", "tree", "-w", "--stdin", "--literally"],
            cwd=agent.copy,
            input=tree,
            capture_output=True,
            check=True,
        )
        commit = agent.git("commit-tree", written.stdout.decode().strip(), "-p", "HEAD", "-m", "evil").strip()
        agent.git("update-ref", "HEAD", commit)

    return make


def _without_an_object(agent: Agent) -> None:
    agent.commit("second", f="two\n")
    blob = agent.git("rev-parse", "HEAD:f").strip()
    (agent.copy / ".git" / "objects" / blob[:2] / blob[2:]).unlink()


def _with_another_object_in_its_place(agent: Agent) -> None:
    agent.commit("second", f="two\n")
    blob = agent.git("rev-parse", "HEAD:f").strip()
    path = agent.copy / ".git" / "objects" / blob[:2] / blob[2:]
    path.chmod(0o644)
    path.write_bytes(zlib.compress(b"blob 5\0evil\n"))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda agent: None, id="no commit"),
        pytest.param(_amend, id="an amended commit"),
        pytest.param(_tree_with(b".git"), id="a path named .git"),
        pytest.param(_tree_with(b".GIT"), id="a path named .GIT"),
        pytest.param(_tree_with(b"git~1"), id="a path named git~1"),
        pytest.param(_tree_with(b".."), id="a path named .."),
        pytest.param(_without_an_object, id="a missing object"),
        pytest.param(_with_another_object_in_its_place, id="an object under another's name"),
    ],
)
def test_what_cant_be_trusted_is_refused_and_nothing_comes_over(agent: Agent, make: Callable[[Agent], None]) -> None:
    make(agent)
    agent.overlay()
    assert agent.refused()


def test_commits_beside_what_the_person_committed_since_are_refused(agent: Agent) -> None:
    agent.commit("second", f="two\n")
    agent.overlay()
    agent.landing.write("lower", b"other", b"person\n")
    agent.real("add", "-A")
    agent.real("commit", "-q", "-m", "outside")
    assert "don't begin where your repository is" in agent.refused()
