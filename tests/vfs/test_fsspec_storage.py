"""Filesystems of fsspec as lower layers."""

from __future__ import annotations

import errno
import functools
import http.server
import io
import os
import stat as stat_module
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from workbench.errors import OptionsError
from workbench.vfs.fsspec_storage import FsspecStorage
from workbench.vfs.overlay import Overlay
from workbench.vfs.storage import Kind
from workbench.vfs.upper import LocalUpper

FILES = {"README.md": b"hello\n", "src/main.py": b"print()\n", "src/deep/er/x@2.txt": b"at", "empty": b""}
"""Without any directory entry: those are implied."""


def memory(files: dict[str, bytes] = FILES) -> MemoryFileSystem:
    fs = MemoryFileSystem(skip_instance_cache=True)
    fs.store, fs.pseudo_dirs = {}, [""]
    for name, content in files.items():
        fs.pipe_file(f"/{name}", content)
    return fs


def zipped(path: Path) -> FsspecStorage:
    with zipfile.ZipFile(path / "a.zip", "w") as archive:
        for name, content in FILES.items():
            entry = zipfile.ZipInfo(name)
            entry.create_system = 0  # no Unix modes
            archive.writestr(entry, content)
    return FsspecStorage(fsspec.filesystem("zip", fo=str(path / "a.zip")))


def tarred(path: Path, prefix: str = "") -> FsspecStorage:
    with tarfile.open(path / "a.tar", "w") as archive:
        for name, content in FILES.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return FsspecStorage(fsspec.filesystem("tar", fo=str(path / "a.tar")))


def written(path: Path) -> Path:
    for name, content in FILES.items():
        (path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (path / "tree" / name).write_bytes(content)
    return path / "tree"


def in_git(path: Path) -> FsspecStorage:
    pytest.importorskip("pygit2")
    tree = written(path)
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@example.com", "-C", str(tree)]
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    return FsspecStorage(fsspec.filesystem("git", path=str(tree), ref="main", skip_instance_cache=True))


@pytest.fixture
def served() -> Iterator[Callable[[Path], str]]:
    """Serves a directory over http, with the standard library's own listing pages; returns its address."""
    servers = []

    def serve(path: Path) -> str:
        handler = functools.partial(QuietHandler, directory=str(path))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}"

    yield serve
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


def over_http(address: str) -> FsspecStorage:
    pytest.importorskip("aiohttp")
    return FsspecStorage(fsspec.filesystem("http", skip_instance_cache=True), address)


@pytest.fixture(
    params=["memory", "memory below a directory", "dir over memory", "zip", "tar", "tar of .", "git", "http"]
)
def storage(request: pytest.FixtureRequest, tmp_path: Path, served: Callable[[Path], str]) -> FsspecStorage:
    kind = request.param
    if kind == "memory":
        return FsspecStorage(memory())
    if kind == "memory below a directory":
        return FsspecStorage(memory({f"a/b/{name}": content for name, content in FILES.items()}), "memory://a/b/")
    if kind == "dir over memory":
        return FsspecStorage(fsspec.filesystem("dir", path="/t", fs=memory({f"t/{n}": c for n, c in FILES.items()})))
    if kind == "zip":
        return zipped(tmp_path)
    if kind.startswith("tar"):
        return tarred(tmp_path, "./" if kind == "tar of ." else "")
    return in_git(tmp_path) if kind == "git" else over_http(served(written(tmp_path)))


def test_a_tree_is_the_same_in_every_filesystem(storage: FsspecStorage) -> None:
    assert storage.entries(b"") == [
        (b"README.md", Kind.FILE),
        (b"empty", Kind.FILE),
        (b"src", Kind.DIR),
    ]
    assert storage.list(b"src") == [b"deep", b"main.py"]
    assert storage.list(b"src/deep/er") in ([b"x@2.txt"], [b"x%402.txt"])
    for path in (b"", b"src", b"src/deep", b"src/deep/er"):
        found = storage.stat(path)
        assert (found.kind, found.mode, found.nlink) == (Kind.DIR, 0o755, 1)
    for name, content in FILES.items():
        found = storage.stat(name.encode())
        assert (found.kind, found.mode, found.size) == (Kind.FILE, 0o644, len(content))
        with storage.open(name.encode()) as file:
            assert file.read() == content


