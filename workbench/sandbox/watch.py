"""Watches the real directory under a mounted overlay, a process of the keeper's: `python -m workbench.sandbox.watch`.

What a mount shows of a lower that changes under it isn't defined; mostly, a file that was replaced stays the old one. So
the first change is marked, and the sandbox is mounted anew before its next command. A process of its own, since setting
the watches up holds the interpreter for as long as the walk over all directories takes. The repository isn't watched: any `git
status` writes to it, and what it means is looked at before each command.
"""

from __future__ import annotations

import contextlib
import os
import sys

from watchfiles import watch

from workbench.vfs.changed_mark import mark_changed

_LOOK_MS = 1000


def main() -> None:
    """`main` of a process with four arguments: the directory, the overlay's, the mount's epoch in ns, the keeper's process.

    Ends at the first change or with its keeper. A change from before the watches were set up is seen by the change time
    of the directory that it was made in, within a second or so; one to the inside of a file needs no new mount. Where the
    system has no more watches it ends with a line on standard error: then only what is read tells of changes.
    """
    # Who was our parent when we began needn't have been the keeper: it may have been killed by then.
    directory, overlay_path, epoch_ns, keeper = sys.argv[1:]
    # Its path may have bytes that aren't UTF-8, which the watcher takes from nobody but the kernel.
    os.chdir(directory)
    root = os.getcwd()
    changes = watch(
        ".",
        watch_filter=lambda _, path: os.path.relpath(path, root).split(os.sep)[0] != ".git",
        debounce=20,
        step=10,
        rust_timeout=_LOOK_MS,
        yield_on_timeout=True,
        raise_interrupt=False,
        ignore_permission_denied=True,
    )
    try:
        for number, found in enumerate(changes):
            if found or (number == 0 and _changed_since(os.fsencode(root), int(epoch_ns))):
                mark_changed(overlay_path)
                return
            if os.getppid() != int(keeper):
                return
    except RuntimeError:
        # Something changed whose name isn't UTF-8.
        mark_changed(overlay_path)
    except OSError as error:
        print(f"{directory} can't be watched: {error}", file=sys.stderr)


def _changed_since(root: bytes, epoch_ns: int) -> bool:
    """Whether a name came or went in any directory, but those of the repository, since the mount."""
    waiting = [root]
    while waiting:
        directory = waiting.pop()
        # What went away meanwhile, or can't be read, was or will be seen from above.
        with contextlib.suppress(OSError):
            if os.stat(directory, follow_symlinks=False).st_ctime_ns >= epoch_ns:
                return True
            with os.scandir(directory) as entries:
                below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
            waiting += below if directory != root else [path for path in below if os.path.basename(path) != b".git"]
    return False


if __name__ == "__main__":
    main()
