"""One filesystem put through one round of work, in a process of its own: prints what each operation took, as JSON.

Run by path: `python tests/benchmarks/subject.py NAME LOWER PLACE`, with whatever it needs on PYTHONPATH. LOWER is a tree
that `vfs.make_lower` made, and is never written to; PLACE an empty directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import glob
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NEW = "new"


class Subject:
    """Plain calls on a directory; the others have their own ways."""

    def __init__(self, root: str, lacks: dict[str, str] | None = None) -> None:
        self.root = root
        self.lacks = lacks or {}
        """Operations that aren't measured, and why not."""

    def at(self, path: str) -> str:
        return f"{self.root}/{path}"

    def mkdir(self, path: str) -> None:
        os.mkdir(self.at(path))

    def read(self, paths: list[str]) -> int:
        size = 0
        for path in paths:
            with open(self.at(path), "rb") as file:
                size += len(file.read())
        return size

    def write(self, paths: list[str], data: bytes) -> int:
        for path in paths:
            with open(self.at(path), "wb") as file:
                file.write(data)
        return len(paths)

    def delete(self, paths: list[str]) -> int:
        for path in paths:
            os.unlink(self.at(path))
        return len(paths)

    def list(self, paths: list[str]) -> int:
        return sum(len(sorted(os.listdir(self.at(path)))) for path in paths)

    def glob(self, pattern: str) -> int:
        return len(glob.glob(pattern, root_dir=self.root, recursive=True, include_hidden=True))

    def walk(self, path: str) -> int:
        return sum(len(files) for _, _, files in os.walk(self.at(path)))

    def append(self, path: str) -> int:
        with open(self.at(path), "ab") as file:
            file.write(b"x")
        return 1


NO_LOWER = dict.fromkeys(["glob", "walk", "append to a big file"], "it has no lower layer")
IN_PLACE = {"append to a big file": "it writes in place", **dict.fromkeys(["glob", "walk"], "it works on a copy")}


class Overlaid(Subject):
    def __init__(self, overlay: Any) -> None:
        super().__init__("")
        self.overlay = overlay

    def mkdir(self, path: str) -> None:
        self.overlay.mkdir(path.encode())

    def read(self, paths: list[str]) -> int:
        return sum(len(self.overlay.read_bytes(path.encode())) for path in paths)

    def write(self, paths: list[str], data: bytes) -> int:
        for path in paths:
            self.overlay.write_bytes(path.encode(), data)
        return len(paths)

    def delete(self, paths: list[str]) -> int:
        for path in paths:
            self.overlay.unlink(path.encode())
        return len(paths)

    def list(self, paths: list[str]) -> int:
        return sum(len(self.overlay.list(path.encode())) for path in paths)

    def glob(self, pattern: str) -> int:
        return len(self.overlay.glob(pattern.encode()))

    def walk(self, path: str) -> int:
        return sum(len(files) for _, _, files in self.overlay.walk(path.encode()))

    def append(self, path: str) -> int:
        with self.overlay.open(path.encode(), "ab") as file:
            file.write(b"x")
        return 1


NOT_DELETING = [
    "read lower files",
    "read them back",
    "list directories",
    "read below changed directories",
    "list changed directories",
    "glob",
]