def test_what_is_not_there_is_told_apart_from_what_is_below_a_file(storage: FsspecStorage) -> None:
    for call in (storage.stat, storage.list, storage.open, storage.readlink):
        for path in (b"gone", b"gone/below", b"src/gone"):
            with pytest.raises(FileNotFoundError) as missing:
                call(path)
            assert (missing.value.errno, missing.value.filename) == (errno.ENOENT, path)
        with pytest.raises(NotADirectoryError) as misplaced:
            call(b"README.md/x")
        assert (misplaced.value.errno, misplaced.value.filename) == (errno.ENOTDIR, b"README.md/x")
        for path in (b"/", b"../x", b"src/./main.py", b"src//main.py", b"a\0b"):
            with pytest.raises(OptionsError):
                call(path)
    with pytest.raises(NotADirectoryError):
        storage.list(b"README.md")
    with pytest.raises(IsADirectoryError):
        storage.open(b"src")
    with pytest.raises(OSError, match="Invalid") as wrong:
        storage.readlink(b"README.md")
    assert wrong.value.errno == errno.EINVAL


def test_a_file_is_sought_in_and_read_in_pieces(storage: FsspecStorage) -> None:
    with storage.open(b"README.md") as one, storage.open(b"README.md") as other:
        assert one.read(2) == b"he"
        assert other.read() == b"hello\n"
        assert one.readline() == b"llo\n"
        assert one.seek(-2, os.SEEK_END) == 4
        assert one.read() == b"o\n"
        assert not one.writable()


def test_an_overlay_reads_through_it(storage: FsspecStorage, tmp_path: Path) -> None:
    (tmp_path / "upper/src").mkdir(parents=True)
    (tmp_path / "upper/src/main.py").write_bytes(b"other\n")
    with LocalUpper(os.fsencode(tmp_path / "upper")) as upper:
        overlay = Overlay(storage, upper)
        walked = {path: (directories, names) for path, directories, names in overlay.walk()}
        assert walked[b""] == ([b"src"], [b"README.md", b"empty"])
        assert walked[b"src"] == ([b"deep"], [b"main.py"])
        with overlay.open(b"src/main.py") as file:
            assert file.read() == b"other\n"
        with overlay.open(b"README.md") as file:
            assert file.read() == b"hello\n"


def test_nothing_is_read_before_it_is_asked_for() -> None:
    class Unreachable(MemoryFileSystem):
        protocol = "memory"

        def info(self, path: str, **options: object) -> dict[str, object]:
            raise ConnectionResetError(errno.ECONNRESET, "gone")

        ls = info

    storage = FsspecStorage(Unreachable(skip_instance_cache=True))
    with pytest.raises(ConnectionResetError) as lost:
        storage.stat(b"a")
    assert lost.value.errno == errno.ECONNRESET
    assert lost.value.filename == b"a"


@pytest.mark.parametrize("raised", [RuntimeError("what"), KeyError("what"), OSError("what"), TimeoutError()])
def test_whatever_a_filesystem_raises_is_an_oserror_with_errno_and_path(raised: Exception) -> None:
    class Failing(MemoryFileSystem):
        protocol = "memory"

        def info(self, path: str, **options: object) -> dict[str, object]:
            raise raised

    with pytest.raises(OSError) as failure:  # noqa: PT011
        FsspecStorage(Failing(skip_instance_cache=True)).stat(b"a/b")
    assert failure.value.errno == (errno.ETIMEDOUT if isinstance(raised, TimeoutError) else errno.EIO)
    assert failure.value.filename == b"a/b"
    assert failure.value.__cause__ is raised


