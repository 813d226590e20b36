"""Keepers that outlived their overlay: found by what they were started with, ended as `workbench stop` would."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from workbench.errors import SandboxError

_MODULE = b"workbench.sandbox.keeper_process"
_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class LostKeeper:
    """The process of a keeper, and the overlay's directory that it was started for and that is gone."""

    pid: int
    overlay_path: str


def lost(state_directory: str) -> list[LostKeeper]:
    """This user's keepers of overlays that were in a state directory and are there no more."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            for path in _overlay_of(int(entry)):
                if PurePath(path).is_relative_to(state_directory) and not os.path.lexists(path):
                    found.append(LostKeeper(int(entry), path))
    return found


def end(keeper: LostKeeper) -> None:
    """Have it end its commands, unmount, and go; harmless where it's gone. Raises SandboxError where it doesn't end."""
    try:
        descriptor = os.pidfd_open(keeper.pid)
    except ProcessLookupError:
        return
    try:
        # Looked at again: only now is it certain that the number still means that process.
        if keeper.overlay_path not in _overlay_of(keeper.pid):
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        if not waiting.poll(_SECONDS * 1000):
            raise SandboxError(
                f"The keeper of {keeper.overlay_path} (process {keeper.pid}) doesn't end for {_SECONDS:.0f} seconds.",
                code="keeper_failed",
                hint="It waits for the engine to remove the sandbox; see whether that answers.",
            )
    finally:
        os.close(descriptor)


def _overlay_of(pid: int) -> Iterator[str]:
    """The directory that a process keeps, if it's a keeper of this user's."""
    # A process that has gone meanwhile is none.
    with contextlib.suppress(OSError):
        if os.stat(f"/proc/{pid}").st_uid != os.geteuid():
            return
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            argv = file.read().split(b"\0")
        if _MODULE in argv and argv[argv.index(_MODULE) - 1] == b"-m" and len(argv) > argv.index(_MODULE) + 1:
            yield os.fsdecode(argv[argv.index(_MODULE) + 1])
