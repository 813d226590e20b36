"""exec, diff, commit: what the merged view holds is what lands, and nothing else does."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.bench import Bench
from tests.cli.terminals import terminal
from tests.conftest import ROOT, Cli, git_in
from tests.trees import Node, snapshot
from tests.vfs import kernel_history
from tests.vfs.kernel_history import History
from tests.vfs.test_overlay_kernel import _tree as python_tree
from workbench.errors import CommitError
from workbench.review.changeset import Left, LeftPath
from workbench.review.compare import digest_of
from workbench.review.shown import ShownDigests
from workbench.vfs.local import LocalStorage
from workbench.vfs.overlay import Overlay
from workbench.vfs.upper import LocalUpper
from workbench.workspace import Landed, Workspace

Tree = dict[bytes, Node]

ODD_NAMES = (
    b"new\nline",
    b"not-utf8-\xff\xfe\x80",
    b"n" * 255,
    "日本語 ünï".encode(),
    b"co:lon",
    b"com,ma",
    b"back\\slash",
    b" sp ace ",
    b"-leading",
    b"--",
    b"quo'te\"$HOME`x`*?[a]",
    b"tab\tand\x01control\x7f",
    b".hidden",
    b"...",
    b"~",
    b"_private",
    b".workbench-not-ours",
    b"user.overlay.opaque",
)

_MAKE_ODD_NAMES = """
import os, sys
for directory in (b".", b"odd-" + b"x" * 200):
    os.makedirs(directory, exist_ok=True)
    for number, name in enumerate(eval(sys.argv[1])):
        path = os.path.join(directory, name)
        if number % 3 == 0:
            os.makedirs(os.path.join(path, name))
        elif number % 3 == 1:
            os.symlink(name, path)
        else:
            with open(path, "wb") as file:
                file.write(name)
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "w"
    path.mkdir()
    return path


@pytest.fixture
def bench(engine: None, state: Path, workspace: Path) -> Bench:
    return Bench(workspace)


def landable(view: Tree, left: Iterable[LeftPath]) -> Tree:
    """What a workspace has to be after a commit of a merged view: the view, without what never lands.

    `left` are the paths that were named as staying; new setuid and setgid bits never land either.
    """
    stays = {one.path for one in left if one.reason is not Left.SETID}
    expected = {}
    for path, node in view.items():
        above = path
        while above and above not in stays:
            above = above.rpartition(b"/")[0]
        if not above:
            expected[path] = node._replace(mode=node.mode & 0o1777)
    return expected


# The merged view, and random histories


_RUN_HISTORY = """
os.umask(0o022)
history = History(b".", int(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    history.step()
print(json.dumps(tree(b".")))
"""


def _history_source() -> str:
    source = Path(kernel_history.__file__).read_text()
    return source.partition('if __name__ == "__main__":')[0] + _RUN_HISTORY


@pytest.mark.parametrize("seed", [2, 11, 14])
def test_a_random_history_shows_lands_and_goes_on_as_the_kernel_shows_it(
    bench: Bench, workspace: Path, seed: int
) -> None:
    maker = History(os.fsencode(workspace), seed)
    for _ in range(300):
        with contextlib.suppress(OSError):
            maker.random.choice([maker.do_mkdir, maker.do_create, maker.do_create, maker.do_symlink, maker.do_link])()
    for turn in range(2):
        before = snapshot(workspace)
        kernels = json.loads(bench.python(_history_source(), str(seed * 10 + turn), "120"))
        with (
            LocalStorage(os.fsencode(workspace)) as lower,
            LocalUpper(os.fsencode(os.path.join(bench.overlay, "upper"))) as upper,
        ):
            assert python_tree(Overlay(lower, upper, scratch=b"no-scratch-here")) == kernels
        assert snapshot(workspace) == before
        view = bench.inside()
        left = bench.changes().left
        assert {one.reason for one in left} <= {Left.FIFO, Left.SETID}
        bench.commit(allow_risky=True)
        after = snapshot(workspace, times=False)
        # A kept FIFO keeps the directory that it was in, and what it took the place of.
        named = {one.path for one in left}
        assert {path: node for path, node in after.items() if not _at_or_above(path, named)} == {
            path: node for path, node in landable(view, left).items() if not _at_or_above(path, named)
        }
        assert bench.inside() == view
        assert bench.told() == {}


def _at_or_above(path: bytes, named: set[bytes]) -> bool:
    return any(
        name == path or name.startswith(path + b"/" if path else b"") or path.startswith(name + b"/") for name in named
    )


# One round trip with everything in it


