"""Rewind and redo with real commands in a real sandbox."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import anyio
import pytest

from tests.bench import Bench, InPhases
from tests.conftest import git_in
from tests.trees import Node, snapshot
from workbench.checkpoints.packs import Packs
from workbench.errors import CheckpointError, SandboxError
from workbench.protocol.commands import Command
from workbench.workspace import Travelled, Workspace

pytestmark = pytest.mark.engine

GIT = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; "

SCRIPTS = {
    "a repository of the agent's own": "mkdir own; cd own; git init -q .; echo x > f; git add f; git commit -qm x",
    "an unborn repository": "git init -q unborn; echo x > unborn/f",
    "a repository in a repository": "git init -q a; git init -q a/b; cd a/b; echo x > f; git add f; git commit -qm x",
    "commits in the real repository": "echo x > f; git add f; git commit -qm x; git branch other; git stash list",
    "a submodule": "git init -q /tmp/sub; (cd /tmp/sub; echo x > f; git add f; git commit -qm x); "
    "git -c protocol.file.allow=always submodule -q add /tmp/sub sub; git commit -qm sub",
    "a worktree": "git worktree add -q ../repo/wt; echo x > wt/f",
    "a tree as npm makes it": "for p in a b c d; do mkdir -p node_modules/$p/lib node_modules/.bin; "
    "for f in 1 2 3 4 5; do echo $p$f > node_modules/$p/lib/$f.js; done; ln -s ../$p/lib/1.js node_modules/.bin/$p; done; "
    "chmod +x node_modules/a/lib/1.js; ln node_modules/b/lib/1.js node_modules/c/lib/linked.js",
    "sparse files": "truncate -s 30M sparse; printf x | dd of=sparse bs=1 seek=9000000 conv=notrunc 2>/dev/null",
    "attributes, filters and hooks": "printf '* text eol=crlf filter=x ident\\n' > .gitattributes; "
    "git config filter.x.clean 'touch /tmp/sprung'; git config core.hooksPath hooks; git config core.fsmonitor hooks/f; "
    "mkdir hooks; printf '#!/bin/sh\\ntouch sprung\\n' > hooks/f; chmod +x hooks/f; cp hooks/f hooks/reference-transaction",
    "autocrlf and line ends": "git config core.autocrlf true; printf 'a\\r\\nb\\n' > mixed; printf '$Id$\\n' > ident",
    "pointers of large files": "printf '*.bin filter=lfs diff=lfs merge=lfs -text\\n' > .gitattributes; "
    "printf 'version https://git-lfs.example.com/spec/v1\\noid sha256:%064d\\nsize 5\\n' 1 > big.bin",
    "ignored files": "echo x > a.log; mkdir -p build/deep; echo x > build/deep/f; echo 'docs/' >> .gitignore; rm -r docs",
    "empty directories": "mkdir -p empty1/empty2/empty3; rm empty; mkdir empty",
    "renames of case alone": "mv README.md readme.md; mv src SRC; mv SRC/main.py SRC/Main.py",
    "pipes and sockets": "mkfifo pipe; python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('sock')\"",
    "odd names": "touch -- '-rf' 'a b' \"$(printf 'new\\nline')\" \"$(printf '\\377')\" '%2E' .GIT; mkdir '.git ' 'git~1'",
    "closed files": "echo x > closed; chmod 000 closed; mkdir -p locked/in; echo x > locked/in/f; chmod 000 locked",
}


def rewind(bench: Bench, message: str, **options: object) -> Travelled:
    return bench.do(lambda workspace: workspace.rewind(message, **options))  # type: ignore[arg-type]


def redo(bench: Bench) -> Travelled:
    return bench.do(lambda workspace: workspace.redo())


def keep(bench: Bench, message: str) -> None:
    bench.do(lambda workspace: workspace.checkpoint(message))


@pytest.fixture
def bench(engine: None, state: Path, repo: Path) -> Bench:
    return Bench(repo)


def view(bench: Bench) -> dict[bytes, Node]:
    return bench.inside(times=True)


def test_whatever_real_commands_leave_comes_back_exactly(bench: Bench, repo: Path) -> None:
    before = snapshot(repo)
    keep(bench, "start")
    views = {"start": view(bench)}
    for name, script in SCRIPTS.items():
        bench.sh(GIT + script)
        keep(bench, name)
        views[name] = view(bench)
    bench.sh(
        "chmod 700 locked; find . -mindepth 1 -maxdepth 1 ! -name .git -exec rm -rf {} +; rm -rf .git/refs .git/objects"
    )
    keep(bench, "gone")
    views["gone"] = view(bench)
    for name in ("closed files", "start", *reversed(SCRIPTS), "gone"):
        rewind(bench, name)
        assert view(bench) == views[name], name
    redo(bench)
    first = next(iter(SCRIPTS))
    assert view(bench) == views[first]
    assert bench.sh(f"{GIT} cd own; git fsck --strict; git log --format=%s").strip() == b"x"
    assert not (repo / "sprung").exists()
    assert snapshot(repo) == before


def test_what_commands_did_to_the_repository_comes_back_but_not_over_one_that_moved_on(
    bench: Bench, repo: Path
) -> None:
    keep(bench, "start")
    bench.sh(GIT + "echo agent > f; git add f; git commit -qm agent")
    keep(bench, "committed")
    rewind(bench, "start")
    assert bench.sh("git log --format=%s").split() == [b"first"]
    said = rewind(bench, "committed")
    assert not said.journey.without_repository
    assert bench.sh("git log --format=%s; git status --short").split() == [b"agent", b"first"]
    rewind(bench, "start")
    git = git_in(repo)
    (repo / "mine").write_text("mine")
    git("add", "-A")
    git("commit", "-q", "-m", "person")
    said = rewind(bench, "committed")
    assert said.journey.without_repository
    assert bench.sh("git log --format=%s; cat f").split() == [b"person", b"first", b"agent"]


def test_a_linked_worktree_goes_back_with_its_git_directory(
    engine: None, state: Path, repo: Path, tmp_path: Path
) -> None:
    git_in(repo)("worktree", "add", "-q", str(tmp_path / "linked"))
    bench = Bench(tmp_path / "linked")
    before = snapshot(repo)
    keep(bench, "start")
    bench.sh(GIT + "echo agent > f; git add f; git commit -qm agent")
    keep(bench, "committed")
    rewind(bench, "start")
    assert bench.sh("git log --format=%s; git status --short").split() == [b"first"]
    rewind(bench, "committed")
    assert bench.sh("git log --format=%s; git status --short").split() == [b"agent", b"first"]
    bench.discard()
    assert bench.sh("git log --format=%s; git status --short").split() == [b"first"]
    redo(bench)
    assert bench.sh("git log --format=%s; git status --short").split() == [b"agent", b"first"]
    assert snapshot(repo) == before


def test_what_runs_is_ended_and_said_but_a_shell_only_when_told(bench: Bench) -> None:
    keep(bench, "start")
    running = InPhases(bench, "echo x > f; phase running; exit 0")
    running.at("running")
    said = rewind(bench, "start")
    running.wait()
    assert len(said.ended) == 1
    assert b"f" not in view(bench)

    async def with_shell(workspace: Workspace) -> None:
        async with await workspace.sandbox() as client:
            job = await client.spawn(Command(("sh",), tty=True, stdin=True))
            with pytest.raises(SandboxError) as caught:
                await workspace.rewind("start")
            assert caught.value.code == "sandbox_busy"
            await workspace.rewind("start", force=True)
            assert (await job.wait()).ended_by == "rewind"

    bench.do(with_shell)


def test_a_rewind_without_its_contents_touches_nothing_and_says_which(bench: Bench) -> None:
    bench.sh("echo one > one")
    keep(bench, "one")
    bench.sh("echo two > two; rm one")
    before = view(bench)
    packs = Path(bench.overlay).parent.parent / "checkpoints.git" / "objects" / "pack"
    blob = hashlib.sha1(b"blob 4\0one\n").digest()
    for index in packs.glob("*.idx"):
        alone = Packs(str(packs))
        alone.refresh()
        found = alone._find(blob)
        alone.close()
        if found is not None and found[0] == index.stem:
            index.unlink()
    with pytest.raises(CheckpointError) as caught:
        rewind(bench, "one")
    assert caught.value.code == "store_corrupt"
    assert view(bench) == before


def test_hostile_configuration_at_home_has_no_effect(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    trap = home / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {home}/sprung\n")
    trap.chmod(0o755)
    (home / ".gitconfig").write_text(
        f"[core]\n\thooksPath={home}\n\tfsmonitor={trap}\n\tautocrlf=true\n[commit]\n\tgpgSign=true\n[gpg]\n\tprogram={trap}\n"
    )
    (home / "reference-transaction").symlink_to(trap)
    monkeypatch.setenv("HOME", str(home))
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_WORK_TREE"):
        monkeypatch.setenv(name, str(home / "elsewhere"))
    keep(bench, "start")
    bench.sh("printf 'a\\r\\n' > crlf; printf '* filter=x eol=lf\\n' > .gitattributes")
    keep(bench, "next")
    there = view(bench)
    rewind(bench, "start")
    rewind(bench, "next")
    assert view(bench) == there
    bench.do(lambda workspace: anyio.to_thread.run_sync(workspace.keep_small))
    rewind(bench, "start")
    assert not (home / "sprung").exists()
    assert not (home / "elsewhere").exists()


def test_checkpoints_git_is_whole_to_git(bench: Bench) -> None:
    for name in ("odd names", "a repository of the agent's own", "a tree as npm makes it"):
        bench.sh(GIT + SCRIPTS[name])
        keep(bench, name)
    rewind(bench, "odd names")
    bench.discard()
    store = Path(bench.overlay).parent.parent / "checkpoints.git"
    environment = {"PATH": os.environ["PATH"], "GIT_DIR": str(store), "GIT_CONFIG_NOSYSTEM": "1"}
    checked = subprocess.run(
        ["git", "fsck", "--strict", "--full", "--no-dangling"],
        env=environment,
        capture_output=True,
        cwd="/",
        check=False,
    )
    assert (checked.returncode, checked.stdout) == (0, b""), checked.stderr