class Bare(Subject):
    """The system calls that an overlay can't do without, as safe against links as it is, and nothing else around them.

    What it makes goes straight into a directory that stands for the upper layer, or nowhere, where that's in memory.
    """

    def __init__(self, lower: str, upper: str) -> None:
        from workbench.vfs.syscalls import openat2

        others = [
            "delete new files",
            "walk",
            "append to a big file",
            *(["delete lower files"] if upper else NOT_DELETING),
        ]
        super().__init__(upper, dict.fromkeys(others, "it isn't asked for"))
        self.open = openat2
        directory = os.O_RDONLY | os.O_DIRECTORY
        self.lower = os.open(lower, directory)
        self.upper = os.open(upper, directory) if upper else -1
        self.kept: dict[tuple[int, int], int] = {}

    def mkdir(self, path: str) -> None:
        if self.root:
            os.mkdir(self.at(path))

    def write(self, paths: list[str], data: bytes) -> int:
        for path in paths if self.root else ():
            os.makedirs(os.path.dirname(self.at(path)), exist_ok=True)
        return super().write(paths, data) if self.root else len(paths)

    def way(self, names: list[bytes]) -> int:
        """The upper's directory that holds the last of some names, -1 where there is none: whether each hides the lower."""
        here = self.upper
        for name in names[:-1]:
            try:
                found = os.stat(name, dir_fd=here, follow_symlinks=False)
            except FileNotFoundError:
                return -1
            identity = (found.st_dev, found.st_ino)
            if identity not in self.kept:
                self.kept[identity] = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
            here = self.kept[identity]
            os.listxattr(here)
        return here

    def read(self, paths: list[str]) -> int:
        size = 0
        for path in map(str.encode, paths):
            names = path.split(b"/")
            here = self.way(names)
            try:
                own = here >= 0 and bool(os.stat(names[-1], dir_fd=here, follow_symlinks=False))
            except FileNotFoundError:
                own = False
            looked = self.open(self.upper, path, os.O_RDONLY | os.O_NONBLOCK) if own else self.looked(path)
            expected = os.fstat(looked).st_size
            fd = looked
            if own:
                os.listxattr(fd)
            else:
                fd = os.open(b"/proc/self/fd/%d" % looked, os.O_RDONLY | os.O_NOATIME)
                os.close(looked)
            size += len(os.read(fd, expected + 1))
            os.close(fd)
        return size

    def looked(self, path: bytes) -> int:
        return self.open(self.lower, path, os.O_PATH | os.O_NOFOLLOW)

    def list(self, paths: list[str]) -> int:
        return sum(len(self.names(path.encode())) for path in paths)

    def names(self, path: bytes) -> list[bytes]:
        names = [*path.split(b"/"), b""]
        both = self.way(names) >= 0
        found = self.scan(self.lower, path)
        if both:
            found = list({*found, *self.scan(self.upper, path)})
            # Whether it's the same directory still.
            self.way(names)
        return sorted(found)

    def scan(self, layer: int, path: bytes) -> list[bytes]:
        fd = self.open(layer, path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOATIME)
        with os.scandir(fd) as listing:
            names = [entry.name for entry in listing if entry.is_file(follow_symlinks=False)]
        os.close(fd)
        return "/".join(names).encode().split(b"/")

    def glob(self, pattern: str) -> int:
        top, _, name = pattern.split("/")
        count, waiting = 0, [top]
        while waiting:
            here = waiting.pop()
            fd = self.open(self.lower, here.encode(), os.O_RDONLY | os.O_DIRECTORY | os.O_NOATIME)
            with os.scandir(fd) as listing:
                for entry in listing:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{here}/{entry.name}")
                    else:
                        count += entry.name == name
            os.close(fd)
        return count

    def delete(self, paths: list[str]) -> int:
        for path in paths:
            looked = self.looked(path.encode())
            os.fstat(looked)
            os.close(looked)
        return len(paths)


class Fsspec(Subject):
    def __init__(self, filesystem: Any, root: str, lacks: dict[str, str]) -> None:
        super().__init__(root, lacks)
        self.filesystem = filesystem

    def mkdir(self, path: str) -> None:
        self.filesystem.mkdir(self.at(path))

    def read(self, paths: list[str]) -> int:
        return sum(len(self.filesystem.cat_file(self.at(path))) for path in paths)

    def write(self, paths: list[str], data: bytes) -> int:
        for path in paths:
            self.filesystem.pipe_file(self.at(path), data)
        return len(paths)

    def delete(self, paths: list[str]) -> int:
        for path in paths:
            self.filesystem.rm_file(self.at(path))
        return len(paths)

    def list(self, paths: list[str]) -> int:
        return sum(len(self.filesystem.ls(self.at(path), detail=False)) for path in paths)

    def glob(self, pattern: str) -> int:
        return len(self.filesystem.glob(self.at(pattern)))

    def walk(self, path: str) -> int:
        return sum(len(files) for _, _, files in self.filesystem.walk(self.at(path)))

    def append(self, path: str) -> int:
        with self.filesystem.open(self.at(path), "ab") as file:
            file.write(b"x")
        return 1


class Sandfs(Subject):
    def __init__(self, workspace: Any) -> None:
        super().__init__("/w", {"glob": "it has none"})
        self.workspace = workspace

    def mkdir(self, path: str) -> None:
        self.workspace.mkdir(self.at(path))

    def read(self, paths: list[str]) -> int:
        return sum(len(self.workspace.read(self.at(path))) for path in paths)

    def write(self, paths: list[str], data: bytes) -> int:
        for path in paths:
            self.workspace.write(self.at(path), data)
        return len(paths)

    def delete(self, paths: list[str]) -> int:
        for path in paths:
            self.workspace.remove(self.at(path))
        return len(paths)

    def list(self, paths: list[str]) -> int:
        return sum(len(self.workspace.list(self.at(path))) for path in paths)

    def walk(self, path: str) -> int:
        count, waiting = 0, [self.at(path)]
        while waiting:
            here = waiting.pop()
            for entry in self.workspace.list(here):
                if entry.kind == "dir":
                    waiting.append(f"{here}/{entry.name}")
                else:
                    count += 1
        return count

    def append(self, path: str) -> int:
        # It has no other way.
        self.workspace.write(self.at(path), self.workspace.read(self.at(path)) + b"x")
        return 1


