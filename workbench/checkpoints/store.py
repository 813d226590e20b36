"""The store of a workspace's checkpoints: a private bare git repository, with the big files in `big/`.

`big/` lies in the repository's own directory, where git ignores it, so that a store is one thing to move, to set aside or
to delete. The layout of a checkpoint's tree is in `tree`, that of references and the index in `history`.
"""

from __future__ import annotations

import builtins
import dataclasses
import fcntl
import io
import os
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType
from typing import BinaryIO, Protocol, Self

from workbench.checkpoints import files, manifest_format, objects, side_store, tree
from workbench.checkpoints.bases import take_bases
from workbench.checkpoints.history import SCHEMA, History, Row, row_of, sessions_of, trailers_of
from workbench.checkpoints.manifest import Manifest
from workbench.checkpoints.pack_writer import PackWriter
from workbench.checkpoints.packs import Packs
from workbench.checkpoints.scan import Budget, Sink, scan
from workbench.checkpoints.side_store import SideStore
from workbench.checkpoints.system import boot_id, failing
from workbench.errors import CheckpointError, OptionsError
from workbench.vfs.local import LocalStorage
from workbench.vfs.upper import LocalUpper

_MAX_MESSAGE = 256
_CACHED_MANIFESTS = 4
_ID = re.compile(r"[0-9a-f]{40}\Z")

_DIRECTORIES = ("objects/pack", "objects/info", "refs/heads", "info", "sessions", "big")

# Whoever runs git here by hand gets no hooks, no signing, no collection that would race with a writer, and no filters.
_CONFIG = b"""[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = true
\tlogallrefupdates = false
\thooksPath = /dev/null
\tfsmonitor = false
\tautocrlf = false
[gc]
\tauto = 0
[maintenance]
\tauto = false
[commit]
\tgpgSign = false
"""
_ATTRIBUTES = b"* -text -eol -ident -filter -working-tree-encoding\n"
_HEAD = b"ref: refs/heads/none\n"


