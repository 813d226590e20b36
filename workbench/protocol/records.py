"""The JSON files of the state directory. Every one carries its version; fields are only ever added."""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json

INTEGER_BITS = 8_192
"""Of an integer of more, Python may write no digits, and a reader of JSON read none."""

_LEVELS = 100
_LONG_INTEGER = re.compile(rb"[0-9]{2467}")


class Frozen(BaseModel):
    """An immutable model that ignores fields a later version may have added; bytes are URL-safe base64 in JSON."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_bytes="base64", val_json_bytes="base64")

    def model_dump_json(self, **options: Any) -> str:
        """As JSON. A surrogate that stands alone, as in a name that is no text, is replaced; what JSON has no form for is
        described.
        """
        try:
            return super().model_dump_json(**options)
        except (ValueError, RecursionError):
            # Rare, and slow: one result of a tool that isn't text must not cost the conversation.
            value = _carried(self)
        return to_json(
            value, indent=options.get("indent"), fallback=_described, inf_nan_mode="null", bytes_mode="base64"
        ).decode()


class WorkspaceRecord(Frozen):
    """`workspace.json`: which real directory this is.

    `root_bytes` is the path as bytes (base64 in JSON), `root` the same for people. `handle` is its file handle where the
    filesystem has one; else `inode` and `birth_ns` identify it. Device numbers are never part of it: they change over
    reboots.
    """

    version: int = 1
    root: str
    root_bytes: bytes
    handle: bytes = b""
    inode: int = 0
    birth_ns: int = 0


class MountRecord(Frozen):
    """One mount of an overlay, since the last complete scan of its upper layer.

    `name` is the engine's volume, or the namespace sandbox's own id, empty where it isn't known. `epoch_ns` is the upper
    filesystem's clock one tick after set-up, 0 while it isn't known. `clock_offset_ns` is the real-time clock less the
    boot-time clock at that moment: where it has shrunk since, the clock was stepped back. `live` is False once it was
    seen to be unmounted: the next scan still judges by its epoch. `copied` says that the engine has layers of its own,
    which outlive it: until the upper one was read out, what is in it is nowhere else.
    """

    name: str
    backend: str
    boot_id: str
    epoch_ns: int = 0
    clock_offset_ns: int = 0
    live: bool = True
    copied: bool = False


class OverlayRecord(Frozen):
    """`overlay.json`: what belongs to one overlay. Written only by whoever holds its lock.

    `backend` is what its sandbox last was, `backend_asked` that it was named rather than picked. `scratch` is the name of
    the scratch directory. `root_mode` is the mode that the upper layer's root was given from the
    lower's, None before the first mount: where the upper's differs from it, the sandbox changed it. `git_fingerprint` is
    that of the real repository when part of it was first copied up, empty where none is. `mounts` names everything that
    may still be mounted, and the epochs that the next scan judges by. `allowed_hosts` are those that somebody who was asked
    allowed for always, `host:port` each.
    """

    version: int = 1
    session: str
    scratch: str = "_notes"
    backend: str = ""
    backend_asked: bool = False
    image: str = ""
    root_mode: int | None = None
    git_fingerprint: str = ""
    mounts: tuple[MountRecord, ...] = ()
    allowed_hosts: tuple[str, ...] = ()


class SelectionRecord(Frozen):
    """What was accepted of a change set, as `review.selection.Selection`.

    `hunks` are (path, ids), `edits` (path, id, lines).
    """

    accepted: tuple[bytes, ...] = ()
    hunks: tuple[tuple[bytes, tuple[str, ...]], ...] = ()
    refused: tuple[bytes, ...] = ()
    edits: tuple[tuple[bytes, str, tuple[bytes, ...]], ...] = ()


class IncludedRecord(Frozen):
    """What was asked for of what would stay behind, as `review.changeset.Included`."""

    classes: tuple[str, ...] = ()
    paths: tuple[bytes, ...] = ()


class ShownRecord(Frozen):
    """`shown/<digest>[-<terminal>].json`: a change set that was shown; `terminal` is empty where there was none.

    It's that of `checkpoint`, with what was `included`; where there is a `selection`, what that takes of it.
    """

    version: int = 1
    digest: str
    checkpoint: str
    terminal: str = ""
    shown_ns: int
    selection: SelectionRecord | None = None
    included: IncludedRecord = IncludedRecord()


class DecisionRecord(Frozen):
    """What was decided of one change: `accepted` says of the whole, None where `hunks` say so by their ids.

    `of` is the digest of that change alone: of any other at this path nothing was decided. `edits` are the lines that hunks
    were edited to, by their ids.
    """

    path: bytes
    of: str
    accepted: bool | None = None
    hunks: dict[str, bool] = {}
    edits: dict[str, tuple[bytes, ...]] = {}


class ReviewRecord(Frozen):
    """`review.json` of an overlay: the decisions on the change set of `checkpoint`, with what was `included`.

    `digest` is that of what was accepted, empty where nothing is.
    """

    version: int = 1
    checkpoint: str
    digest: str = ""
    included: IncludedRecord = IncludedRecord()
    decisions: tuple[DecisionRecord, ...] = ()


class CommentRecord(Frozen):
    """A line of `comments.jsonl` of an overlay: what a person says to the agent about a change.

    `hunk` is the id of the hunk that it's about, empty for the whole change; `line` its first changed line in the new file,
    `quoted` its lines as a patch has them.
    """

    version: int = 1
    at_ns: int
    path: bytes
    text: str
    hunk: str = ""
    line: int = 0
    quoted: tuple[bytes, ...] = ()


class AuditRecord(Frozen):
    """A line of `audit.jsonl`: who did what, when, and to how many changes of each kind.

    `previous` is the SHA-256 of the line before.
    """

    version: int = 1
    at_ns: int
    uid: int
    user: str
    action: str
    session: str
    digest: str = ""
    commit_id: str = ""
    code: str = ""
    message: str = ""
    counts: dict[str, int] = {}
    previous: str


class MergeRecord(Frozen):
    """`merge.json` of an overlay: the paths in which the last merge left conflict markers; each may be resolved since."""

    version: int = 1
    marked: tuple[bytes, ...] = ()


class JourneyRecord(Frozen):
    """`journey.json`: the upper layer is on its way to another state, and this is what brings it there.

    `kind` is a `RowKind`. `target` is the commit of the checkpoint that it's to be equal to, `origin` that of what was
    there before. `goal` and `landed` as in `Purpose`. `git` as of a linked worktree's git directory: the commit of what it's to
    hold, empty for nothing, None to leave it alone. `part` says that only some paths go there, and all else stays.
    """

    version: int = 1
    kind: str
    target: str
    origin: str
    label: str
    goal: str = ""
    landed: str = ""
    git: str | None = None
    part: bool = False


def _carried(value: Any, above: tuple[int, ...] = ()) -> Any:
    """The value with texts that UTF-8 can carry, without what contains itself or is nested or long beyond reason."""
    if isinstance(value, str) and not isinstance(value, Enum):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, BaseModel):
        value = _fields(value)
    if isinstance(value, int) and value.bit_length() > INTEGER_BITS:
        return hex(value)
    if not isinstance(value, dict | list | tuple | set | frozenset):
        return value
    if id(value) in above or len(above) >= _LEVELS:
        return "…"
    above = (*above, id(value))
    if isinstance(value, dict):
        keys = (key if isinstance(key, str | int | float) else _described(key) for key in value)
        return {_carried(key): _carried(one, above) for key, one in zip(keys, value.values(), strict=True)}
    return [_carried(one, above) for one in value]


def readable(value: Any) -> Any:
    """The value, described where JSON has no form for it, or none that could be read again."""
    try:
        written = to_json(value)
    except (ValueError, RecursionError):
        return _carried(value)
    return _carried(value) if _LONG_INTEGER.search(written) else value


def _fields(model: BaseModel) -> dict[str, Any]:
    """What a model serializes as, or, where something in it contains itself, what it holds."""
    try:
        return model.model_dump()
    except (ValueError, RecursionError):
        return {name: getattr(model, name) for name in type(model).model_fields}


def _described(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001
        return f"a {type(value).__name__}"
