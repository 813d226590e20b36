"""An upper layer in which an agent did its worst: nobody reads or writes outside of it, hangs, or runs out of memory."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bench import Bench
from tests.checkpoints.layers import show
from tests.conftest import ROOT
from tests.suites.fetched import FULL
from tests.trees import snapshot

_ENTRIES = 1_000_000 if FULL else 50_000

_BYTES_AN_ENTRY = 3_000
"""What everything that is made of an entry may take together: its manifest entry, its change, its lines in a diff."""

_SECRET = b"a secret of the machine"
_MARK = "user.overlay."

# One process does everything that the host ever does with an upper layer, and prints each part as it's done.
_EVERYTHING = """
import os, resource, sys
from workbench.checkpoints.manifest import Manifest
from workbench.checkpoints.restore import restore
from workbench.checkpoints.scan import Budget
from workbench.checkpoints.store import CheckpointStore
from workbench.errors import WorkbenchError
from workbench.review import diff
from workbench.review.commit import commit
from workbench.review.compare import change_set
from workbench.vfs import search
from workbench.vfs.local import LocalStorage
from workbench.vfs.overlay import Overlay
from workbench.vfs.storage import Kind
from workbench.vfs.upper import LocalUpper

base, room = os.fsencode(sys.argv[1]), int(sys.argv[2])
lower, upper = LocalStorage(base + b"/lower"), LocalUpper(base + b"/upper", work=base + b"/work")
overlay = Overlay(lower, upper)
if room:
    taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + room, taken + room))

def count(iterator):
    return sum(1 for _ in iterator)

def part(name, act):
    try:
        print(name, act(), flush=True)
    except (WorkbenchError, OSError) as error:
        print(name, "refused:", getattr(error, "code", error.__class__.__name__), error, flush=True)

part("list", lambda: len(overlay.list(b"")))
part("walk", lambda: sum(len(names) for _, directories, files in overlay.walk() for names in (directories, files)))
part("find", lambda: count(overlay.find()))
part("glob", lambda: len(overlay.glob(b"**/*")))
part("some", lambda: len(search.glob(overlay, b"**/*", limit=10).paths))
part("tree", lambda: len(search.tree(overlay).lines))
part("grep", lambda: search.grep(overlay, b"secret", ignored=True))

def read_all():
    for path in overlay.find():
        for act in (overlay.stat, overlay.xattrs, overlay.readlink, overlay.read_bytes, overlay.resolve):
            try:
                print(" ", act(path))
            except (WorkbenchError, OSError):
                pass
if not room:
    part("read", read_all)

with CheckpointStore(os.fsdecode(base + b"/store")) as store:
    def take(name):
        return store.take("s", upper, lower, message_id=name, epoch_ns=None)
    part("checkpoint", lambda: len(take("one").manifest.entries))
    def land():
        checkpoint = take("two")
        changes = change_set("c", checkpoint.manifest, lower, store, scratch=b"_notes")
        said = sum(len(piece) for piece in diff.unified(changes.changes, lower, store))
        said += sum(len(piece) for piece in diff.stat(changes.changes, lower, store))
        if not room:
            commit(lower, os.fsdecode(base + b"/commits"), changes, checkpoint.manifest, store)
            print(b"".join(diff.unified(changes.changes, lower, store)), changes.left)
        return len(changes.changes), said > 0
    part("land", land)
    def limited():
        found = CheckpointStore(os.fsdecode(base + b"/other"))
        budget = Budget(entries=1000)
        return len(found.take("s", upper, lower, message_id="m", epoch_ns=None, budget=budget).manifest.entries)
    part("budget", limited)
    def discard():
        manifest = take("three").manifest
        restore(os.fsdecode(base + b"/upper"), upper, Manifest({b"": manifest.entries[b""]}), store, current=manifest)
        return len(os.listdir(base + b"/upper"))
    part("discard", discard)
