"""What a commit did, and what it took out of the workspace and kept (`old/` in its directory, see `journal`)."""

from __future__ import annotations

import os
from collections.abc import Mapping

from workbench.checkpoints.manifest import Entry
from workbench.checkpoints.scan import Sink, scan
from workbench.checkpoints.system import boot_id
from workbench.review.journal import Journal, Operation
from workbench.review.landed import Committed
from workbench.vfs import paths
from workbench.vfs.upper import LocalUpper

_OLD = "old"


def operations_of(committed: Committed) -> list[Operation]:
    """What a commit did, in order; nothing where its journal is gone. Raises OSError."""
    with Journal(os.path.dirname(committed.directory), committed.commit_id) as journal:
        begin = journal.find("begin")
    return [Operation.of_record(fields) for fields in begin["operations"]] if begin else []


def pre_images(committed: Committed, sink: Sink) -> Mapping[bytes, Entry]:
    """What a commit took out, by the operation's number and the path below it; the contents go into `sink`.

    Raises OSError, and what the sink raises.
    """
    directory = os.path.join(committed.directory, _OLD)
    if not os.path.isdir(directory):
        return {}
    with LocalUpper(os.fsencode(directory)) as layer:
        return scan(layer, sink, boot_id=boot_id(), offline=True)


def placed(images: Mapping[bytes, Entry], operation: Operation) -> dict[bytes, Entry]:
    """The pre-images of one operation by the paths at which they stood."""
    slot = operation.slot
    return {
        operation.path + path[len(slot) :]: entry._replace(path=operation.path + path[len(slot) :])
        for path, entry in images.items()
        if path == slot or paths.is_below(path, slot)
    }