class Asynchronous(Subject):
    """Through an event loop that is entered once for each operation on many files."""

    def __init__(self, root: str, lacks: dict[str, str]) -> None:
        super().__init__(root, lacks)
        self.loop = asyncio.new_event_loop()

    def run(self, step: Callable[..., Any], paths: list[str], *arguments: Any) -> int:
        async def each() -> int:
            found = [await step(self.at(path), *arguments) for path in paths]
            return sum(len(one) if one is not None else 1 for one in found)

        return self.loop.run_until_complete(each())


class JustBash(Asynchronous):
    def __init__(self, filesystem: Any) -> None:
        super().__init__("/w", {"glob": "it has none", "walk": "it has none"})
        self.filesystem = filesystem

    def mkdir(self, path: str) -> None:
        self.run(self.filesystem.mkdir, [path])

    def read(self, paths: list[str]) -> int:
        return self.run(self.filesystem.read_file_bytes, paths)

    def write(self, paths: list[str], data: bytes) -> int:
        return self.run(self.filesystem.write_file, paths, data)

    def delete(self, paths: list[str]) -> int:
        return self.run(self.filesystem.rm, paths)

    def list(self, paths: list[str]) -> int:
        return self.run(self.filesystem.readdir, paths)

    def append(self, path: str) -> int:
        return self.run(self.filesystem.append_file, [path], b"x")


class AgentFs(Asynchronous):
    def __init__(self, database: Path, lower: str) -> None:
        from agentfs_sdk import AgentFS, AgentFSOptions

        super().__init__("", NO_LOWER)
        opened = self.loop.run_until_complete(AgentFS.open(AgentFSOptions(path=str(database))))
        self.filesystem = opened.fs
        for path in small_files(lower):
            self.run(self.filesystem.write_file, [path], Path(lower, path).read_bytes())

    def mkdir(self, path: str) -> None:
        self.run(self.filesystem.mkdir, [path])

    def read(self, paths: list[str]) -> int:
        return self.run(self.filesystem.read_file, paths, None)

    def write(self, paths: list[str], data: bytes) -> int:
        return self.run(self.filesystem.write_file, paths, data)

    def delete(self, paths: list[str]) -> int:
        return self.run(self.filesystem.unlink, paths)

    def list(self, paths: list[str]) -> int:
        return self.run(self.filesystem.readdir, paths)


class DeepAgents(Subject):
    def __init__(self, backend: Any) -> None:
        super().__init__("", IN_PLACE)
        self.backend = backend

    def mkdir(self, path: str) -> None:
        """It makes them as it writes."""

    def read(self, paths: list[str]) -> int:
        size = 0
        for path in paths:
            data = self.backend.read(self.at(path)).file_data
            size += len(data["content"].encode())
        return size

    def write(self, paths: list[str], data: bytes) -> int:
        text = data.decode()
        for path in paths:
            self.backend.write(self.at(path), text)
        return len(paths)

    def delete(self, paths: list[str]) -> int:
        for path in paths:
            self.backend.delete(self.at(path))
        return len(paths)

    def list(self, paths: list[str]) -> int:
        return sum(len(self.backend.ls(self.at(path)).entries) for path in paths)


def small_files(lower: str) -> list[str]:
    directories = sorted(os.listdir(f"{lower}/small"))
    return [f"small/{name}/{file}" for name in directories for file in sorted(os.listdir(f"{lower}/small/{name}"))]


