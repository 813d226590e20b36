"""What went wrong in other overlays, by their public reports: each kind of fault, in the sandbox and through Python."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench import Bench
from tests.test_main_job import landable
from tests.trees import Node, snapshot
from tests.vfs.faces import MAKES, new_overlay
from workbench.vfs.local import LocalStorage
from workbench.vfs.overlay import Overlay
from workbench.vfs.storage import Kind
from workbench.vfs.upper import LocalUpper

NAMES = (
    *(
        b"new\nline",
        b"tab\tx",
        b"-rf",
        b" leading",
        b"trailing ",
        b"trailing.",
        b"report..final.md",
        b"[...slug]",
        b"...",
        b"..x",
    ),
    *(
        b"co:lon",
        b"com,ma",
        b"back\\slash",
        b"st*r",
        b"wh?t",
        b"[a-z]",
        b"'",
        b'"',
        b"$(id)",
        b"%2e%2e",
        b"~",
        b"#",
        b"\x01\x7f",
    ),
    *(b"not-utf8-\xff\xfe", b"n" * 255, "é".encode() * 127),
    *(unicodedata.normalize(form, "Ünï").encode() for form in ("NFC", "NFD")),
    *(b"Case", b"case", b"CON", b"nul", b"com1.txt"),
    # What other formats write for a deletion and for an opaque directory.
    *(
        b".wh.test",
        b"test",
        b".wh..wh..opq",
        b".wh..opq",
        b".wh.",
        b".fuse_hidden0001",
        b"#work",
        b"work",
        b"index",
        b"upper",
    ),
)

_NAMES_INSIDE = """
import os, sys
names = eval(sys.argv[1])
for name in names:
    os.unlink(os.path.join(b"deleted", name))
    assert not os.path.lexists(os.path.join(b"deleted", name))
    with open(os.path.join(b"changed", name), "ab") as file:
        file.write(b" and changed")
    with open(os.path.join(b"new", name), "xb") as file:
        file.write(name)
    os.rename(os.path.join(b"moved", name), os.path.join(b"moved-here", name))
    os.mkdir(os.path.join(b"directories", name))
    os.symlink(name, os.path.join(b"directories", name, name))
for directory, expected in ((b"deleted", []), (b"changed", names), (b"new", names), (b"moved", []), (b"moved-here", names)):
    assert sorted(os.listdir(directory)) == sorted(expected), directory
