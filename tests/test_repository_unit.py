"""`.git` is one unit: neither side ever loses a file or sees the other's index, and nothing of it lands as files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.bench import Bench
from tests.conftest import git_in
from tests.trees import snapshot
from workbench.checkpoints.store import Checkpoint
from workbench.checkpoints.upkeep import Retention
from workbench.errors import CheckpointError, CommitError
from workbench.review.changeset import Left
from workbench.workspace import Workspace

COMMIT = "git -c user.name=Agent -c user.email=agent@example.com commit -q"


@pytest.fixture
def bench(engine: None, state: Path, repo: Path) -> Bench:
    return Bench(repo)


def of_git(path: Path) -> dict[bytes, object]:
    return dict(snapshot(path / ".git"))


def test_a_status_inside_copies_nothing_up(bench: Bench, repo: Path) -> None:
    assert bench.sh("git status --short; git log --format=%s; git diff --stat") == b"first\n"
    assert os.listdir(os.path.join(bench.overlay, "upper")) == []
    assert bench.changes().left == ()


def test_commits_on_both_sides_lose_no_file_and_mix_no_index(bench: Bench, repo: Path) -> None:
    git = git_in(repo)
    before = of_git(repo)
    bench.sh(f"echo one > agent-one; echo more >> README.md; git add -A; {COMMIT} -m inside; git status --short")
    assert bench.sh("git log --format=%s; git status --short") == b"inside\nfirst\n"
    assert of_git(repo) == before
    assert git("status", "--short") == ""
    # What landed are the files; the person commits as they like.
    bench.commit()
    assert git("log", "--format=%s") == "first\n"
    assert git("status", "--short") == " M README.md\n?? agent-one\n"
    (repo / "person-one").write_text("person\n")
    git("add", "-A")
    git("commit", "-q", "-m", "outside")
    before = of_git(repo)
    assert bench.sh("git log --format=%s; git status --short; cat person-one") == b"outside\nfirst\nperson\n"
    bench.sh(f"echo two > agent-two; git add agent-two; {COMMIT} -m inside-two")
    assert bench.sh("git show --stat --format= HEAD").split(b"|")[0].strip() == b"agent-two"
    assert of_git(repo) == before
    bench.commit()
    assert git("status", "--short") == "?? agent-two\n"
    assert {"person-one", "agent-one", "agent-two"} <= {path.name for path in repo.iterdir()}


def test_a_person_who_commits_while_a_sandbox_is_warm_is_seen_by_the_next_command(bench: Bench, repo: Path) -> None:
    git = git_in(repo)
    bench.sh(f"echo agent > agent; git add agent; {COMMIT} -m inside; echo staged > staged; git add staged")
    (repo / "person").write_text("person\n")
    git("add", "person")
    git("commit", "-q", "-m", "outside")
    # A stale index would now make the agent's next commit delete the person's file.
    inside = bench.sh("git log --format=%s; git status --short | sort")
    assert inside == b"outside\nfirst\n?? agent\n?? staged\n"
    assert any("was set aside" in said for said in bench.said)
    bench.sh(f"git add -A; {COMMIT} -m inside-again")
    assert bench.sh("git show --name-status --format= HEAD") == b"A\tagent\nA\tstaged\n"
    assert bench.told() == {b"agent": "added", b"staged": "added"}
    bench.commit()
    assert git("status", "--short") == "?? agent\n?? staged\n"
    assert (repo / "person").read_text() == "person\n"


def test_the_agents_commits_become_a_branch_where_theyre_asked_for(bench: Bench, repo: Path) -> None:
    git = git_in(repo)
    bench.sh(f"echo one > one; git add -A; {COMMIT} -m inside; echo two > two; git add -A; {COMMIT} -m inside-two")
    before = of_git(repo)
    digest = bench.review()
    made = bench.do(lambda workspace: workspace.branch(digest, "agent", keep_history=True))
    after = of_git(repo)
    assert {path for path in before if after[path] == before[path]} >= {b"HEAD", b"index", b"config"}
    assert git("log", "--format=%s %an", "agent") == "inside-two Agent\ninside Agent\nfirst A\n"
    assert git("rev-parse", "agent").strip() == made.commit
    assert git("log", "--format=%s") == "first\n"
    assert git("status", "--short") == ""
    # Both sides agree on the repository again, which has the branch now.
    assert bench.sh("git log --format=%s agent; git log --format=%s") == b"inside-two\ninside\nfirst\nfirst\n"


@pytest.mark.parametrize("change", ["stage", "branch", "packed", "checkout", "amend", "stash"])
def test_whatever_a_person_does_to_the_repository_the_overlay_agrees_with_it(
    bench: Bench, repo: Path, change: str
) -> None:
    git = git_in(repo)
    git("branch", "other")
    bench.sh(f"echo agent > agent; git add agent; {COMMIT} -m inside")
    if change == "stage":
        (repo / "docs" / "index.md").write_text("person\n")
        git("add", "docs")
    elif change == "branch":
        git("branch", "third")
    elif change == "packed":
        git("pack-refs", "--all")
        git("gc", "-q")
        git("tag", "tagged")
    elif change == "checkout":
        git("checkout", "-q", "other")
    elif change == "amend":
        git("commit", "-q", "--amend", "-m", "amended")
    else:
        (repo / "README.md").write_text("person\n")
        git("stash", "-q")
    outside = git("for-each-ref"), git("rev-parse", "HEAD"), git("diff", "--cached"), git("symbolic-ref", "HEAD")
    inside = "git for-each-ref; git rev-parse HEAD; git diff --cached; git symbolic-ref HEAD"
    assert bench.sh(inside).decode() == "".join(outside)
    assert bench.sh("git fsck --strict && cat agent") == b"agent\n"


def test_a_person_who_only_looks_sets_nothing_aside(bench: Bench, repo: Path) -> None:
    git = git_in(repo)
    bench.sh(f"echo agent > agent; git add agent; {COMMIT} -m inside")
    os.utime(repo / "README.md")
    git("status")
    git("diff")
    git("log")
    git("gc", "-q")
    bench.stop()
    assert bench.sh("git log --format=%s") == b"inside\nfirst\n"
    assert not any("was set aside" in said for said in bench.said)


def test_a_repository_that_is_deleted_or_made_anew_inside_stays_whole_outside(bench: Bench, repo: Path) -> None:
    before = of_git(repo)
    bench.sh(f"rm -rf .git; git init -q -b mine; git add -A; {COMMIT} -m mine; echo x > new")
    assert {one.path: one.reason for one in bench.changes().left} == {b".git": Left.REPOSITORY}
    bench.commit()
    assert of_git(repo) == before
    assert git_in(repo)("status", "--short") == "?? new\n"
    assert bench.sh("git log --format=%s") == b"first\n"


def test_a_linked_worktree_works_inside_and_its_main_repository_is_untouched(
    engine: None, state: Path, repo: Path
) -> None:
    git = git_in(repo)
    worktree = repo.parent / "worktree"
    git("worktree", "add", "-q", "-b", "linked", str(worktree))
    bench = Bench(worktree)
    before = snapshot(repo), snapshot(worktree)
    bench.sh(f"git status --short; echo x > new; git add new; {COMMIT} -m inside; git status --short")
    seen = bench.sh("git log --format=%s; git branch --show-current; git worktree list | wc -l")
    assert seen == b"inside\nfirst\nlinked\n2\n"
    assert (snapshot(repo), snapshot(worktree)) == before
    bench.stop()
    # The overlay of the common directory stays as long as that of the worktree.
    assert bench.sh("git log --format=%s; git status --short") == b"inside\nfirst\n"
    bench.commit()
    assert (worktree / "new").read_text() == "x\n"
    assert snapshot(repo) == before[0]
    assert git_in(worktree)("log", "--format=%s") == "first\n"
    assert bench.sh("git log --format=%s; git status --short") == b"first\n?? new\n"
    # The person's own commit, in the main repository, is seen, and so is one in the worktree.
    git_in(worktree)("add", "new")
    git_in(worktree)("commit", "-q", "-m", "outside")
    assert bench.sh("git log --format=%s; git status --short") == b"outside\nfirst\n"
    bench.sh(f"echo y > other; git add other; {COMMIT} -m inside-again")
    assert bench.sh("git show --name-only --format= HEAD") == b"other\n"
    assert git("fsck") == ""


def test_a_discard_takes_back_what_was_committed_in_a_linked_worktree(engine: None, state: Path, repo: Path) -> None:
    worktree = repo.parent / "worktree"
    git_in(repo)("worktree", "add", "-q", "-b", "linked", str(worktree))
    bench = Bench(worktree)
    bench.sh(f"echo x > new; git add new; {COMMIT} -m inside")
    bench.discard()
    assert bench.sh("git log --format=%s; git status --short") == b"first\n"


def test_what_is_kept_of_a_linked_worktree_goes_with_the_checkpoint_that_it_is_beside(
    engine: None, state: Path, repo: Path
) -> None:
    worktree = repo.parent / "worktree"
    git_in(repo)("worktree", "add", "-q", "-b", "linked", str(worktree))
    bench = Bench(worktree)
    for number in range(4):
        bench.sh(f"echo {number} > new; git add new; {COMMIT} -m m{number}")
        bench.do(lambda workspace, number=number: workspace.checkpoint(f"m{number}"))  # type: ignore[misc]

    async def thin(workspace: Workspace) -> tuple[set[str], set[str]]:
        workspace.keep_small(Retention(count=2))
        rows = workspace.store.all("default/git")
        return {str(each.number) for each in workspace.store.all("default")}, {each.message_id for each in rows}

    numbers, beside = bench.do(thin)
    assert beside
    assert beside <= numbers
    assert [each.message_id for each in bench.do(_listed)] == ["m3", "m2"]
    bench.do(lambda workspace: workspace.rewind("m2"))
    assert bench.sh("git log --format=%s") == b"m2\nm1\nm0\nfirst\n"
    with pytest.raises(CheckpointError):
        bench.do(lambda workspace: workspace.rewind("m0"))


async def _listed(workspace: Workspace) -> list[Checkpoint]:
    return [each for each in workspace.store.list("default") if each.is_listed]


def test_a_submodule_is_a_unit_of_its_own(engine: None, state: Path, repo: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "code").write_text("code\n")
    other = git_in(library)
    other("init", "-q", "-b", "main")
    other("add", "-A")
    other("commit", "-q", "-m", "library")
    git = git_in(repo)
    git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "library")
    git("commit", "-q", "-m", "with library")
    for workspace in (repo, repo / "library"):
        bench = Bench(workspace)
        before = of_git(repo)
        bench.sh(f"git status --short; echo x > new-{workspace.name}; git add -A; {COMMIT} -m inside; git fsck")
        bench.commit()
        assert (workspace / f"new-{workspace.name}").exists()
        assert of_git(repo) == before


def test_a_repository_that_the_agent_made_stays_in_the_overlay_and_its_files_land(bench: Bench, repo: Path) -> None:
    bench.sh(f"mkdir -p vendor/new; cd vendor/new; git init -q; echo x > code; git add code; {COMMIT} -m vendored")
    left = {one.path: one.reason for one in bench.changes().left}
    assert left == {b"vendor/new/.git": Left.REPOSITORY}
    bench.commit()
    assert (repo / "vendor/new/code").read_text() == "x\n"
    assert not (repo / "vendor/new/.git").exists()
    assert bench.sh("git -C vendor/new log --format=%s; git -C vendor/new status --short") == b"vendored\n"
    # The person's own commits are none of its business.
    git = git_in(repo)
    git("add", "-A")
    git("commit", "-q", "-m", "outside")
    assert bench.sh("git -C vendor/new log --format=%s") == b"vendored\n"


@pytest.mark.parametrize(
    "shape",
    [
        "git init -q --bare sub/bare",
        "mkdir -p sub/bare/objects sub/bare/refs; echo 'ref: refs/heads/x' > sub/bare/HEAD; "
        "printf '[core]\\nfsmonitor = evil' > sub/bare/config",
        "mkdir sub; mv .git sub/bare",
        "git init -q x; mkdir sub; mv x/.git sub/bare",
        "mkdir -p sub/.GIT; echo x > sub/.GIT/config",
        "mkdir -p sub; printf 'gitdir: /tmp/evil' > sub/.git",
    ],
)
def test_nothing_that_git_would_take_for_a_repository_ever_lands(bench: Bench, repo: Path, shape: str) -> None:
    bench.sh(f"{shape}; echo x > fine")
    changes = bench.changes()
    assert Left.REPOSITORY in {one.reason for one in changes.left}
    bench.commit(allow_risky=True)
    assert (repo / "fine").exists()
    assert not any(path.startswith((b"sub/bare", b"sub/.GIT", b"sub/.git")) for path in snapshot(repo, times=False))
    assert git_in(repo)("status", "--short") == "?? fine\n"
    assert git_in(repo)("fsck") == ""


def test_a_bare_repository_cannot_be_completed_bit_by_bit(bench: Bench, repo: Path) -> None:
    """One commit lands half of what makes a repository, the next would land the rest."""
    (repo / "hooks.d").mkdir()
    bench.sh(
        "mkdir -p sub/objects sub/refs; echo x > sub/objects/keep; echo x > sub/refs/keep; echo '[core]' > sub/config"
    )
    bench.commit(allow_risky=True)
    bench.sh("echo 'ref: refs/heads/main' > sub/HEAD")
    assert {one.path: one.reason for one in bench.changes().left} == {b"sub": Left.REPOSITORY}
    with pytest.raises(CommitError) as caught:
        bench.commit(allow_risky=True)
    assert caught.value.code == "nothing_to_commit"
    assert not (repo / "sub" / "HEAD").exists()
    done = subprocess.run(
        ["git", "rev-parse", "--git-dir"], cwd=repo / "sub", capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(repo / ".git")