def _fill(workspace: Path) -> None:
    """What the commands of `EVERYTHING` start from."""
    for name in ("again/old", "again/deep/older", "gone/deep/er/file", "to-file/child", "moved/deep/file", "kept/file"):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(f"{name}\n")
    for name in (
        "to-dir",
        "to-link",
        "modified",
        "touched",
        "mode",
        "renamed",
        "replaced",
        "sparse",
        "first",
        "removed",
    ):
        (workspace / name).write_text(f"old {name}\n" * 50)
    (workspace / "link-to-file").symlink_to("modified")
    (workspace / "link-to-dir").symlink_to("kept")
    (workspace / "link").symlink_to("kept")
    (workspace / "empty-dir").mkdir()
    (workspace / "tool").write_text("#!/bin/sh\n")
    (workspace / "tool").chmod(0o755)
    os.link(workspace / "first", workspace / "second")


EVERYTHING = """
rm -r again; mkdir again; echo new > again/new; mkdir again/deep; echo new > again/deep/new
rm -r gone
rm -r to-file; echo file > to-file
rm to-dir; mkdir -p to-dir/deep; echo in > to-dir/deep/file
rm to-link; ln -s modified to-link
rm link-to-file; echo file > link-to-file
rm link-to-dir; mkdir link-to-dir; echo in > link-to-dir/file
ln -sfn nowhere link; ln -s ../outside up; ln -s /etc/passwd absolute
mv moved moved-to; echo more >> moved-to/deep/file
mv renamed renamed-to; echo new > renamed
echo more >> modified; chmod 600 modified
touch -d 2001-02-03T04:05:06.123456789Z touched
chmod 755 mode; chmod 644 tool; chmod 700 kept
echo new > replaced.tmp; chmod 640 replaced.tmp; mv replaced.tmp replaced
truncate -s 1M sparse; printf end | dd of=sparse bs=1 seek=3000000 conv=notrunc status=none
echo linked > one; ln one two; mkdir links; ln one links/three; touch -d 1999-12-31T23:59:59.5Z one
rm second; echo more >> first
rmdir empty-dir; mkdir new-empty new-empty/inner; chmod 1777 new-empty; chmod 555 new-empty/inner
touch empty-file; head -c 300000 /dev/urandom > binary
rm removed
mkdir -p $(printf 'deep/%.0s' $(seq 60)); echo bottom > $(printf 'deep/%.0s' $(seq 60))bottom
"""

NEVER_LANDS = """
mkfifo fifo kept/fifo
python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('socket')"
mkdir -p _notes/deep; echo note > _notes/deep/note
mkdir -p build/deep; echo ignored > build/deep/out; echo ignored > some.log
git init -q own; echo x > own/tracked; git -C own add -A
git -C own -c user.name=A -c user.email=a@example.com commit -q -m x
git init -q --bare bare.git
echo s > setuid; chmod 6755 setuid
"""


@pytest.fixture(scope="module")
def everything(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bench, Path, Tree, Landed]]:
    """A workspace in which everything of the above was done and landed, and the merged view from before that."""
    top = tmp_path_factory.mktemp("everything")
    (top / "state").mkdir(mode=0o700)
    workspace = top / "w"
    workspace.mkdir()
    _fill(workspace)
    (workspace / ".gitignore").write_text("build/\n*.log\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_STATE", str(top / "state"))
        bench = Bench(workspace)
        before = snapshot(workspace)
        bench.sh(EVERYTHING)
        bench.sh(NEVER_LANDS)
        bench.python(_MAKE_ODD_NAMES, repr(ODD_NAMES))
        assert snapshot(workspace) == before
        view = bench.inside(times=True)
        landed = bench.commit(allow_risky=True)
        try:
            yield bench, workspace, view, landed
        finally:
            bench.stop()


Everything = tuple[Bench, Path, Tree, Landed]


def test_what_lands_equals_the_merged_view_but_for_what_never_lands(everything: Everything) -> None:
    _, workspace, view, landed = everything
    left = {one.path: one.reason for one in landed.left.left}
    assert left == {
        b"fifo": Left.FIFO,
        b"kept/fifo": Left.FIFO,
        b"socket": Left.SOCKET,
        b"_notes": Left.SCRATCH,
        b"build": Left.IGNORED,
        b"some.log": Left.IGNORED,
        b"own/.git": Left.REPOSITORY,
        b"bare.git": Left.REPOSITORY,
        b"setuid": Left.SETID,
    }
    times_apart = {path: node._replace(mtime_ns=0) for path, node in view.items()}
    expected = landable(times_apart, landed.left.left)
    after = snapshot(workspace, times=False)
    assert after.keys() == expected.keys()
    assert after == expected