def test_a_read_that_fails_half_way_is_an_oserror_with_the_path() -> None:
    class Torn(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            raise RuntimeError("torn")

        def seekable(self) -> bool:
            return True

    class Tearing(MemoryFileSystem):
        protocol = "memory"

        def _open(self, path: str, mode: str = "rb", **options: object) -> Torn:
            return Torn()

    fs = Tearing(skip_instance_cache=True)
    fs.store, fs.pseudo_dirs = dict(memory().store), [""]
    with FsspecStorage(fs).open(b"README.md") as file, pytest.raises(OSError, match="torn") as failure:
        file.read()
    assert (failure.value.errno, failure.value.filename) == (errno.EIO, b"README.md")


def test_a_server_that_does_not_answer_is_not_a_missing_file(served: Callable[[Path], str], tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    storage = over_http("http://127.0.0.1:1")
    with pytest.raises(OSError) as failure:  # noqa: PT011
        storage.stat(b"a")
    assert not isinstance(failure.value, FileNotFoundError)
    assert failure.value.filename == b"a"


def test_over_http_a_file_is_found_without_a_listing(served: Callable[[Path], str], tmp_path: Path) -> None:
    tree = written(tmp_path)
    (tree / "src/index.html").write_bytes(b"<p>nothing here</p>")
    storage = over_http(served(tree))
    assert storage.list(b"src") == []
    assert storage.stat(b"src/main.py").size == 8
    with pytest.raises(FileNotFoundError):
        storage.stat(b"src/main.py?x=y")


def test_a_page_with_links_that_lead_elsewhere_lists_what_is_below_it_only(
    served: Callable[[Path], str], tmp_path: Path
) -> None:
    hostile = b"".join(
        b'<a href="%s">x</a>' % link
        for link in (
            b"../",
            b"..",
            b"/",
            b"/etc/passwd",
            b"?C=N;O=D",
            b"a/b/c",
            b"%2e%2e/x",
            b"ok",
            b"//h/x",
            b"#x",
            b".",
        )
    )
    (tmp_path / "top").mkdir()
    (tmp_path / "top/index.html").write_bytes(hostile)
    storage = over_http(served(tmp_path) + "/top")
    names = storage.list(b"")
    assert {b"ok", b"a"} <= set(names)
    assert not {b"..", b".", b"", b"passwd"} & set(names)
    assert not any(b"?" in name or b"#" in name or b"/" in name for name in names)


# Kinds, modes, times


def test_modes_and_symlinks_of_a_zip_are_its_own_but_no_set_id_bits(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name, mode, content in (
            ("run", stat_module.S_IFREG | 0o4755, b"#!"),
            ("link", stat_module.S_IFLNK | 0o777, b"../../etc/passwd"),
            ("dirlink", stat_module.S_IFLNK | 0o777, b"sub"),
            ("sub/x", stat_module.S_IFREG | 0o600, b"x"),
        ):
            entry = zipfile.ZipInfo(name, (2024, 2, 3, 4, 5, 6))
            entry.create_system = 3
            entry.external_attr = mode << 16
            archive.writestr(entry, content)
    storage = FsspecStorage(fsspec.filesystem("zip", fo=str(tmp_path / "a.zip")))
    assert (storage.stat(b"run").mode, storage.stat(b"sub/x").mode) == (0o755, 0o600)
    assert storage.stat(b"run").mtime_ns == 1706933106 * 10**9
    assert dict(storage.entries(b""))[b"link"] is Kind.SYMLINK
    assert storage.stat(b"link").size == len(b"../../etc/passwd")
    assert storage.readlink(b"link") == b"../../etc/passwd"
    with pytest.raises(OSError, match="levels of symbolic links") as followed:
        storage.open(b"link")
    assert followed.value.errno == errno.ELOOP
    with pytest.raises(NotADirectoryError):
        storage.open(b"dirlink/x")


def test_links_of_a_tar_are_symlinks_and_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        content = tarfile.TarInfo("file")
        content.size, content.mode, content.mtime = 2, 0o6751, 1700000000
        archive.addfile(content, io.BytesIO(b"ab"))
        for name, kind, target in (
            ("soft", tarfile.SYMTYPE, "/etc/passwd"),
            ("soft-to-file", tarfile.SYMTYPE, "file"),
            ("hard", tarfile.LNKTYPE, "file"),
            ("pipe", tarfile.FIFOTYPE, ""),
            ("disk", tarfile.BLKTYPE, ""),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)
    storage = FsspecStorage(fsspec.filesystem("tar", fo=str(tmp_path / "a.tar")))
    assert dict(storage.entries(b"")) == {
        b"file": Kind.FILE,
        b"hard": Kind.FILE,
        b"soft": Kind.SYMLINK,
        b"soft-to-file": Kind.SYMLINK,
        b"pipe": Kind.DEVICE,
        b"disk": Kind.DEVICE,
    }
    assert (storage.stat(b"file").mode, storage.stat(b"file").mtime_ns) == (0o751, 1700000000 * 10**9)
    assert storage.readlink(b"soft") == b"/etc/passwd"
    assert storage.stat(b"soft").size == len(b"/etc/passwd")
    with storage.open(b"hard") as file:
        assert file.read() == b"ab"
    for path, code in ((b"soft", errno.ELOOP), (b"soft-to-file", errno.ELOOP), (b"pipe", errno.EINVAL)):
        with pytest.raises(OSError, match=path.decode()) as refused:
            storage.open(path)
        assert refused.value.errno == code


def test_a_git_tree_keeps_its_executables_and_symlinks(tmp_path: Path) -> None:
    pytest.importorskip("pygit2")
    tree = written(tmp_path)
    (tree / "run").write_bytes(b"#!")
    (tree / "run").chmod(0o755)
    (tree / "link").symlink_to("src/main.py")
    storage = in_git(tmp_path)
    assert storage.stat(b"run").mode == 0o755
    assert storage.readlink(b"link") == b"src/main.py"
    assert dict(storage.entries(b""))[b"link"] is Kind.SYMLINK


def test_a_symlink_in_the_middle_of_a_path_is_not_followed_by_the_filesystem_either() -> None:
    class Following(MemoryFileSystem):
        """Looks through its one symlink, as a server may."""

        protocol = "following"

        def info(self, path: str, **options: object) -> dict[str, object]:
            if path.strip("/") == "link":
                return {"name": path, "type": "link", "size": 0, "destination": "src"}
            return dict(super().info(path.replace("link/", "src/"), **options))

    fs = Following(skip_instance_cache=True)
    fs.store, fs.pseudo_dirs = dict(memory().store), [""]
    storage = FsspecStorage(fs)
    assert storage.readlink(b"link") == b"src"
    for call in (storage.stat, storage.open, storage.list):
        with pytest.raises(NotADirectoryError):
            call(b"link/main.py")


def test_a_directory_of_this_machine_is_refused_also_within_others(tmp_path: Path) -> None:
    for fs in (LocalFileSystem(), fsspec.filesystem("dir", path=str(tmp_path), fs=LocalFileSystem())):
        with pytest.raises(OptionsError) as refused:
            FsspecStorage(fs, str(tmp_path))
        assert "LocalStorage" in (refused.value.hint or "")


# Names


def test_hostile_names_of_an_archive_lead_nowhere(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("../evil", "a/../../evil", "./dot", "/rooted", "a//b", "ok", "-rf", "new\nline", "wild*[x]?"):
            archive.writestr(name, b"x")
    storage = FsspecStorage(fsspec.filesystem("zip", fo=str(tmp_path / "a.zip")))
    names = storage.list(b"")
    assert {b"ok", b"-rf", b"new\nline", b"wild*[x]?"} <= set(names)
    assert not {b"", b".", b".."} & set(names)
    for name in (b"ok", b"new\nline", b"wild*[x]?"):
        with storage.open(name) as file:
            assert file.read() == b"x"


def test_names_that_are_not_utf_8_come_and_go_as_bytes() -> None:
    storage = FsspecStorage(memory({"\udcff\udcfe": b"x", "d/é": b"y"}))
    assert storage.list(b"") == [b"d", b"\xff\xfe"]
    assert storage.stat(b"\xff\xfe").size == 1
    assert storage.list(b"d") == ["é".encode()]


def test_an_object_and_a_prefix_of_the_same_name_are_one_entry() -> None:
    fs = memory({"a/b": b"y", "c": b"z"})
    fs.store["/a"] = fs.store["/c"]
    storage = FsspecStorage(fs)
    assert [name for name, _ in storage.entries(b"")] == [b"a", b"c"]
    assert dict(storage.entries(b""))[b"a"] is storage.stat(b"a").kind


# Scopes


def test_a_scope_of_an_fsspec_storage_holds_one_tenant() -> None:
    storage = FsspecStorage(memory({"tenant-7/a": b"mine", "tenant-7-evil/b": b"theirs"}))
    tenant = storage.scope(b"tenant-7")
    assert tenant.list(b"") == [b"a"]
    with pytest.raises(FileNotFoundError) as missing:
        tenant.stat(b"b")
    assert missing.value.filename == b"b"
