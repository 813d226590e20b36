"""Trees as tar and back: everything that a layer can hold, only what changed, and nothing beyond the tree."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.sandbox import copies
from workbench.sandbox.removal import remove_below
from workbench.sandbox.tree_departures import Departures
from workbench.sandbox.tree_directories import open_directory
from workbench.sandbox.tree_packer import Packer
from workbench.sandbox.tree_stream import FRAME, FrameReader, FrameWriter, Known
from workbench.sandbox.tree_unpacker import Unpacker

NAMES = (b"new\nline", b"\xff\xfe", b" sp ace ", b"back\\slash", b"a=b", b"\xc3\xa9", b"-dash", b"...", b"n" * 255)
LEVEL = "l" * 200
DEPTH = 400
TIME = 1_600_000_000_123_456_789


def told(root: Path) -> dict[bytes, tuple[object, ...]]:
    """Everything that has to come through, by path."""
    found = {}
    for parent, directories, files in os.walk(os.fsencode(root)):
        for name in [*directories, *files]:
            path = os.path.join(parent, name)
            status = os.lstat(path)
            kind = stat.S_IFMT(status.st_mode)
            content: object = b""
            attributes = {}
            if kind == stat.S_IFLNK:
                content = os.readlink(path)
            else:
                if kind == stat.S_IFREG:
                    content = Path(os.fsdecode(path)).read_bytes()
                attributes = {key: os.getxattr(path, key) for key in os.listxattr(path, follow_symlinks=False)}
            owner = (status.st_uid, status.st_gid)
            links = status.st_nlink if kind == stat.S_IFREG else 0
            key = os.path.relpath(path, os.fsencode(root))
            found[key] = (status.st_mode, content, attributes, owner, links, kind == stat.S_IFCHR or status.st_mtime_ns)
    return found


def fill(root: Path) -> None:
    """A layer with one of everything."""
    (root / "dir" / "below").mkdir(parents=True)
    (root / "dir" / "below" / "file").write_bytes(bytes(range(256)) * 3000)
    (root / "empty").touch()
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o4755)
    (root / "out").symlink_to("/etc/passwd")
    (root / "loop").symlink_to("loop")
    os.link(root / "run", root / "dir" / "same")
    for name in NAMES:
        (root / os.fsdecode(name)).write_bytes(name)
    os.setxattr(root / "empty", "user.a=b\n", b"\0\xff=\n")
    os.setxattr(root / "empty", "user.none", b"")
    os.setxattr(root / "dir", "user.overlay.opaque", b"y")
    os.setxattr(root / "dir" / "below", "user.overlay.overlay.opaque", b"y")
    os.mkfifo(root / "fifo", 0o640)
    os.mknod(root / "socket", stat.S_IFSOCK | 0o600)
    with contextlib.suppress(PermissionError):
        os.mknod(root / "gone", stat.S_IFCHR, 0)
    for path in ("dir/below/file", "empty", "out", "dir/below", "dir"):
        os.utime(root / path, ns=(TIME, TIME), follow_symlinks=False)
    os.utime(root / "run", ns=(-1_500_000_000, -1_500_000_000))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.mkdir()
    fill(path)
    return path


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "target"
    path.mkdir()
    yield path
    with contextlib.closing(Root(path)) as root:
        remove_below(root.fd)


class Root:
    """An open directory."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def close(self) -> None:
        os.close(self.fd)


class Stream:
    """What was written as frames, to be read as frames."""

    def __init__(self) -> None:
        self._data = io.BytesIO()

    def send(self, data: bytes) -> None:
        self._data.write(data)

    def frame(self) -> bytes:
        size = FRAME.unpack(self._data.read(FRAME.size))[0]
        return self._data.read(size)

    def rewind(self) -> None:
        self._data.seek(0)


def copy(source: Path, target: Path, known: Known | None = None, *, layer: bool = True) -> tuple[Known, set[bytes]]:
    """Pack what isn't known and unpack it; what is known now, and which paths came."""
    stream = Stream()
    with contextlib.closing(Root(source)) as root, contextlib.closing(Root(target)) as goal:
        writer = FrameWriter(stream.send)
        now = Packer(root.fd, layer=layer).pack(writer, known or {})
        writer.end()
        stream.rewind()
        unpacker = Unpacker(goal.fd)
        unpacker.unpack(FrameReader(stream.frame))
        for path in known or {}:
            if path not in now:
                unpacker.remove(path)
        unpacker.close()
    return now, unpacker.paths