def test_files_land_with_their_times_links_and_holes(everything: Everything) -> None:
    _, workspace, view, _ = everything
    after = snapshot(workspace)
    landed_with_times = (
        b"modified",
        b"replaced",
        b"again/new",
        b"moved-to/deep/file",
        b"renamed-to",
        b"one",
        b"absolute",
    )
    for path in landed_with_times:
        assert after[path].mtime_ns == view[path].mtime_ns, path
    assert view[b"one"].mtime_ns == 946684799_500000000
    inodes = {os.stat(workspace / name).st_ino for name in ("one", "two", "links/three")}
    assert len(inodes) == 1
    assert (workspace / "sparse").stat().st_size == 3000003
    assert (workspace / "sparse").stat().st_blocks * 512 < 1_000_000


def test_a_touched_file_is_no_change(everything: Everything) -> None:
    bench, workspace, view, landed = everything
    assert b"touched" not in landed.committed.landed
    assert (workspace / "touched").stat().st_mtime_ns != view[b"touched"].mtime_ns
    assert bench.inside(times=True)[b"touched"].mtime_ns == view[b"touched"].mtime_ns == 981173106_123456789


def test_after_a_commit_the_merged_view_is_what_it_was(everything: Everything) -> None:
    bench, _, view, landed = everything
    assert bench.inside() == {path: node._replace(mtime_ns=0) for path, node in view.items()}
    changes = bench.changes()
    assert changes.changes == ()
    assert changes.left == landed.left.left
    assert bench.sh("git -C own log --format=%s; cat _notes/deep/note build/deep/out") == b"x\nnote\nignored\n"


def test_a_second_commit_has_nothing_to_land(everything: Everything) -> None:
    bench, workspace, _, _ = everything
    before = snapshot(workspace)

    async def refuse(workspace: Workspace) -> None:
        audited = list(workspace.audit.records())
        digest = workspace.reviewed(await workspace.changes())
        for landing in (workspace.commit(digest), workspace.rehearse(digest), workspace.branch(digest, "b")):
            with pytest.raises(CommitError) as caught:
                await landing
            assert caught.value.code == "nothing_to_commit"
        assert list(workspace.audit.records()) == audited

    bench.do(refuse)
    assert snapshot(workspace) == before


# What the command line says of it


def test_what_stays_in_the_overlay_is_named(cli: Cli) -> None:
    cli.sh(NEVER_LANDS + "echo x > lands; git add lands; git -c user.name=A -c user.email=a@b commit -q -m inside")
    for said in (cli("diff").stderr, cli.commit().stderr):
        for words in (
            b"setuid or setgid stays behind: setuid" if b"digest" in said else b"landed",
            b"notes in the scratch directory: _notes (1 entry)",
            b"ignored by the project's own rules: build, some.log (2 entries)",
            b"a FIFO: fifo",
            b"a socket: socket",
            b"part of a git repository: ",
        ):
            assert words in said, (words, said)
    assert (cli.workspace / "lands").read_text() == "x\n"
    assert stat.S_IMODE((cli.workspace / "setuid").stat().st_mode) == 0o755
    assert git_in(cli.workspace)("log", "--format=%s") == "first\n"


def test_a_commit_lands_what_was_shown_and_what_came_later_stays(cli: Cli) -> None:
    cli.sh("echo shown > README.md; echo shown > new; rm -r docs")
    digest = cli.digest()
    cli.sh("echo later > README.md; echo later > new; echo later > other; mkdir docs; echo later > docs/later")
    landed = json.loads(cli("commit", "--digest", digest, "--json").stdout)
    assert landed["digest"] == digest
    assert {found["path"] for found in landed["landed"]} >= {"README.md", "new", "docs", "docs/guide.md"}
    assert (cli.workspace / "README.md").read_text() == (cli.workspace / "new").read_text() == "shown\n"
    assert not (cli.workspace / "docs").exists()
    assert not (cli.workspace / "other").exists()
    assert cli.sh("cat README.md new other docs/later").stdout == b"later\n" * 4
    told = cli("diff", "--name-status").stdout.decode().split()
    assert told == ["M", "README.md", "A", "docs/later", "M", "new", "A", "other"]