"""

_TEMPLATE = {
    "d/f": "lower f", "d/sub/deep": "deep", "d/sub/other": "other", "f": "file", "tool": "#!/bin/sh\necho tool\n",
    "linked": "linked", "empty/keep/x": "", "swap": "a file", "swap-d/x": "in a directory",
}  # fmt: skip

# Each runs in a directory of its own that has what the template says, all of it in the lower layer.
_CASES = {
    "a directory that was removed and made anew has nothing of the old one": """
        shutil.rmtree("d"); os.mkdir("d"); open("d/new", "w").close()
        assert os.listdir("d") == ["new"]
    """,
    "a whiteout inside a new directory in an old one's place hides only itself": """
        shutil.rmtree("d"); os.makedirs("d/sub"); open("d/sub/deep", "w").close(); os.unlink("d/sub/deep")
        assert os.listdir("d") == ["sub"] and os.listdir("d/sub") == []
    """,
    "a directory of which everything was deleted can be removed": """
        for above, directories, files in os.walk("d", topdown=False):
            for name in files: os.unlink(os.path.join(above, name))
            for name in directories: os.rmdir(os.path.join(above, name))
        os.rmdir("d")
        assert not os.path.lexists("d")
    """,
    "what was in a deleted directory is out of reach": """
        shutil.rmtree("d")
        for path in ("d", "d/f", "d/sub", "d/sub/deep"):
            try: os.stat(path)
            except FileNotFoundError: pass
            else: raise AssertionError(path)
    """,
    "moving a directory brings all that is in it": """
        shutil.move("d", "moved")
        assert open("moved/sub/deep").read() == "deep" and not os.path.lexists("d")
        assert sorted(os.listdir("moved/sub")) == ["deep", "other"]
    """,
    "renaming a directory of the lower works, or says EXDEV and changes nothing": """
        try: os.rename("d", "renamed")
        except OSError as error:
            assert error.errno == errno.EXDEV
            assert open("d/sub/deep").read() == "deep" and not os.path.lexists("renamed")
        else: assert open("renamed/sub/deep").read() == "deep"
    """,
    "a new directory is renamed at once, over an empty one, too": """
        os.makedirs("new/sub"); open("new/sub/x", "w").close(); os.mkdir("target")
        os.rename("new", "target")
        assert os.stat("target/sub/x").st_size == 0 and not os.path.lexists("new")
    """,
    "a directory that isn't empty can't be removed": """
        for path in ("d", "d/sub", "empty"):
            try: os.rmdir(path)
            except OSError as error: assert error.errno == errno.ENOTEMPTY
            else: raise AssertionError(path)
        assert open("d/f").read() == "lower f"
    """,
    "a pipe and a socket are made, used and removed": """
        os.mkfifo("pipe")
        reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
        with open("pipe", "wb") as writer: writer.write(b"through")
        assert os.read(reader, 9) == b"through"
        server = socket.socket(socket.AF_UNIX); server.bind("s"); server.listen()
        client = socket.socket(socket.AF_UNIX); client.connect("s")
        os.unlink("pipe"); os.unlink("s")
    """,
    "a new executable runs, and one that was given the right": """
        with open("program", "w") as file: file.write("#!/bin/sh" + chr(10) + "echo $0 runs" + chr(10))
        os.chmod("program", 0o755); os.chmod("tool", 0o755)
        assert subprocess.check_output("./program") == b"./program runs" + bytes([10])
        assert subprocess.check_output("./tool") == b"tool" + bytes([10])
        shutil.copy("/bin/true", "binary"); subprocess.check_call("./binary")
        assert os.stat("program").st_mode & 0o777 == 0o755
    """,
    "an editor's save by rename has the new content under the old name": """
        with open("f.tmp", "w") as file: file.write("saved"); file.flush(); os.fsync(file.fileno())
        os.replace("f.tmp", "f")
        assert open("f").read() == "saved" and sorted(n for n in os.listdir(".") if n.startswith("f")) == ["f"]
        os.rename("f", "f~"); open("f", "x").close(); os.unlink("f~")
    """,
    "what was changed can be linked to, and both names are one file": """
        with open("linked", "a") as file: file.write(" more")
        os.link("linked", "second")
        with open("second", "a") as file: file.write(" through the second")
        assert open("linked").read() == "linked more through the second"
        assert os.path.samefile("linked", "second") and os.stat("linked").st_nlink == 2
        os.link("f", "g"); os.rename("f", "h")
        assert open("g").read() == "file"
    """,
    "a file open for reading and one open for writing agree as the kernel has it": """
        with open("f") as old, open("f", "r+") as new:
            new.write("X"); new.flush()
            assert open("f").read() == "Xile" and old.read() in ("file", "Xile")
    """,
    "a deleted file that is still open is read and written": """
        with open("f", "r+") as file:
            os.unlink("f"); file.write("still"); file.seek(0)
            assert file.read() == "still" and not os.path.lexists("f")
    """,
    "a file takes a directory's place, and a directory a file's": """
        shutil.rmtree("swap-d"); open("swap-d", "x").close(); os.unlink("swap"); os.makedirs("swap/x")
        assert os.path.isfile("swap-d") and os.listdir("swap") == ["x"]
    """,
    "a link to a directory is removed as a link": """
        os.symlink("d", "to-d"); os.unlink("to-d"); os.symlink("d", "to-d")
        assert open("to-d/f").read() == "lower f"
        shutil.rmtree("d"); os.symlink("swap-d", "d")
        assert open("d/x").read() == "in a directory"
    """,
    "a watcher of a directory is told of changes of what the lower has": """
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.inotify_init1(os.O_NONBLOCK)
        assert libc.inotify_add_watch(fd, b"d", 0xfff) >= 0
        with open("d/f", "a") as file: file.write(" changed")
        os.unlink("d/f"); open("d/new", "x").close()
        told = os.read(fd, 65536)
        assert b"f" + bytes(1) in told and b"new" + bytes(1) in told
    """,
    "deleting and making anew many times ends with the last": """
        for turn in range(50):
            os.unlink("f")
            if turn % 2: os.mkdir("f"); os.rmdir("f")
            with open("f", "x") as file: file.write(str(turn))
        assert open("f").read() == "49"
    """,
}  # fmt: skip


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "w"
    path.mkdir()
    return path


@pytest.fixture
def bench(engine: None, state: Path, workspace: Path) -> Iterator[Bench]:
    bench = Bench(workspace)
    yield bench
    bench.stop()


def _python_view(bench: Bench, workspace: Path) -> dict[bytes, tuple[Kind, bytes]]:
    """What `Overlay` shows of the layers that the sandbox left."""
    with (
        LocalStorage(os.fsencode(workspace)) as lower,
        LocalUpper(os.fsencode(os.path.join(bench.overlay, "upper"))) as upper,
    ):
        overlay = Overlay(lower, upper, scratch=b"")
        return {path: (overlay.stat(path).kind, _content(overlay, path)) for path in overlay.find()}


def _content(overlay: Overlay, path: bytes) -> bytes:
    kind = overlay.stat(path).kind
    return overlay.read_bytes(path) if kind is Kind.FILE else overlay.readlink(path) if kind is Kind.SYMLINK else b""


def _assert_remounted_python_and_landed_agree(bench: Bench, workspace: Path) -> dict[bytes, Node]:
    """The view stays over a remount, Python's is the same, and the commit lands it."""
    view = bench.inside()
    bench.stop()
    assert bench.inside() == view
    bench.stop()
    found = _python_view(bench, workspace)
    assert found.keys() == view.keys() - {b""}
    left = bench.changes().left
    bench.commit(allow_risky=True)
    landed = snapshot(workspace, times=False)
    assert landed == landable(view, left)
    for path, (kind, content) in found.items():
        if kind is Kind.FILE:
            assert (workspace / os.fsdecode(path)).read_bytes() == content
    return view