@contextlib.contextmanager
def subject(name: str, lower: str, place: Path) -> Iterator[Subject]:
    """A subject that has the lower tree, or the part of it that fits."""
    work = place / "work"
    if name in ("memory", "disk", "face"):
        from workbench.vfs.local import LocalStorage
        from workbench.vfs.memory import MemoryUpper
        from workbench.vfs.overlay import Overlay
        from workbench.vfs.upper import LocalUpper

        with contextlib.ExitStack() as stack:
            storage = stack.enter_context(LocalStorage(os.fsencode(lower)))
            upper: Any = MemoryUpper()
            if name == "disk":
                for layer in ("upper", "work"):
                    (place / layer).mkdir()
                work_path = os.fsencode(place / "work")
                upper = stack.enter_context(LocalUpper(os.fsencode(place / "upper"), work=work_path))
            overlay = Overlay(storage, upper)
            if name == "face":
                from workbench.vfs.fsspec_face import OverlayFileSystem

                yield Fsspec(OverlayFileSystem(overlay), "", {})
            else:
                yield Overlaid(overlay)
    elif name == "calls on disk":
        work.mkdir()
        yield Bare(lower, str(work))
    elif name == "calls in memory":
        yield Bare(lower, "")
    elif name == "kernel":
        for layer in ("upper", "work", "merged"):
            (place / layer).mkdir()
        layers = f"lowerdir={lower},upperdir={place}/upper,workdir={place}/work"
        options = f"{layers},userxattr,nosuid,nodev,index=off,xino=off"
        # In a mount namespace of its own, which takes it away.
        subprocess.run(["mount", "-t", "overlay", "-o", options, "none", place / "merged"], check=True)
        yield Subject(f"{place}/merged")
    elif name == "fsspec local":
        from fsspec.implementations.local import LocalFileSystem

        shutil.copytree(f"{lower}/small", work / "small")
        yield Fsspec(LocalFileSystem(), str(work), IN_PLACE)
    elif name == "fsspec memory":
        from fsspec.implementations.memory import MemoryFileSystem

        memory = Fsspec(MemoryFileSystem(), "", NO_LOWER)
        for path in small_files(lower):
            memory.filesystem.pipe_file(f"/{path}", Path(lower, path).read_bytes())
        yield memory
    elif name == "sandfs":
        import sandfs

        workspace = sandfs.Workspace()
        workspace.mount("/w", sandfs.DirSource(lower))
        yield Sandfs(workspace)
    elif name == "agentfs-sdk":
        yield AgentFs(place / "database", lower)
    elif name == "deepagents":
        from deepagents.backends import FilesystemBackend

        shutil.copytree(f"{lower}/small", work / "small")
        yield DeepAgents(FilesystemBackend(work))
    elif name == "pyfakefs":
        from pyfakefs.fake_filesystem_unittest import Patcher

        with Patcher() as patcher:
            assert patcher.fs is not None
            patcher.fs.add_real_directory(lower, read_only=False)
            yield Subject(lower, dict.fromkeys(["glob", "walk"], "left out: it takes minutes"))
    elif name == "just-bash":
        from just_bash.fs.overlay_fs import OverlayFs, OverlayFsOptions

        yield JustBash(OverlayFs(OverlayFsOptions(root=lower, mount_point="/w")))
    else:
        raise ValueError(name)


def measure(name: str, lower: str, place: Path) -> dict[str, float | str]:
    """What each operation took in ms, or why there's no such number."""
    small = small_files(lower)
    directories = sorted({os.path.dirname(path) for path in small})
    new = [f"{NEW}/{number}/f{other}.py" for number in range(10) for other in range(len(small) // 10)]
    many = sum(len(files) for _, _, files in os.walk(f"{lower}/many"))
    directories_of_many = len(os.listdir(f"{lower}/many"))
    data = b"x = 1\n" * 340
    beside = [f"{directory}/new.py" for directory in directories]
    replaced = small[: len(small) // 4]
    size = sum(os.stat(f"{lower}/{path}").st_size for path in small)
    steps: list[tuple[str, Callable[[Subject], int], int]] = [
        ("read lower files", lambda it: it.read(small), size),
        ("write new files", lambda it: it.write(new, data), len(new)),
        ("read them back", lambda it: it.read(new), len(new) * len(data)),
        ("list directories", lambda it: it.list(directories * 10), len(small) * 10),
        ("write beside lower files", lambda it: it.write(beside, data), len(beside)),
        ("read below changed directories", lambda it: it.read(small), size),
        ("list changed directories", lambda it: it.list(directories * 10), (len(small) + len(beside)) * 10),
        ("replace lower files", lambda it: it.write(replaced, data), len(replaced)),
        ("delete new files", lambda it: it.delete(new), len(new)),
        ("delete lower files", lambda it: it.delete(small), len(small)),
        ("glob", lambda it: it.glob("many/**/f7.py"), directories_of_many),
        ("walk", lambda it: it.walk("many"), many),
        ("append to a big file", lambda it: it.append("big"), 1),
    ]
    told: dict[str, float | str] = {}
    clock = time.process_time if os.environ.get("WORKBENCH_CLOCK") == "processor" else time.perf_counter
    with subject(name, lower, place) as it:
        for number in range(10):
            if not number:
                it.mkdir(NEW)
            it.mkdir(f"{NEW}/{number}")
        for what, step, expected in steps:
            if what in it.lacks:
                told[what] = it.lacks[what]
                continue
            start = clock()
            try:
                found = step(it)
            except Exception as error:  # noqa: BLE001 - somebody else's, and to be told
                told[what] = f"{type(error).__name__}: {error}"[:80]
                continue
            took = (clock() - start) * 1000
            told[what] = took if found == expected else f"it answers {found} instead of {expected}"
    return told


if __name__ == "__main__":
    json.dump(measure(sys.argv[1], sys.argv[2], Path(sys.argv[3])), sys.stdout)
