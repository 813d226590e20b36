"""What every call on every kind of path answers, and what it leaves: in the sandbox's mount as on plain disk.

The kinds of checks of pjdfstest and unionmount-testsuite, which no package index has: each operation meets each kind of
entry, as the last component, in the middle of the path, with a slash behind it, and two at a time. It meets them in the lower
layer, copied up, and made anew in the upper one; in the end the layers are mounted once more.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.suites.sides import BASE, Sides
from tests.trees import snapshot

# What the cases meet. A case that changes it leaves it for good, and the next one gets another. A hard link of the lower is
# another file once it's copied up (overlayfs without an index), so that there twins are only alike.
_MAKE = """
import ctypes, errno, json, os, stat, sys
def make(kit, linked):
    os.mkdir(kit)
    at = lambda name: os.path.join(kit, name)
    def file(name, mode=0o644):
        fd = os.open(at(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        os.write(fd, name.encode() * 20)
        os.close(fd)
    file("file"); file("twin"); os.link(at("twin"), at("twin2")) if linked else file("twin2"); file("closed", 0)
    os.mkdir(at("empty")); os.mkdir(at("full")); file("full/below")
    os.mkdir(at("shut")); file("shut/below")
    os.symlink("file", at("to-file")); os.symlink("full", at("to-dir"))
    os.symlink("nowhere", at("dangling")); os.symlink("loop", at("loop"))
    os.mkfifo(at("fifo"))
    os.chmod(at("shut"), 0)
"""

_CASES = """
NAMES = ["file", "twin", "closed", "empty", "full", "full/below", "shut", "shut/below", "to-file", "to-dir", "to-dir/below",
         "dangling", "dangling/x", "loop", "loop/x", "fifo", "fifo/x", "nothing", "nothing/x", "file/x", "file/", "empty/",
         "to-file/", "to-dir/", "dangling/", "nothing/", "full/.", "full/..", "n" * 255, "n" * 256, "a/" * 2100]
PAIRS = ["file", "twin", "twin2", "empty", "full", "full/below", "to-dir", "dangling", "fifo", "nothing", "full/new", "file/x",
         "nothing/x", "empty/", "shut/x", "empty/x"]
def opened(flags):
    def call(path):
        fd = os.open(path, flags | os.O_NONBLOCK, 0o640)
        try:
            return "directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else os.fstat(fd).st_size
        finally:
            os.close(fd)
    return call
ONE = {
    "stat": lambda p: stat.S_IFMT(os.stat(p).st_mode), "lstat": lambda p: stat.S_IFMT(os.lstat(p).st_mode),
    "chmod": lambda p: os.chmod(p, 0o500), "chown": lambda p: os.chown(p, os.getuid(), -1),
    "chown to another": lambda p: os.chown(p, 12345, -1), "lchown": lambda p: os.lchown(p, os.getuid(), os.getgid()),
    "rmdir": os.rmdir, "unlink": os.unlink, "readlink": os.readlink, "mkdir": lambda p: os.mkdir(p, 0o750),
    "mkfifo": os.mkfifo, "device": lambda p: os.mknod(p, stat.S_IFCHR, os.makedev(1, 3)),
    "symlink": lambda p: os.symlink("to", p), "empty symlink": lambda p: os.symlink("", p),
    "long symlink": lambda p: os.symlink("t" * 4096, p), "truncate": lambda p: os.truncate(p, 3),
    "extend": lambda p: os.truncate(p, 100000), "truncate below 0": lambda p: os.truncate(p, -1),
    "utime": lambda p: os.utime(p, (1, 2)), "lutime": lambda p: os.utime(p, (1, 2), follow_symlinks=False),
    "access": lambda p: [os.access(p, mode) for mode in (os.F_OK, os.R_OK, os.W_OK, os.X_OK)],
    "listdir": lambda p: sorted(os.listdir(p)), "chdir": lambda p: os.close(os.open(p, os.O_PATH | os.O_DIRECTORY)),
    "setxattr": lambda p: os.setxattr(p, "user.note", b"x"), "listxattr": os.listxattr,
    "no such xattr": lambda p: os.getxattr(p, "user.none"),
}
R, W, C, X, T = os.O_RDONLY, os.O_WRONLY, os.O_CREAT, os.O_EXCL, os.O_TRUNC
FLAGS = {
    "r": R, "w": W, "rw": os.O_RDWR, "creat": W | C, "excl": W | C | X, "trunc": W | T, "append": W | os.O_APPEND,
    "r trunc": R | T, "directory": R | os.O_DIRECTORY, "nofollow": R | os.O_NOFOLLOW, "creat r": R | C,
    "nofollow creat": W | C | os.O_NOFOLLOW, "creat directory": R | C | os.O_DIRECTORY,
    "tmpfile": os.O_RDWR | os.O_TMPFILE, "path": os.O_PATH, "path nofollow": os.O_PATH | os.O_NOFOLLOW,
}
for name, flags in FLAGS.items():
    ONE["open " + name] = opened(flags)
libc = ctypes.CDLL(None, use_errno=True)
def renameat2(flags):
    def call(a, b):
        if libc.renameat2(-100, a.encode(), -100, b.encode(), flags):
            raise OSError(ctypes.get_errno(), "")
    return call
TWO = {"rename": os.rename, "link": os.link, "link to what it leads to": lambda a, b: link_follow(a, b),
       "noreplace": renameat2(1), "exchange": renameat2(2), "both": renameat2(3), "unknown flag": renameat2(64)}
def link_follow(a, b):
    if libc.linkat(-100, a.encode(), -100, b.encode(), 0x400):
        raise OSError(ctypes.get_errno(), "")
CASES = [(what, call, (name,)) for what, call in ONE.items() for name in NAMES]
CASES += [(what, call, (a, b)) for what, call in TWO.items() for a in PAIRS for b in PAIRS
          if what in ("rename", "link") or (a in PAIRS[::2] and b in PAIRS[::3])]
"""

# How many of each the cases need: as many as succeed in something.
_KITS = 300

_PREPARE = (
    _MAKE
    + """
for number in range(int(sys.argv[2])):
    for kind in ("lower", "copied"):
        make(os.path.join(sys.argv[1], kind + str(number)), False)
"""
)

_RUN = (
    _MAKE
    + _CASES
    + """
def look(kit):
    found = {}
    for here, directories, files in os.walk(kit):
        for name in directories + files:
            path = os.path.join(here, name)
            node = os.lstat(path)
            # A directory's size and links are its filesystem's affair.
            told = [stat.filemode(node.st_mode), *((node.st_nlink, node.st_size) if not stat.S_ISDIR(node.st_mode) else ())]
            if stat.S_ISREG(node.st_mode) and node.st_mode & 0o400:
                with open(path, "rb") as file:
                    told.append(file.read(200).decode())
            elif stat.S_ISLNK(node.st_mode):
                told.append(os.readlink(path))
            found[os.path.relpath(path, kit)] = told
    return found
def answer(call, arguments):
    try:
        return repr(call(*arguments))
    except OSError as error:
        return errno.errorcode[error.errno]
def kits(kind):
    number = 0
    while True:
        kit = kind + str(number)
        number += 1
        if kind == "new":
            make(kit, True)
        elif kind == "copied":
            for name in os.listdir(kit):
                if not os.path.islink(kit + "/" + name):
                    os.chmod(kit + "/" + name, stat.S_IMODE(os.lstat(kit + "/" + name).st_mode))
        yield kit, look(kit)
os.umask(0o022)
os.chdir(sys.argv[1])
kind, names = sys.argv[2], sys.argv[3:]
if kind == "again":
    print(json.dumps({kit: look(kit) for kit in names}))
    raise SystemExit
cases, seen = {}, {}
fresh = kits(kind)
kit, pristine = next(fresh)
for what, call, arguments in CASES:
    os.chdir(kit)
    told = answer(call, arguments)
    os.chdir("..")
    seen[kit] = look(kit)
    changed = {} if seen[kit] == pristine else seen[kit]
    cases[what + " " + repr(arguments)[:60]] = [told, changed]
    if changed or told == "None":
        kit, pristine = next(fresh)
print(json.dumps([cases, seen]))
"""
)


@pytest.fixture
def sides(engine: None, state: Path, tmp_path: Path) -> Iterator[Sides]:
    sides = Sides(tmp_path, BASE)
    yield sides
    for path in tmp_path.rglob("shut"):
        path.chmod(0o700)


def test_every_call_on_every_kind_of_path_answers_in_the_mount_as_on_disk(sides: Sides) -> None:
    for side in (sides.plain, sides.mount):
        subprocess.run([sys.executable, "-I", "-c", _PREPARE, side, str(_KITS)], check=True)
    before = snapshot(sides.mount)
    answered: set[str] = set()
    kits: dict[str, object] = {}
    for kind in ("lower", "copied", "new"):
        (plain, _), (mounted, seen) = (json.loads(text) for text in sides.run(_RUN, kind))
        assert len(plain) > 1500
        differing = {case: (plain[case], told) for case, told in mounted.items() if told != plain[case]}
        # The one thing that overlayfs refuses, and says so: mv(1) and the like copy instead.
        if kind != "new":
            differing = {case: each for case, each in differing.items() if each[1] != ["EXDEV", {}]}
        assert differing == {}, kind
        answered |= {told for told, _ in plain.values()}
        kits |= seen
    expected = "EACCES EEXIST EINVAL EISDIR ELOOP ENAMETOOLONG ENODATA ENOENT ENOTDIR ENOTEMPTY ENXIO EPERM None"
    assert set(expected.split()) <= answered
    # What the layers hold when they're mounted once more is what was seen.
    sides.bench.stop()
    assert json.loads(sides.bench.python(_RUN, str(sides.mount), "again", *kits)) == kits
    assert snapshot(sides.mount) == before