class Layer(Protocol):
    """What a checkpoint can be taken of: an upper layer, on disk or in memory, and what it departs from."""

    def manifest(self, sink: Sink, previous: Manifest | None) -> Manifest:
        """All that it holds at this moment, with the contents in the sink, and the bases of its paths.

        `previous` is an earlier manifest of it. Raises OSError, OverlayError (layer_unsupported).
        """
        ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint of a session.

    `commit` is 40 hex digits; two checkpoints that found the same have the same. `parent` is the commit before, empty for a
    session's first. `number` counts a session's checkpoints from 1, `created_at` is in ns since the epoch. `message_id`,
    `label` and `tool_call` are the caller's.
    """

    commit: str
    session: str
    message_id: str
    label: str
    created_at: int
    number: int
    parent: str
    tool_call: str
    _read_manifest: Callable[[], Manifest] = field(repr=False, compare=False)

    @property
    def manifest(self) -> Manifest:
        """What was there. Read from the store when asked for. Raises CheckpointError (store_corrupt), OSError."""
        return self._read_manifest()


class CheckpointStore:
    """Takes checkpoints and reads them back. One thread at a time may use it; any number of processes one directory.

    A context manager that closes it.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Open the store in a directory, made (mode 0700) where it isn't there, and sweep what dead writers left in it.

        Raises CheckpointError (checkpoint_failed) where that can't be done.
        """
        self.directory = os.fspath(directory)
        self._pack_directory = os.path.join(self.directory, "objects", "pack")
        self._packs = Packs(self._pack_directory)
        self._side = SideStore(os.path.join(self.directory, "big"))
        self._manifests: OrderedDict[str, Manifest] = OrderedDict()
        self._histories: dict[str, History] = {}
        with failing("The checkpoint store can't be opened"):
            if not os.path.exists(os.path.join(self.directory, "HEAD")):
                self._create()
            for swept in (self._pack_directory, os.path.join(self.directory, "big")):
                files.sweep(swept)

    def close(self) -> None:
        """Close what is open; safe to call again."""
        self._packs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def take(
        self,
        session: str,
        upper: LocalUpper,
        lower: LocalStorage,
        *,
        message_id: str,
        label: str = "",
        tool_call: str = "",
        epoch_ns: int | None,
        previous: Manifest | None = None,
        offline: bool = False,
        replace: bool = False,
        mapped: bool = False,
        budget: Budget | None = None,
    ) -> Checkpoint:
        """Take a checkpoint of an upper layer. Whoever calls holds the overlay's lock, or has its sandbox frozen.

        `message_id` is any string of 1 to 256 characters, once per session unless `replace`. `epoch_ns` is as in
        `take_bases`: None where nothing was mounted since `previous`, 0 where no new base can be known. `previous` is the
        stat cache, and has the bases that stay: what `restore` returned if that came last, else the manifest of the
        session's last checkpoint, as it is where None. `offline` says that the layer isn't mounted, so that directories and
        files which their owner locked may be opened up for the moment. `mapped` says that a process shares a file's pages for
        writing: since no time will tell of what it writes there next, no later scan relies on this one.

        Returns and raises as `take_of`.
        """
        layer = _DiskLayer(upper, lower, self._pack_directory, epoch_ns, offline, mapped, budget)
        return self.take_of(
            session,
            layer,
            message_id=message_id,
            label=label,
            tool_call=tool_call,
            previous=previous,
            replace=replace,
        )

    def take_of(
        self,
        session: str,
        layer: Layer,
        *,
        message_id: str,
        label: str = "",
        tool_call: str = "",
        previous: Manifest | None = None,
        replace: bool = False,
    ) -> Checkpoint:
        """Take a checkpoint of any layer. Arguments as of `take`.

        The same tree as the last one makes no new commit: the checkpoint then has the last one's. Raises OptionsError for
        an impossible id, OverlayError (layer_unsupported), and CheckpointError: checkpoint_exists, store_corrupt, and
        checkpoint_failed where it can't be written, with all as it was before.
        """
        if not 0 < len(message_id) <= _MAX_MESSAGE:
            raise OptionsError(f"A message id has 1 to {_MAX_MESSAGE} characters.")
        history = self._history(session)
        with failing("The checkpoint couldn't be taken"):
            rows = history.rows()
            if not replace and any(row.message == message_id for row in rows):
                raise CheckpointError(
                    f"The session has a checkpoint '{message_id}' already.",
                    code="checkpoint_exists",
                    hint="Choose another id, or ask for the old one to be replaced.",
                )
            last = rows[-1] if rows else None
            if previous is None and last is not None:
                previous = self._manifest(last)
            with PackWriter(self._pack_directory, self._packs.__contains__) as pack:
                manifest = layer.manifest(_Contents(pack, self._side, self), previous)
                tree_id = tree.build(manifest, pack.add)
                row = Row(
                    number=last.number + 1 if last else 1,
                    message=message_id,
                    commit=last.commit if last else "",
                    parent=last.parent if last else "",
                    label=label,
                    tool_call=tool_call,
                    created_ns=time.time_ns(),
                    boot_id=manifest.boot_id,
                    scanned_ns=manifest.scanned_ns,
                )
                if last is None or tree_id != objects.decode_commit(self._commit(bytes.fromhex(last.commit)))[0]:
                    row = self._add_commit(pack, row, session, tree_id, rows)
                pack.publish()
                self._packs.refresh()
            with self._lock():
                now = history.rows()
                if now[-1:] != rows[-1:]:
                    raise CheckpointError(
                        "Another process took a checkpoint of this session meanwhile.", hint="Take this one again."
                    )
                history.append(row)
        self._remember(row.commit, manifest)
        return self._checkpoint(session, row)

    @contextmanager
    def adding(self) -> Iterator[Sink]:
        """Where contents go that no checkpoint has; they are kept from the end on. Raises CheckpointError
        (checkpoint_failed)."""
        with (
            failing("The checkpoint store can't be added to"),
            PackWriter(self._pack_directory, self._packs.__contains__) as pack,
        ):
            yield _Contents(pack, self._side, self)
            pack.publish()
            self._packs.refresh()

    def latest(self, session: str) -> Checkpoint | None:
        """A session's last checkpoint, None where it has none. Raises CheckpointError (store_corrupt), OSError."""
        rows = self._history(session).rows()
        return self._checkpoint(session, rows[-1]) if rows else None

    def list(self, session: str) -> list[Checkpoint]:
        """A session's checkpoints, newest first, without those that were replaced. Raises as `latest`."""
        rows = self._history(session).rows()
        last = {row.message: row.number for row in rows}
        return [self._checkpoint(session, row) for row in reversed(rows) if last[row.message] == row.number]

    def find(self, session: str, message_id: str) -> Checkpoint:
        """The checkpoint with a message id. Raises CheckpointError: checkpoint_not_found, store_corrupt; OSError."""
        rows = self._history(session).rows()
        for row in reversed(rows):
            if row.message == message_id:
                return self._checkpoint(session, row)
        raise CheckpointError(
            f"The session has no checkpoint '{message_id}'.",
            code="checkpoint_not_found",
            hint="'workbench log' lists those that there are.",
        )

    def sessions(self) -> builtins.list[str]:
        """The names of the sessions that have checkpoints, sorted. Raises OSError."""
        return sessions_of(self.directory)

    def packs(self, session: str) -> dict[str, int]:
        """The packs that hold a session's checkpoints, by path, each with how many it holds. Raises as `latest`."""
        commits = {row.commit for row in self._history(session).rows()}
        found = [self._packs.pack_of(bytes.fromhex(commit)) for commit in commits]
        return Counter(path for path in found if path is not None)

    def drop_session(self, session: str) -> None:
        """Forget a session's checkpoints; the room they take is free once the store is repacked.

        For the holder of the overlay's lock. Raises OSError.
        """
        with self._lock():
            self._history(session).drop()
        del self._histories[session]

    def get(self, commit: str) -> Checkpoint:
        """The checkpoint that made a commit (40 hex digits). Raises as `find`."""
        if not _ID.match(commit):
            raise CheckpointError(f"'{commit}' isn't a checkpoint's commit.", code="checkpoint_not_found")
        kind, data = self._packs.read(bytes.fromhex(commit))
        trailers: dict[str, object] = {}
        if kind == objects.COMMIT:
            _, parent, trailers = objects.decode_commit(data)
        session = trailers.get("Session")
        if not isinstance(session, str):
            raise CheckpointError(f"'{commit}' isn't a checkpoint's commit.", code="checkpoint_not_found")
        if trailers.get("Schema") != SCHEMA:
            raise CheckpointError(
                "The checkpoint was written in a format that isn't known.",
                code="store_corrupt",
                hint="A newer workbench has written it. Update this one.",
            )
        return self._checkpoint(session, row_of(commit, parent, trailers))

    def has(self, blob: str) -> bool:
        """Whether a manifest's blob is there. Raises OSError."""
        if blob.startswith(side_store.PREFIX):
            return self._side.has(blob)
        return bytes.fromhex(blob) in self._packs

    def read(self, blob: str) -> bytes:
        """A manifest's blob, whole. Raises CheckpointError (store_corrupt) where it's missing or damaged, OSError."""
        if blob.startswith(side_store.PREFIX):
            with self._side.open(blob) as file:
                return file.read()
        return self._object(bytes.fromhex(blob), objects.BLOB)

    def open(self, blob: str) -> BinaryIO:
        """A manifest's blob as a stream; a big file isn't read into memory. Raises as `read`."""
        if blob.startswith(side_store.PREFIX):
            return self._side.open(blob)
        return io.BytesIO(self.read(blob))

    def size(self, blob: str) -> int:
        """A blob's length in bytes. Raises as `read`."""
        with self.open(blob) as file:
            return file.seek(0, os.SEEK_END)

    def _create(self) -> None:
        for name in _DIRECTORIES:
            os.makedirs(os.path.join(self.directory, name), mode=0o700, exist_ok=True)
        os.chmod(self.directory, 0o700)
        # HEAD comes last: where it stands, everything does.
        for name, content in (("config", _CONFIG), ("info/attributes", _ATTRIBUTES), ("HEAD", _HEAD)):
            files.replace(os.path.join(self.directory, name), content)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the store's lock, for as long as a reference is moved. The kernel frees a killed holder's."""
        fd = os.open(os.path.join(self.directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _add_commit(self, pack: PackWriter, row: Row, session: str, tree_id: bytes, rows: Sequence[Row]) -> Row:
        """Add the commit of a new line; `rows` are those before. Returns the line with its commit in it."""
        parent = rows[-1].commit if rows else ""
        # Lines since the last commit that have none of their own.
        also = [each for before, each in pairwise(rows) if before.commit == each.commit == parent]
        trailers = trailers_of(row, session, rows[-1].message if rows else "", also)
        subject = f"{row.message}: {row.label}" if row.label else row.message
        seconds = row.created_ns // 1_000_000_000
        data = objects.encode_commit(tree_id, bytes.fromhex(parent) or None, seconds, subject, trailers)
        return dataclasses.replace(row, commit=pack.add(objects.COMMIT, data).hex(), parent=parent)

    def _history(self, session: str) -> History:
        if session not in self._histories:
            self._histories[session] = History(self.directory, session, self._commit)
        return self._histories[session]

    def _checkpoint(self, session: str, row: Row) -> Checkpoint:
        return Checkpoint(
            row.commit,
            session,
            row.message,
            row.label,
            row.created_ns,
            row.number,
            row.parent,
            row.tool_call,
            lambda: self._manifest(row),
        )

    def _manifest(self, row: Row) -> Manifest:
        manifest = self._manifests.get(row.commit)
        if manifest is None:
            tree_id, _, _ = objects.decode_commit(self._commit(bytes.fromhex(row.commit)))
            found = objects.decode_tree(self._object(tree_id, objects.TREE)).get(tree.MANIFEST)
            if found is None:
                raise objects.corrupt(f"the checkpoint {row.commit} has no manifest")
            manifest = manifest_format.from_bytes(self._object(found[1], objects.BLOB))
            self._remember(row.commit, manifest)
        return dataclasses.replace(manifest, boot_id=row.boot_id, scanned_ns=row.scanned_ns)

    def _remember(self, commit: str, manifest: Manifest) -> None:
        self._manifests[commit] = manifest
        self._manifests.move_to_end(commit)
        if len(self._manifests) > _CACHED_MANIFESTS:
            self._manifests.popitem(last=False)

    def _commit(self, oid: bytes) -> bytes:
        return self._object(oid, objects.COMMIT)

    def _object(self, oid: bytes, kind: int) -> bytes:
        """An object that something in the store, or a manifest, says is there."""
        try:
            found, data = self._packs.read(oid)
        except CheckpointError as error:
            if error.code != "checkpoint_not_found":
                raise
            raise objects.corrupt(f"the object {oid.hex()} is missing") from error
        if found != kind:
            raise objects.corrupt(f"the object {oid.hex()} is of another kind")
        return data


@dataclass(frozen=True, slots=True)
class _DiskLayer:
    """An upper layer on disk over a real directory."""

    upper: LocalUpper
    lower: LocalStorage
    pack_directory: str
    epoch_ns: int | None
    offline: bool
    mapped: bool
    budget: Budget | None

    def manifest(self, sink: Sink, previous: Manifest | None) -> Manifest:
        boot, scanned_ns = boot_id(), 0 if self.mapped else self._clock()
        entries = scan(self.upper, sink, boot_id=boot, previous=previous, offline=self.offline, budget=self.budget)
        bases = take_bases(entries, self.upper, self.lower, sink, epoch_ns=self.epoch_ns, previous=previous)
        return Manifest(entries, bases, boot, scanned_ns)

    def _clock(self) -> int:
        """The time on the upper's filesystem, 0 where the store is on another and can't tell it."""
        probe = files.probe(self.pack_directory)
        return probe.st_ctime_ns if probe.st_dev == os.fstat(self.upper.root_fd).st_dev else 0


@dataclass(frozen=True, slots=True)
class _Contents:
    """The sink of a checkpoint that is being taken."""

    pack: PackWriter
    side: SideStore
    store: CheckpointStore

    def blob(self, data: bytes) -> str:
        return self.pack.add(objects.BLOB, data).hex()

    def big(self, fd: int) -> str:
        return self.side.add(fd)

    def has(self, blob: str) -> bool:
        return self.store.has(blob)