part("removal", lambda: [overlay.remove_tree(name) for name in overlay.list(b"")])
"""


class Hostile:
    """The layers, and a directory outside with a secret in it that nothing may touch."""

    def __init__(self, base: Path) -> None:
        self.base, self.outside = base / "overlay", base / "outside"
        for name in ("lower", "upper", "work"):
            (self.base / name).mkdir(parents=True)
        self.outside.mkdir()
        (self.outside / "secret").write_bytes(_SECRET)
        self.lower, self.upper = self.base / "lower", self.base / "upper"

    def everything(self, room: int = 0) -> dict[str, str]:
        """Do everything in a process of its own, with so many bytes more than it starts with; what each part said."""
        before = snapshot(self.outside)
        argv = [sys.executable, "-c", _EVERYTHING, self.base, str(room)]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, check=False, timeout=3000 if FULL else 600)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        assert snapshot(self.outside) == before
        assert _SECRET not in done.stdout + done.stderr
        assert not any(_SECRET in shown.content for shown in show(self.lower).values())
        lines = [line.partition(" ") for line in done.stdout.decode(errors="replace").splitlines() if line[:1] != " "]
        return {name: said for name, _, said in lines}


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Hostile]:
    made = Hostile(tmp_path / "h")
    yield made
    # Trees too deep, and directories too large, for pytest's own tidying.
    subprocess.run(["rm", "-rf", tmp_path / "h"], check=True)


def _links(upper: Path, outside: Path) -> None:
    (upper / "etc").symlink_to("/etc")
    (upper / "passwd").symlink_to("/etc/passwd")
    (upper / "outside").symlink_to(outside)
    (upper / "secret").symlink_to(outside / "secret")
    (upper / "climbing").symlink_to("../../outside/secret")
    (upper / "loop").symlink_to("loop")
    (upper / "one").symlink_to("two")
    (upper / "two").symlink_to("one/x")
    (upper / "itself").symlink_to(".")
    (upper / "proc").symlink_to("/proc/self/root")
    (upper / "long").symlink_to("x" * 4000)
    (upper / ".gitignore").symlink_to(outside / "secret")
    (upper / ".gitattributes").symlink_to(outside / "secret")


def _special(upper: Path, outside: Path) -> None:
    del outside
    for number in range(50):
        os.mkfifo(upper / f"fifo-{number}")
    os.mkfifo(upper / ".gitignore")
    here = os.getcwd()
    os.chdir(upper)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("socket")
    finally:
        os.chdir(here)


def _devices(upper: Path, outside: Path) -> None:
    del outside
    if os.geteuid() != 0:
        pytest.skip("only root makes device nodes")
    os.mknod(upper / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.mknod(upper / "zero", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    os.mknod(upper / "disk", 0o666 | stat.S_IFBLK, os.makedev(7, 250))


def _nested(upper: Path, outside: Path) -> None:
    fd = os.open(upper, os.O_RDONLY)
    for level in range(100):
        if level % 10 == 0:
            os.symlink(outside, f"out-{level}", dir_fd=fd)
        os.mkdir("n" * 200, dir_fd=fd)
        below = os.open("n" * 200, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)


def _attributes(upper: Path, outside: Path) -> None:
    """Everything that the kernel writes of its own, and values that it never would."""
    handle = b"\x00\xfb" + b"\xff" * 40
    values = {
        "opaque": (b"x", b"", b"yes", b"y" * 4000),
        "origin": (b"", b"\x00", handle, b"\xff" * 4000, os.fsencode(outside)),
        "impure": (b"y",),
        "nlink": (b"U-99999999", b"L+1"),
        "upper": (handle,),
        "uuid": (b"x" * 16,),
        "protattr": (b"i", b"a"),
        "xwhiteouts": (b"y",),
        "whiteout": (b"y",),
        "overlay.redirect": (os.fsencode(outside),),
    }
    for name, each in values.items():
        for number, value in enumerate(each):
            for kind in ("d", "f"):
                path = upper / f"{name}-{number}-{kind}"
                if kind == "d":
                    path.mkdir()
                    (path / "in").write_text("in")
                else:
                    path.write_text("file")
                os.setxattr(path, _MARK + name, value)
    (upper / "huge").write_text("x")
    os.setxattr(upper / "huge", "user.huge", b"x" * 3000)


def _redirected(upper: Path, outside: Path) -> None:
    (upper / "d").mkdir()
    os.setxattr(upper / "d", _MARK + "redirect", os.fsencode(outside))
    (upper / "f").write_text("")
    os.setxattr(upper / "f", _MARK + "metacopy", b"")


def _names(upper: Path, outside: Path) -> None:
    del outside
    names = [
        b"\n",
        b"\x1b[2J",
        b"\xff\xfe",
        b"-rf",
        b"..x",
        b"...",
        b"x" * 255,
        b'"',
        b"\\",
        b"%s%n",
        b"{}",
        b"$(id)",
        b" ",
    ]
    for name in names:
        (upper / os.fsdecode(name)).mkdir()
        (upper / os.fsdecode(name) / os.fsdecode(name)).write_bytes(name)


@pytest.mark.parametrize("make", [_links, _special, _devices, _nested, _attributes, _redirected, _names])
def test_a_hostile_upper_makes_nobody_reach_outside_or_hang(
    make: Callable[[Path, Path], None], hostile: Hostile
) -> None:
    (hostile.lower / "lower").write_text("lower")
    make(hostile.upper, hostile.outside)
    said = hostile.everything()
    refused = {name: text for name, text in said.items() if text.startswith("refused")}
    if make is _redirected:
        assert "layer_unsupported" in said["walk"]
        assert "layer_unsupported" in said["checkpoint"]
    elif make is _attributes:
        assert all("layer_unsupported" in text for text in refused.values()), refused
    else:
        assert refused == {}
        assert said["discard"] == ("3" if make is _devices else "0")
    kinds = {stat.S_IFMT(shown.mode) for shown in show(hostile.lower).values()}
    assert kinds <= {stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK}


def test_a_directory_of_very_many_entries_takes_memory_by_their_number_and_a_budget_bounds_it(hostile: Hostile) -> None:
    (hostile.upper / "many").mkdir()
    fd = os.open(hostile.upper / "many", os.O_RDONLY)
    for number in range(_ENTRIES):
        os.close(os.open(f"entry-{number}", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=fd))
    os.close(fd)
    said = hostile.everything(_ENTRIES * _BYTES_AN_ENTRY + (64 << 20))
    assert said["walk"] == said["find"] == said["glob"] == str(_ENTRIES + 1)
    assert said["some"] == "10"
    assert said["checkpoint"] == str(_ENTRIES + 2)
    assert said["land"] == f"({_ENTRIES + 1}, True)"
    assert said["budget"] == "2"
    assert said["discard"] == "0"


_FORGE = """
import os
for name in ("opaque", "redirect", "metacopy", "origin", "whiteout", "xwhiteouts", "impure", "upper", "nlink", "protattr"):
    for value in (b"y", b"/etc", b""):
        for path in (".", "d", "d/f", "new", "new-d"):
            if path == "new":
                open(path, "a").close()
            elif path == "new-d":
                os.makedirs(path, exist_ok=True)
            try:
                os.setxattr(path, "user.overlay." + name, value)
            except OSError as error:
                print(error.errno)
"""


def test_marks_that_an_agent_forges_inside_mean_nothing(engine: None, state: Path, tmp_path: Path) -> None:
    workspace = tmp_path / "w"
    (workspace / "d" / "sub").mkdir(parents=True)
    for path in ("d/f", "d/g", "d/sub/h"):
        (workspace / path).write_text(path)
    bench = Bench(workspace)
    bench.python(_FORGE)
    bench.sh("echo changed > d/sub/h")
    seen = {path for path in bench.inside() if not path.startswith(b"new")}
    assert seen == {b"", b"d", b"d/f", b"d/g", b"d/sub", b"d/sub/h"}
    bench.stop()
    assert {path for path in bench.inside() if not path.startswith(b"new")} == seen
    assert bench.told() == {b"d/sub/h": "modified", b"new": "added", b"new-d": "added"}
    bench.commit()
    assert (workspace / "d" / "sub" / "h").read_text() == "changed\n"
    assert sorted(os.listdir(workspace / "d")) == ["f", "g", "sub"]
    bench.stop()
