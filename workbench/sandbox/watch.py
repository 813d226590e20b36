"""Watches the real directory under a mounted overlay, a process of the keeper's: `python -m workbench.sandbox.watch`.

What a mount shows of a lower that changes under it isn't defined; mostly, a file that was replaced stays the old one. So
the first change is marked, and the sandbox is mounted anew before its next command. A process of its own, since setting
the watches up holds the interpreter for as long as the walk over all directories takes. The repository isn't watched: any `git
status` writes to it, and what it means is looked at before each command.
"""

from __future__ import annotations

import os
import sys

from watchfiles import watch

from workbench.vfs.changed_mark import mark_changed

_LOOK_MS = 1000


def main() -> None:
    """`main` of a process with two arguments, the directory and the overlay's; ends at the first change or with its keeper.

    Where the system has no more watches it ends with a line on standard error: then only what is read tells of changes.
    """
    directory, overlay_path = sys.argv[1:]
    keeper, root = os.getppid(), os.path.realpath(directory)
    changes = watch(
        root,
        watch_filter=lambda _, path: os.path.relpath(path, root).split(os.sep)[0] != ".git",
        debounce=20,
        step=10,
        rust_timeout=_LOOK_MS,
        yield_on_timeout=True,
        raise_interrupt=False,
        ignore_permission_denied=True,
    )
    try:
        for found in changes:
            if found:
                mark_changed(overlay_path)
                return
            if os.getppid() != keeper:
                return
    except OSError as error:
        print(f"{directory} can't be watched: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
