"""The store of a workspace's checkpoints: a private bare git repository, with the big files in `big/`.

`big/` lies in the repository's own directory, where git ignores it, so that a store is one thing to move, to set aside or
to delete. The layout of a checkpoint's tree is in `tree`, that of references and the index in `history`; what takes room away
again is in `upkeep`.

Whoever adds to a store holds its `guard` shared, whoever takes something away holds it alone, for as long as neither may
see the other half done.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from workbench.checkpoints import files, objects, side_store, tree
from workbench.checkpoints.chain import add_commit, automatic_id, follow, last_scanned, raced
from workbench.checkpoints.guard import Guard
from workbench.checkpoints.history import Purpose, Row, row_of
from workbench.checkpoints.layer import Changed, DiskLayer, Layer
from workbench.checkpoints.manifest import Manifest
from workbench.checkpoints.pack_writer import PackWriter
from workbench.checkpoints.parts import Difference, Recorded
from workbench.checkpoints.scan import Budget, Sink
from workbench.checkpoints.side_store import SideStore
from workbench.checkpoints.stored import Checkpoint as Checkpoint
from workbench.checkpoints.stored import StoredCheckpoints
from workbench.checkpoints.system import failing
from workbench.errors import CheckpointError, OptionsError
from workbench.vfs.local import LocalStorage
from workbench.vfs.upper import LocalUpper

_MAX_MESSAGE = 256

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


class CheckpointStore(StoredCheckpoints):
    """Takes checkpoints and reads them back. One thread at a time may use it; any number of processes one directory.

    A context manager that closes it.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Open the store in a directory, made (mode 0700) where it isn't there, and sweep what dead writers left in it.

        Raises CheckpointError (checkpoint_failed) where that can't be done.
        """
        super().__init__(os.fspath(directory))
        self._guard = Guard(os.path.join(self.directory, "guard"))
        with failing("The checkpoint store can't be opened"):
            if not os.path.exists(os.path.join(self.directory, "HEAD")):
                self._create()
            for swept in (self.pack_directory, self.big_directory):
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
        message_id: str | None = None,
        label: str = "",
        tool_call: str = "",
        purpose: Purpose | None = None,
        epoch_ns: int | None,
        previous: Manifest | None = None,
        offline: bool = False,
        replace: bool = False,
        mapped: bool = False,
        scanned: bool = False,
        touched: frozenset[bytes] | None = None,
        budget: Budget | None = None,
    ) -> Checkpoint:
        """Take a checkpoint of an upper layer. Whoever calls holds the overlay's lock, or has its sandbox frozen.

        `message_id` is any string of 1 to 256 characters, once per session and step unless `replace`; None becomes `@`
        and the checkpoint's number. `epoch_ns` is as in `take_bases`: None where nothing was mounted since `previous`,
        0 where no new base can be known. `previous` is the stat cache, and has the bases that stay: what `restore` returned
        if that came last, else the manifest of the session's last checkpoint, as it is where None. `offline` says that the
        layer isn't mounted, so that directories and files which their owner locked may be opened up for the moment.
        `mapped` says that a process shares a file's pages for writing: since no time will tell of what it writes there
        next, no later scan relies on this one. `scanned` says that `previous` is what a scan has just found, under the same
        lock, and whose contents are all here: it isn't scanned again. `touched` are the paths at and below which alone the
        layer was written since the session's last checkpoint, which `stands`: nothing else is scanned.

        Returns and raises as `take_of`.
        """
        layer = DiskLayer(upper, lower, self.pack_directory, epoch_ns, offline, mapped, scanned, touched, budget=budget)
        return self.take_of(
            session,
            layer,
            message_id=message_id,
            label=label,
            tool_call=tool_call,
            purpose=purpose,
            previous=previous,
            replace=replace,
        )

    def take_of(
        self,
        session: str,
        layer: Layer,
        *,
        message_id: str | None = None,
        label: str = "",
        tool_call: str = "",
        purpose: Purpose | None = None,
        previous: Manifest | None = None,
        replace: bool = False,
    ) -> Checkpoint:
        """Take a checkpoint of any layer. Arguments as of `take`.

        The same tree as the last one makes no new commit: the checkpoint then has the last one's. Raises OptionsError for
        an impossible id, OverlayError (layer_unsupported), and CheckpointError: checkpoint_exists, store_corrupt,
        checkpoint_raced where another process took one of this session meanwhile, and checkpoint_failed where it can't be
        written, with all as it was before.
        """

        def take(pack: PackWriter, rows: Sequence[Row]) -> _Taken:
            last = self._last_taken(rows)
            known = last.manifest if last is not None else Recorded.of(Manifest())
            if previous is not None:
                known = Recorded.of(previous)
            return self._taken(layer.changed(_Contents(pack, self._side, self), known), known, last, pack)

        return self._add(session, message_id, label, tool_call, purpose or Purpose(), take, replace=replace)

    def name(
        self,
        session: str,
        of: Checkpoint,
        *,
        message_id: str | None = None,
        label: str = "",
        purpose: Purpose | None = None,
    ) -> Checkpoint:
        """Another checkpoint of what `of` was taken of, also one of another session. Raises as `take`.

        One of the kind `COMMAND` is never taken for what the upper layer holds.
        """
        tree_id, parent, trailers = objects.decode_commit(self._commit(bytes.fromhex(of.commit)))
        row = row_of(of.commit, parent, trailers)
        taken = _Taken(tree_id, row.boot_id, row.scanned_ns)
        return self._add(session, message_id, label, "", purpose or Purpose(), lambda pack, rows: taken)

    def hold(self, session: str, manifest: Manifest) -> Checkpoint:
        """Keep a manifest that is to be restored, whose contents are all here, until the session's next one is held.

        It's in no history: only its commit names it. Raises as `take`.
        """
        with failing("The checkpoint couldn't be taken"), self._adding(), self._pack() as pack:
            last = self._last_taken(self._history(session).rows())
            taken = self._taken(Changed({}, {}), Recorded.of(manifest), last, pack)
            row = self._row(None, "held", "", "", Purpose(), taken)
            row = add_commit(pack, row, session, taken.tree_id)
            pack.publish()
            self._packs.refresh()
            with self._lock():
                self._history(session).hold(row.commit)
        self._remember(row.commit, manifest)
        return self._checkpoint(session, row)

    @contextmanager
    def adding(self) -> Iterator[Sink]:
        """Where contents go that no checkpoint has; they are kept from the end on. Raises CheckpointError
        (checkpoint_failed)."""
        with failing("The checkpoint store can't be added to"), self._adding(), self._pack() as pack:
            yield _Contents(pack, self._side, self)
            pack.publish()
            self._packs.refresh()

    def release(self, session: str) -> None:
        """Keep no more what `hold` kept. Raises OSError."""
        with self._lock():
            self._history(session).release()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Take something away: nobody adds to the store meanwhile. Raises OSError."""
        with self._guard.alone():
            yield
        self._packs.refresh()
        self._manifests.clear()

    def drop_session(self, session: str) -> None:
        """Forget a session's checkpoints; the room they take is free once the store is repacked.

        For the holder of the overlay's lock. Raises OSError.
        """
        with self._lock():
            self._history(session).drop()
        del self._histories[session]

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

    def rewrite(
        self, session: str, keep: Callable[[Row], bool], change: Callable[[Manifest], Manifest] | None = None
    ) -> int:
        """Give a session another history: those of its lines that `keep` names, each with its manifest `change`d.

        The last line always stays. Commits get other ids; `get` still finds what stays by the old ones. Returns how many
        lines went. Raises CheckpointError: store_corrupt, checkpoint_failed; all is then as it was.
        """
        history = self._history(session)
        with failing("The checkpoints couldn't be rewritten"), self._adding():
            rows = history.rows()
            if not rows:
                return 0
            kept, moved, last_tree = list[Row](), dict[str, str](), b""
            with self._pack() as pack:
                for row in rows:
                    if row is not rows[-1] and not keep(row):
                        continue
                    tree_id = self._tree_id(row.commit)
                    if change is not None:
                        recorded = self._recorded(row)
                        difference = Difference.between(recorded.whole(), change(recorded.whole()))
                        tree_id = tree.edit(tree_id, recorded, difference, self.object, pack.add)
                    old = row.commit
                    row = follow(pack, dataclasses.replace(row), session, tree_id, kept, last_tree)
                    last_tree = tree_id
                    kept.append(row)
                    if row.commit != old:
                        moved[old] = row.commit
                pack.publish()
                self._packs.refresh()
            with self._lock():
                if history.rows() != rows:
                    raise raced()
                self._moved.note(moved)
                history.replace(kept)
        self._manifests.clear()
        return len(rows) - len(kept)

    def adopt(self, session: str, checkpoints: Sequence[Checkpoint], source: CheckpointStore) -> None:
        """Give a session that has no checkpoints here those of another store, oldest first, with all they hold.

        `get` finds them by the ids that they had there. Raises CheckpointError: store_corrupt, checkpoint_failed.
        """
        with failing("The checkpoints couldn't be taken over"), self._adding():
            rows, moved, last_tree = list[Row](), dict[str, str](), b""
            with self._pack() as pack:
                sink = _Contents(pack, self._side, self)
                for checkpoint in checkpoints:
                    manifest = checkpoint.manifest
                    for blob in _blobs_of(manifest):
                        _copy(blob, source, sink)
                    tree_id = tree.build(manifest, pack.add)
                    row = row_of(checkpoint.commit, None, source.trailers(checkpoint))
                    row = follow(pack, row, session, tree_id, rows, last_tree)
                    last_tree = tree_id
                    rows.append(row)
                    moved[checkpoint.commit] = row.commit
                pack.publish()
                self._packs.refresh()
            if rows:
                with self._lock():
                    self._moved.note({old: new for old, new in moved.items() if old != new})
                    self._history(session).replace(rows)

    # Adding

    @contextmanager
    def _adding(self) -> Iterator[None]:
        """Add to the store: what it has by now stays until this is done."""
        with self._guard.shared() as has_changed:
            if has_changed:
                # Something was taken away since, and mustn't be relied on.
                self._packs.refresh()
            yield

    def _pack(self) -> PackWriter:
        return PackWriter(self.pack_directory, self._packs.__contains__)

    def _add(
        self,
        session: str,
        message_id: str | None,
        label: str,
        tool_call: str,
        purpose: Purpose,
        take: Callable[[PackWriter, Sequence[Row]], _Taken],
        *,
        replace: bool = False,
    ) -> Checkpoint:
        if message_id is not None and not 0 < len(message_id) <= _MAX_MESSAGE:
            raise OptionsError(f"A message id has 1 to {_MAX_MESSAGE} characters.")
        history = self._history(session)
        with failing("The checkpoint couldn't be taken"), self._adding():
            rows = history.rows()
            if not replace and message_id and any(row.key == (message_id, purpose.step) for row in rows):
                raise CheckpointError(
                    f"The session has a checkpoint '{message_id}' already.",
                    code="checkpoint_exists",
                    hint="Choose another id, or ask for the old one to be replaced.",
                )
            with self._pack() as pack:
                taken = take(pack, rows)
                last = rows[-1] if rows else None
                row = self._row(last, message_id or automatic_id(rows), label, tool_call, purpose, taken)
                row = follow(pack, row, session, taken.tree_id, rows, self._tree_id(last.commit) if last else b"")
                pack.publish()
                self._packs.refresh()
            with self._lock():
                if history.rows()[-1:] != rows[-1:]:
                    raise raced()
                history.append(row)
        if taken.whole is not None:
            self._remember(row.commit, taken.whole)
        return self._checkpoint(session, row)

    def _last_taken(self, rows: Sequence[Row]) -> _Last | None:
        last = last_scanned(rows)
        return _Last(self._tree_id(last.commit), self._recorded(last)) if last is not None else None

    def _taken(self, changed: Changed, known: Recorded, last: _Last | None, pack: PackWriter) -> _Taken:
        """The tree of what `known` is with some changes, written as what differs from `last`."""
        difference = Difference(
            [(known.entry(path), entry) for path, entry in changed.entries.items()],
            [(known.base(path), base) for path, base in changed.bases.items()],
        )
        whole = tree.after(known.whole(), difference) if known.is_whole else None
        if last is None:
            tree_id = tree.build(known.whole() if whole is None else whole, pack.add)
        else:
            if known is not last.manifest and whole is not None:
                difference = Difference.between(last.manifest.whole(), whole)
            tree_id = tree.edit(last.tree_id, last.manifest, difference, self.object, pack.add)
        return _Taken(tree_id, changed.boot_id, changed.scanned_ns, whole)

    def _row(
        self, last: Row | None, message_id: str, label: str, tool_call: str, purpose: Purpose, taken: _Taken
    ) -> Row:
        return Row(
            number=last.number + 1 if last else 1,
            message=message_id,
            commit="",
            parent="",
            label=label,
            tool_call=tool_call,
            created_ns=time.time_ns(),
            boot_id=taken.boot_id,
            scanned_ns=taken.scanned_ns,
            kind=purpose.kind,
            step=purpose.step,
            origin=purpose.origin,
            goal=purpose.goal,
            landed=purpose.landed,
            repository=purpose.repository,
        )


@dataclass(frozen=True, slots=True)
class _Last:
    """The tree of a session's last checkpoint, and the manifest in it."""

    tree_id: bytes
    manifest: Recorded


@dataclass(frozen=True, slots=True)
class _Taken:
    """The tree of a checkpoint; `whole` is its manifest where all of it is in memory."""

    tree_id: bytes
    boot_id: str
    scanned_ns: int
    whole: Manifest | None = None


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


def _blobs_of(manifest: Manifest) -> set[str]:
    entries = {entry.blob for entry in manifest.entries.values()}
    return (entries | {base.blob for base in manifest.bases.values()}) - {""}


def _copy(blob: str, source: CheckpointStore, sink: Sink) -> None:
    if sink.has(blob) or not source.has(blob):
        return
    if blob.startswith(side_store.PREFIX):
        with source.open(blob) as file:
            sink.big(file.fileno())
    else:
        sink.blob(source.read(blob))
