"""The real workspace changes only through a commit: not one byte, mode, owner or time of it changes otherwise."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from tests.bench import Bench, keeper_of
from tests.conftest import ROOT, Cli
from tests.trees import snapshot
from tests.waiting import wait_until
from workbench.sandbox.engine import Engine
from workbench.state import StateDirectory

# One after the other in one overlay; none of them takes away what the next one needs.
MILD = {
    "touches everything": "find . -exec touch -h -d '2001-01-01' {} +",
    "sets attributes": "python3 -c \"import os; [os.setxattr(f, 'user.x', b'y') for f in os.listdir('.')"
    ' if not os.path.islink(f)]"',
    "maps and writes": "python3 -c \"import mmap; f = open('README.md', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[0:1] = b'X';"
    ' m.flush()"',
    "punches holes": "fallocate -p -o 0 -l 4096 README.md; fallocate -l 100000 empty",
    "goes through proc": "echo x > /proc/self/cwd/README.md; echo x >> /proc/self/root$PWD/empty",
    "goes through a descriptor": "exec 3<>README.md; echo x >&3; echo y > /dev/fd/3",
    "makes what isn't a file": "mkfifo fifo; python3 -c \"import socket; socket.socket(1).bind('s')\"",
    "links everything": "mkdir links; for f in $(find . -type f -not -path './links/*' -not -path './.git/*'); do"
    " ln $f links/$(echo $f | tr / _); done",
    "gives every permission": "find . -depth -exec chmod -f u+s,a=rwx {} +",
    "commits": "echo new > new; git add -A; git -c user.name=A -c user.email=a@b commit -q -m 'second'; git status;"
    " git gc -q --prune=now",
    "checks out anew": "rm -rf src; git checkout -q -f .; git reset -q --hard HEAD~1; git clean -qfdx",
    "appends to everything": "find . -type f -exec sh -c 'for f; do chmod u+w $f; echo more >> $f; done' sh {} +",
    "truncates everything": "find . -type f -exec truncate -s 0 {} +",
    "renames everything": "for f in *; do mv $f $f.moved; done; mv .git .git-moved",
    "replaces everything by links out": "for f in *; do rm -rf $f; ln -s /etc/passwd $f; done",
}

# Each in a fresh overlay.
HARSH = {
    "removes everything": 'rm -rf ./* ./.[!.]*; test -z "$(ls -A)"',
    "takes every permission": "find . -mindepth 1 -depth -exec chmod 000 {} +",
    "takes the root's permissions": "! chmod -R 000 .",
}


def everything_about(root: Path) -> dict[bytes, tuple[object, ...]]:
    """As `snapshot`, and also owners, inodes, links and extended attributes."""
    told = {}
    for path, node in snapshot(root).items():
        full = os.path.join(os.fsencode(root), path)
        status = os.lstat(full)
        attributes: list[tuple[str, bytes]] = []
        if not stat.S_ISLNK(status.st_mode):
            attributes = [(name, os.getxattr(full, name)) for name in sorted(os.listxattr(full))]
        told[path] = (node, status.st_uid, status.st_gid, status.st_ino, status.st_nlink, attributes)
    return told


def test_nothing_of_the_workspace_changes_whatever_a_command_does(engine: None, state: Path, repo: Path) -> None:
    before = everything_about(repo)
    bench = Bench(repo)
    for what, script in MILD.items():
        inside = bench.inside()
        bench.sh(script)
        assert everything_about(repo) == before, what
        assert bench.inside() != inside or "touches" in what or "attributes" in what, what
    assert_looking_and_discarding_change_nothing(bench, repo, before)


@pytest.mark.parametrize("what", HARSH)
def test_nothing_of_the_workspace_changes_when_a_command(engine: None, state: Path, repo: Path, what: str) -> None:
    before = everything_about(repo)
    bench = Bench(repo)
    bench.sh(HARSH[what])
    assert everything_about(repo) == before
    assert_looking_and_discarding_change_nothing(bench, repo, before)


def assert_looking_and_discarding_change_nothing(bench: Bench, repo: Path, before: object) -> None:
    bench.changes()
    bench.status()
    bench.stop()
    bench.changes()
    assert everything_about(repo) == before
    bench.discard()
    assert everything_about(repo) == before
    assert bench.inside() == snapshot(repo, times=False)


WRITER = (
    "echo x > new; touch started; "
    "while :; do for f in new README.md src/main.py src/deep/leaf.txt; do echo x >> $f; chmod 600 $f; done; done"
)


def start_writer(cli: Cli) -> tuple[subprocess.Popen[bytes], str]:
    """A command line whose command changes files as fast as it can; and its overlay's directory."""
    argv = [sys.executable, "-m", "workbench", "exec", "-w", str(cli.workspace), "--", "sh", "-c", WRITER]
    process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    overlay = Bench(cli.workspace).overlay
    # Not looked for in the upper layer, which an engine may have a copy of.
    cli("exec", "--timeout", "120", "--", "sh", "-c", "until [ -e started ]; do :; done")
    return process, overlay


