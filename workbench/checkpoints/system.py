"""What checkpoints ask the system: which boot this is, and what an error of its means."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from workbench.errors import CheckpointError
from workbench.vfs import paths


def boot_id() -> str:
    """The id of this boot of the machine (random(4)). Raises OSError."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Turn an OSError into a CheckpointError (checkpoint_failed) whose message begins with `what`."""
    try:
        yield
    except OSError as error:
        name = error.filename
        where = f" ({paths.display(os.fsencode(name))})" if isinstance(name, str | bytes) else ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "Free disk space, then try again."
        else:
            hint = "Put that right, then try again."
        raise CheckpointError(f"{what}: {error.strerror or error}{where}.", hint=hint) from error