def test_nothing_lands_without_having_been_shown(cli: Cli) -> None:
    cli.sh("echo x > new")
    before = snapshot(cli.workspace)
    for arguments, code in (
        ((), b"digest_required"),
        (("--yes",), b"digest_required"),
        (("--digest", "0" * 64), b"digest_unknown"),
        (("--digest", "latest"), b"digest_unknown"),
        (("--digest", ""), b"digest_required"),
    ):
        assert b"[" + code + b"]" in cli("commit", *arguments, code=4).stderr
    audited = [entry["code"] for entry in json.loads(cli("log", "--audit", "--json").stdout)][::-1]
    assert audited == ["digest_required", "digest_required", "digest_unknown", "digest_unknown", "digest_required"]
    # A part of the changes isn't the whole.
    cli("diff", "new")
    assert b"[digest_required]" in cli("commit", code=4).stderr
    # What was shown to another session isn't this one's.
    digest = cli.digest()
    cli("exec", "--session", "other", "--", "sh", "-c", "echo y > new")
    assert b"[digest_unknown]" in cli("commit", "--session", "other", "--digest", digest, code=4).stderr
    assert snapshot(cli.workspace) == before
    cli("commit", "--digest", digest[:12])
    assert (cli.workspace / "new").read_text() == "x\n"
    # Once more does nothing.
    before = snapshot(cli.workspace)
    cli("commit", "--digest", digest)
    assert snapshot(cli.workspace) == before
    assert b"nothing to commit" in cli("commit").stderr
    nothing = cli.digest()
    told = json.loads(cli("commit", "--digest", nothing, "--json").stdout)
    assert (told["commit_id"], told["digest"], told["landed"]) == (None, nothing, [])
    assert b"nothing to commit" in cli("commit", "--digest", nothing, "--git", "b").stderr


def test_on_a_terminal_a_commit_lands_the_last_full_diff_of_that_terminal(cli: Cli) -> None:
    cli.sh("echo one > one")
    command = f"{shlex.quote(sys.executable)} -m workbench"
    script = f"""
    wb() {{ command=$1; shift; {command} $command -w {shlex.quote(str(cli.workspace))} "$@"; }}
    wb diff | cat; wb exec -- sh -c 'echo two > two'; wb diff | cat
    wb exec -- sh -c 'echo three > three'; wb diff --stat; wb diff two; wb diff --digest-only
    wb commit
    """
    with terminal(["sh", "-c", script], cwd=ROOT) as shown:
        assert shown.wait(600) == 0, shown.screen
    assert (cli.workspace / "one").exists()
    assert (cli.workspace / "two").exists()
    assert not (cli.workspace / "three").exists()
    # On another terminal nothing was shown: it asks, and takes no for an answer.
    argv = [sys.executable, "-m", "workbench", "commit", "-w", str(cli.workspace)]
    with terminal(argv, cwd=ROOT) as shown:
        shown.expect(rb"three.*Commit 1 change to the real workspace\?")
        shown.type(b"n\n")
        assert shown.wait() == 1
    assert not (cli.workspace / "three").exists()
    with terminal(argv, cwd=ROOT) as shown:
        shown.expect(rb"Commit 1 change to the real workspace\?")
        shown.type(b"y\n")
        assert shown.wait() == 0
    assert (cli.workspace / "three").exists()


def test_what_was_shown_on_two_terminals_was_shown_on_both(tmp_path: Path) -> None:
    shown = ShownDigests(str(tmp_path))
    one, two, three = ("1" * 64, "2" * 64, "3" * 64)
    for digest, name in ((one, "a"), (two, "a"), (two, "b"), (three, ""), (two, "")):
        shown.add(digest, f"checkpoint of {digest[0]}", name)
    assert {name: shown.last(name).digest for name in ("a", "b")} == {"a": two, "b": two}  # type: ignore[union-attr]
    assert shown.find("2" * 8).checkpoint == "checkpoint of 2"
    assert shown.last("c") is None
    # Where nothing was shown last, what was shown before that isn't what a commit takes by itself.
    shown.add(digest_of(()), "checkpoint of nothing", "a")
    assert shown.last("a") is None
    assert shown.find(two).checkpoint == "checkpoint of 2"


def test_risky_paths_land_only_when_that_is_said(cli: Cli) -> None:
    cli.sh(
        "mkdir -p .github/workflows; echo x > .github/workflows/ci.yml; echo x > .envrc; ln -s /etc out; echo x > fine"
    )
    before = snapshot(cli.workspace)
    for arguments in ((), ("--yes",)):
        refused = cli.commit(*arguments, code=4)
        assert b"[risky_paths]" in refused.stderr
        for name in (b".github/workflows/ci.yml", b".envrc", b"out"):
            assert name in refused.stderr
    assert snapshot(cli.workspace) == before
    cli.commit("--allow-risky")
    assert (cli.workspace / ".envrc").read_text() == (cli.workspace / "fine").read_text() == "x\n"