def ours(engine: Engine, state: Path) -> tuple[list[str], list[str]]:
    """The names of the containers and the volumes of a state directory."""
    label = f"workbench.state={StateDirectory.open(str(state)).id}"
    containers = [name.strip("/") for found in engine.containers(label) for name in found["Names"]]
    return sorted(containers), sorted(found["Name"] for found in engine.volumes(label))


def processes_about(overlay: str) -> list[bytes]:
    """The processes of this machine that name an overlay's directory in their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                argv = (entry / "cmdline").read_bytes()
                if os.fsencode(overlay) in argv:
                    found.append(argv)
    return found


def test_nothing_of_the_workspace_changes_when_the_command_is_killed(cli: Cli) -> None:
    before = everything_about(cli.workspace)
    cli("exec", "--timeout", "2", "--", "sh", "-c", WRITER, code=124)
    assert everything_about(cli.workspace) == before
    cli.sh("test -s new; kill -9 $$", code=137)
    assert everything_about(cli.workspace) == before


def test_a_killed_command_line_ends_its_command_and_nothing_of_the_workspace_changes(cli: Cli) -> None:
    before = everything_about(cli.workspace)
    process, overlay = start_writer(cli)
    process.kill()
    process.wait()
    wait_until(lambda: anyio.run(keeper_of, overlay).jobs == 0, "the command has ended")
    assert everything_about(cli.workspace) == before
    # The sandbox is as warm as before, with what the command did.
    assert cli.sh("tail -n 1 new").stdout == b"x\n"
    assert everything_about(cli.workspace) == before


def test_a_killed_keeper_leaves_nothing_that_the_next_command_does_not_remove(cli: Cli, state: Path) -> None:
    before = everything_about(cli.workspace)
    process, overlay = start_writer(cli)
    keeper = anyio.run(keeper_of, overlay)
    containers, volumes = ours(Engine(), state)
    assert containers == [keeper.name]
    assert keeper.name in volumes
    os.kill(keeper.pid, signal.SIGKILL)
    assert process.wait(timeout=120) == 125
    assert everything_about(cli.workspace) == before
    wait_until(lambda: not processes_about(overlay), "what the keeper had started has ended")
    assert cli.sh("tail -n 1 new").stdout == b"x\n"
    again = anyio.run(keeper_of, overlay)
    assert ours(Engine(), state)[0] == [again.name] != containers
    assert not set(volumes) & set(ours(Engine(), state)[1])
    assert everything_about(cli.workspace) == before
    # What a command did up to that moment can be looked at and landed.
    os.kill(again.pid, signal.SIGKILL)
    cli.commit()
    assert (cli.workspace / "new").read_text().startswith("x\n")
    assert ours(Engine(), state) == ([], [])


def test_a_killed_keeper_of_one_session_is_no_other_sessions_business(cli: Cli, state: Path) -> None:
    one, two = Bench(cli.workspace, "one"), Bench(cli.workspace, "two")
    one.sh("echo one > one")
    two.sh("echo two > two")
    keepers = one.keeper(), two.keeper()
    assert keepers[0] is not None
    assert keepers[1] is not None
    os.kill(keepers[0].pid, signal.SIGKILL)
    # The sweep at a third one's start takes what the killed one left, and leaves the live one alone.
    Bench(cli.workspace, "three").sh("true")
    assert keepers[0].name not in [name for names in ours(Engine(), state) for name in names]
    assert two.keeper() == keepers[1] or two.keeper().pid == keepers[1].pid
    assert two.sh("cat two") == b"two\n"
    assert one.sh("cat one") == b"one\n"