def test_any_name_is_deleted_changed_made_and_moved_inside_and_lands(bench: Bench, workspace: Path) -> None:
    for directory in (b"deleted", b"changed", b"moved"):
        os.mkdir(os.path.join(os.fsencode(workspace), directory))
        for name in NAMES:
            with open(os.path.join(os.fsencode(workspace), directory, name), "wb") as file:
                file.write(b"lower " + name)
    for name in ("new", "moved-here", "directories"):
        (workspace / name).mkdir()
    bench.python(_NAMES_INSIDE, repr(list(NAMES)))
    view = _assert_remounted_python_and_landed_agree(bench, workspace)
    assert len(view) == 7 + 5 * len(NAMES)
    assert sorted(os.listdir(os.fsencode(workspace / "deleted"))) == []
    assert sorted(os.listdir(os.fsencode(workspace / "new"))) == sorted(NAMES)


def test_what_went_wrong_in_other_overlays_goes_right_inside_over_a_remount_and_when_it_lands(
    bench: Bench, workspace: Path
) -> None:
    source = "import ctypes, errno, os, shutil, socket, subprocess\ntop = os.getcwd()\n"
    for number, (sentence, script) in enumerate(_CASES.items()):
        for path, content in _TEMPLATE.items():
            full = workspace / f"case-{number}" / path
            full.parent.mkdir(parents=True, exist_ok=True)
            full.write_text(content)
        body = "\n".join("    " + line.strip("\n")[8:] for line in script.splitlines() if line.strip())
        source += f"os.chdir(top + '/case-{number}')\ntry:\n{body}\n"
        source += f"except BaseException as error: raise AssertionError({sentence!r}) from error\n"
    before = snapshot(workspace)
    bench.python(source)
    assert snapshot(workspace) == before
    _assert_remounted_python_and_landed_agree(bench, workspace)


@pytest.mark.parametrize("make", MAKES[:2])
def test_any_name_is_deleted_changed_made_and_moved_through_python(make: str, tmp_path: Path) -> None:
    for directory in (b"deleted", b"changed", b"moved"):
        os.makedirs(os.path.join(os.fsencode(tmp_path), b"lower", directory))
        for name in NAMES:
            with open(os.path.join(os.fsencode(tmp_path), b"lower", directory, name), "wb") as file:
                file.write(b"lower " + name)
    before = snapshot(tmp_path / "lower")
    with new_overlay(make, tmp_path) as overlay:
        for directory in (b"new", b"moved-here", b"directories"):
            overlay.mkdir(directory)
        for name in NAMES:
            overlay.unlink(b"deleted/" + name)
            with overlay.open(b"changed/" + name, "ab") as file:
                file.write(b" and changed")
            overlay.write_bytes(b"new/" + name, name)
            overlay.rename(b"moved/" + name, b"moved-here/" + name)
            overlay.mkdir(b"directories/" + name)
            overlay.symlink(name, b"directories/" + name + b"/" + name)
        again = Overlay(overlay.lower, overlay.upper)
        for view in (overlay, again):
            assert view.list(b"deleted") == view.list(b"moved") == []
            assert view.list(b"changed") == view.list(b"new") == view.list(b"moved-here") == sorted(NAMES)
            for name in NAMES:
                assert view.read_bytes(b"changed/" + name) == b"lower " + name + b" and changed"
                assert view.read_bytes(b"moved-here/" + name) == b"lower " + name
                assert view.readlink(b"directories/" + name + b"/" + name) == name
    assert snapshot(tmp_path / "lower") == before
