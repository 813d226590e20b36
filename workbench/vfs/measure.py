"""How much there is in a tree of ours, at a bounded cost."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from workbench.vfs import paths


@dataclass(frozen=True, slots=True)
class Measured:
    """What a tree takes on the disk, in bytes, and how many entries it has below its root.

    `directories` are those of them that are directories. `changed_ns` is the latest change time of any, of the root as
    well. Where not `complete` there was more than was looked at, or than may be read: each is then at least that.
    """

    size: int = 0
    entries: int = 0
    directories: int = 0
    changed_ns: int = 0
    complete: bool = True

    @property
    def files(self) -> int:
        """How many entries aren't directories: files, links, whiteouts."""
        return self.entries - self.directories

    def __add__(self, other: Measured) -> Measured:
        return Measured(
            self.size + other.size,
            self.entries + other.entries,
            self.directories + other.directories,
            max(self.changed_ns, other.changed_ns),
            self.complete and other.complete,
        )


def measure(path: str, limit: int | None = None) -> Measured:
    """Walk a tree without following a symlink, up to `limit` entries; a file with several names counts once.

    Raises OSError where the root itself can't be read.
    """
    root_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return _measure(root_fd, limit)
    finally:
        os.close(root_fd)


def _measure(root_fd: int, limit: int | None) -> Measured:
    root = os.fstat(root_fd)
    size, changed_ns = root.st_blocks * 512, root.st_ctime_ns
    entries = directories = 0
    complete = True
    seen: set[tuple[int, int]] = set()
    # By name: a directory of many directories would take as many descriptors.
    waiting = [b""]
    while waiting:
        here = waiting.pop()
        try:
            fd = paths.open_below(root_fd, here, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError:
            complete = False
            continue
        try:
            for name in map(os.fsencode, os.listdir(fd)):
                if limit is not None and entries >= limit:
                    return Measured(size, entries, directories, changed_ns, False)
                try:
                    found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                except PermissionError:
                    complete = False
                    continue
                entries += 1
                changed_ns = max(changed_ns, found.st_ctime_ns)
                if stat.S_ISDIR(found.st_mode):
                    directories += 1
                    waiting.append(paths.join(here, name))
                elif found.st_nlink > 1:
                    if (found.st_dev, found.st_ino) in seen:
                        continue
                    seen.add((found.st_dev, found.st_ino))
                size += found.st_blocks * 512
        finally:
            os.close(fd)
    return Measured(size, entries, directories, changed_ns, complete)