def test_a_layer_comes_through_as_it_is(source: Path, target: Path) -> None:
    copy(source, target)
    assert told(target) == told(source)
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(source.stat().st_mode)
    assert target.stat().st_mtime_ns == source.stat().st_mtime_ns


def test_a_tree_deeper_than_a_path_can_be_long_comes_through(tmp_path: Path, target: Path) -> None:
    source = tmp_path / "deep"
    source.mkdir()
    here = os.open(source, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir(LEVEL, dir_fd=here)
        below = os.open(LEVEL, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    with open(os.open("end", os.O_WRONLY | os.O_CREAT, dir_fd=here), "w") as file:
        file.write("reached")
    os.close(here)
    copy(source, target)
    with contextlib.closing(Root(target)) as root:
        bottom = open_directory(root.fd, b"/".join([LEVEL.encode()] * DEPTH), os.O_RDONLY)
        with open(os.open("end", os.O_RDONLY, dir_fd=bottom)) as file:
            assert file.read() == "reached"
        os.close(bottom)
    with contextlib.closing(Root(source)) as root:
        remove_below(root.fd)


def settle(root: Path) -> Known:
    """What there is, without the doubt about what has just changed."""
    with contextlib.closing(Root(root)) as opened:
        return Packer(opened.fd, layer=True).signatures()


def test_only_what_changed_is_sent_and_everything_is_the_same_after_it(source: Path, target: Path) -> None:
    copy(source, target)
    known = settle(source)
    before = (target / "dir" / "below").stat().st_mtime_ns
    (source / "empty").write_text("no more")
    (source / "dir" / "below" / "file").chmod(0o600)
    (source / "out").unlink()
    (source / "run").unlink()
    (source / "run").mkdir()
    (source / "run" / "inner").write_text("inner")
    now, sent = copy(source, target, known)
    # Of the file that `run` was, the other name is told again: one less shares it.
    assert sent == {b"", b"empty", b"dir/below/file", b"run", b"run/inner", b"dir/same"}
    assert told(target) == told(source)
    assert (target / "dir" / "below").stat().st_mtime_ns == before == TIME
    shutil.rmtree(source / "run")
    (source / "run").symlink_to("dir")
    shutil.rmtree(source / "dir")
    copy(source, target, now)
    assert told(target) == told(source)


def test_what_changed_at_the_moment_of_the_look_is_sent_again(source: Path, target: Path) -> None:
    (source / "fresh").write_text("fresh")
    known, _ = copy(source, target)
    assert known[b"fresh"] is None
    _, sent = copy(source, target, known)
    assert b"fresh" in sent
    assert told(target) == told(source)


@pytest.mark.skipif(os.geteuid() != 0, reason="making a device takes root")
def test_devices_are_not_carried(source: Path, target: Path) -> None:
    os.mknod(source / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    copy(source, target)
    assert not (target / "device").exists()


def test_what_is_nothing_but_zeros_takes_no_room(source: Path, target: Path) -> None:
    with open(source / "sparse", "wb") as file:
        file.seek(50_000_000)
        file.write(b"end")
        file.truncate(60_000_000)
    copy(source, target)
    assert (target / "sparse").stat().st_size == 60_000_000
    assert (target / "sparse").stat().st_blocks * 512 < 1_000_000
    with open(target / "sparse", "rb") as file:
        file.seek(50_000_000)
        assert file.read(4) == b"end\0"


def forged(*members: tuple[tarfile.TarInfo, bytes]) -> FrameReader:
    """A tree that no packer wrote."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in members:
            info.size = len(content)
            info.pax_headers = {"mtime": "1.0"}
            tar.addfile(info, io.BytesIO(content))
    stream = Stream()
    writer = FrameWriter(stream.send)
    writer.write(data.getvalue())
    writer.end()
    stream.rewind()
    return FrameReader(stream.frame)


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o644
    return info


@pytest.mark.parametrize("name", ["../out/evil", "/evil", "a/../../out/evil", "a//b", "./a", "..", "a/."])
def test_no_name_leads_out_of_the_tree(tmp_path: Path, target: Path, name: str) -> None:
    (tmp_path / "out").mkdir()
    with contextlib.closing(Root(target)) as root:
        unpacker = Unpacker(root.fd)
        with pytest.raises(ValueError, match="leads out"):
            unpacker.unpack(forged((member(name), b"evil")))
        unpacker.close()
    assert os.listdir(tmp_path / "out") == []
    assert not os.path.exists("/evil")


def test_no_symlink_is_followed_on_the_way(tmp_path: Path, target: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    for forgery in (
        [(member("link", tarfile.SYMTYPE, str(outside)), b""), (member("link/evil"), b"evil")],
        [(member("link", tarfile.SYMTYPE, str(outside / "file")), b""), (member("hard", tarfile.LNKTYPE, "link"), b"")],
        [(member("hard", tarfile.LNKTYPE, "../outside/file"), b"")],
        [(member("link", tarfile.SYMTYPE, str(outside)), b""), (member("hard", tarfile.LNKTYPE, "link/file"), b"")],
    ):
        with contextlib.closing(Root(target)) as root:
            unpacker = Unpacker(root.fd)
            with contextlib.suppress(OSError, ValueError):
                unpacker.unpack(forged(*forgery))
            with contextlib.suppress(OSError):
                unpacker.remove(b"link/file")
            unpacker.close()
    assert os.listdir(outside) == ["file"]
    assert (outside / "file").read_text() == "mine"
    assert (outside / "file").stat().st_nlink == 1


def test_a_file_over_a_symlink_takes_its_place(tmp_path: Path, target: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    (target / "name").symlink_to(tmp_path / "kept")
    with contextlib.closing(Root(target)) as root:
        unpacker = Unpacker(root.fd)
        unpacker.unpack(forged((member("name"), b"new")))
        unpacker.close()
    assert (tmp_path / "kept").read_text() == "mine"
    assert (target / "name").read_bytes() == b"new"


@pytest.mark.parametrize("kind", [tarfile.BLKTYPE, b"?"])
def test_an_entry_of_another_kind_is_refused(target: Path, kind: bytes) -> None:
    with contextlib.closing(Root(target)) as root:
        unpacker = Unpacker(root.fd)
        with pytest.raises(ValueError, match="kind"):
            unpacker.unpack(forged((member("x", kind), b"")))
        unpacker.close()
    assert os.listdir(target) == []


def test_a_device_is_never_more_than_a_whiteout(target: Path) -> None:
    device = member("x", tarfile.CHRTYPE)
    device.devmajor, device.devminor = 1, 3
    with contextlib.closing(Root(target)) as root:
        unpacker = Unpacker(root.fd)
        unpacker.unpack(forged((device, b"")))
        unpacker.close()
    assert (target / "x").lstat().st_rdev == 0


def test_the_program_fills_a_tree_and_reads_out_what_changed_in_it(source: Path, target: Path, tmp_path: Path) -> None:
    inside = tmp_path / "volume" / "tree"
    inside.parent.mkdir()
    command = [sys.executable, "-I", "-S", "-c", copies.program()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        out, back = process.stdin, process.stdout

        def send(data: bytes) -> None:
            out.write(data)
            out.flush()

        def ask(content: object) -> None:
            data = json.dumps(content).encode()
            send(FRAME.pack(len(data)) + data)

        def frame() -> bytes:
            return back.read(FRAME.unpack(back.read(FRAME.size))[0])

        ask({"do": "fill", "tree": str(inside)})
        with contextlib.closing(Root(source)) as root:
            writer = FrameWriter(send)
            Packer(root.fd, layer=True).pack(writer, {})
            writer.end()
        assert frame() == b"{}"
        assert told(inside) == told(source)
        (inside / "empty").unlink()
        (inside / "made").write_text("made")
        ask({"do": "read", "tree": str(inside), "whole": False})
        with contextlib.closing(Root(target)) as goal:
            unpacker = Unpacker(goal.fd)
            unpacker.unpack(FrameReader(frame))
            assert unpacker.paths == {b"", b"made"}
            assert json.loads(frame())["removed"] == [b"empty".hex()]
            assert frame() == b""
            unpacker.close()
        out.close()
        assert process.wait(timeout=120) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting an overlay takes root")
@pytest.mark.parametrize("seed", range(20))
def test_what_departs_from_a_merged_tree_is_an_upper_layer_that_makes_it_again(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    lower, upper, tree, work = (tmp_path / name for name in ("lower", "upper", "tree", "work"))
    for path in (lower, upper, tree, work):
        path.mkdir()
    grow(lower, chance, 40)
    with mounted(lower, upper, work, tmp_path / "merged") as merged:
        grow(merged, chance, 20)
        wanted = told(merged)
    copy(lower, tree, layer=False)
    with contextlib.closing(Root(tree)) as root, contextlib.closing(Root(upper)) as layer:
        base = Departures(root.fd, {}).base()
        stream = Stream()
        Packer(layer.fd, layer=True).pack(FrameWriter(stream.send), {})
        stream.send(FRAME.pack(0))
        stream.rewind()
        unpacker = Unpacker(root.fd, merge=True)
        unpacker.unpack(FrameReader(stream.frame))
        unpacker.close()
        assert without_links(told(tree)) == without_links(wanted)
        known: Known = dict.fromkeys(unpacker.paths)
        for _ in range(3):
            grow(tree, chance, 10)
            stream = Stream()
            now = Departures(root.fd, base).pack(FrameWriter(stream.send), known)
            stream.send(FRAME.pack(0))
            stream.rewind()
            unpacker = Unpacker(layer.fd)
            unpacker.unpack(FrameReader(stream.frame))
            for path in known.keys() - now.keys():
                unpacker.remove(path)
            unpacker.close()
            known = now
            with mounted(lower, upper, work, tmp_path / "merged") as merged:
                assert without_links(told(merged)) == without_links(told(tree))


def grow(root: Path, chance: random.Random, steps: int) -> None:
    """Change a tree as commands do: few names, so that everything meets everything."""
    for number in range(steps):
        path = root.joinpath(*chance.choices("abc", k=chance.randint(1, 3)))
        other = root.joinpath(*chance.choices("abc", k=chance.randint(1, 3)))
        with contextlib.suppress(OSError, shutil.Error):
            match chance.randrange(9):
                case 0 | 1:
                    path.mkdir(parents=True)
                case 2 | 3:
                    path.write_text(f"{number}{chance.random()}")
                case 4:
                    shutil.rmtree(path)
                case 5:
                    path.unlink()
                case 6:
                    shutil.move(path, other)
                case 7:
                    path.symlink_to("b")
                case 8:
                    shutil.rmtree(path)
                    path.mkdir()
                    os.setxattr(path, "user.overlay.opaque", b"y")


def without_links(found: dict[bytes, tuple[object, ...]]) -> dict[bytes, tuple[object, ...]]:
    """An overlay has its own numbers of links, and the times of directories that were merged."""
    return {
        path: (mode, content, attributes, owner) for path, (mode, content, attributes, owner, _, _) in found.items()
    }


@contextlib.contextmanager
def mounted(lower: Path, upper: Path, work: Path, at: Path) -> Iterator[Path]:
    at.mkdir(exist_ok=True)
    options = f"lowerdir={lower},upperdir={upper},workdir={work},userxattr,index=off,xino=off"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(at)], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True)


class TestAsAnOrdinaryUser:
    """Whom modes keep out; root becomes one for it."""

    @pytest.fixture
    def tmp_path(self) -> Iterator[Path]:
        """A directory of the user's own, not below the test runner's, which nobody else may enter."""
        user = os.geteuid() or 12345
        path = Path(tempfile.mkdtemp(prefix="workbench-copier-"))
        os.chown(path, user, -1)
        before = os.geteuid()
        os.seteuid(user)
        try:
            yield path
        finally:
            os.seteuid(before)
            shutil.rmtree(path)

    def test_what_cannot_be_read_is_there_closed_and_counted(self, source: Path, tmp_path: Path) -> None:
        (source / "empty").chmod(0)
        stream = Stream()
        with contextlib.closing(Root(source)) as root:
            packer = Packer(root.fd, layer=False)
            packer.pack(FrameWriter(stream.send), {})
        assert packer.unreadable == 1
        (source / "empty").chmod(0o600)

    def test_what_is_closed_in_a_layer_of_our_own_comes_through_and_stays_closed(
        self, source: Path, target: Path
    ) -> None:
        (source / "dir" / "below" / "file").chmod(0)
        (source / "dir" / "below").chmod(0o400)
        (source / "dir").chmod(0)
        copy(source, target)
        for root in (source, target):
            for path, mode in (("dir", 0), ("dir/below", 0o400), ("dir/below/file", 0)):
                assert stat.S_IMODE((root / path).stat().st_mode) == mode, path
                (root / path).chmod(0o700)
        assert (target / "dir" / "below" / "file").read_bytes() == bytes(range(256)) * 3000

    def test_closed_directories_are_written_in_and_closed_again(self, source: Path, target: Path) -> None:
        copy(source, target)
        known = settle(source)
        (source / "dir" / "below" / "file").write_text("changed")
        (target / "dir" / "below").chmod(0)
        (target / "dir").chmod(0o100)
        copy(source, target, known)
        assert stat.S_IMODE((target / "dir").stat().st_mode) == 0o100
        (target / "dir").chmod(0o700)
        assert stat.S_IMODE((target / "dir" / "below").stat().st_mode) == 0
        (target / "dir" / "below").chmod(0o700)
        assert (target / "dir" / "below" / "file").read_text() == "changed"
