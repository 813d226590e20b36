"""The checkpoints that a store has, for reading."""

from __future__ import annotations

import builtins
import json
import os
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from workbench.checkpoints import objects, tree
from workbench.checkpoints.chain import last_scanned
from workbench.checkpoints.contents import StoredContents
from workbench.checkpoints.history import SCHEMAS, History, Purpose, Row, RowKind, row_of, sessions_of, trailers_of
from workbench.checkpoints.manifest import Manifest
from workbench.checkpoints.moved import MovedCommits
from workbench.checkpoints.parts import Recorded
from workbench.errors import CheckpointError

_CACHED_MANIFESTS = 4
_ID = re.compile(r"[0-9a-f]{40}\Z")


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
    purpose: Purpose
    _read_manifest: Callable[[], Manifest] = field(repr=False, compare=False)

    @property
    def is_listed(self) -> bool:
        """Whether it's one that people go back to, and none that was taken for ourselves."""
        return self.purpose.kind is not RowKind.UPKEEP

    @property
    def manifest(self) -> Manifest:
        """What was there. Read from the store when asked for. Raises CheckpointError (store_corrupt), OSError."""
        return self._read_manifest()


class StoredCheckpoints(StoredContents):
    """The checkpoints of the store at `directory`."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self._moved = MovedCommits(directory)
        self._manifests: OrderedDict[str, Manifest] = OrderedDict()
        self._trees: dict[str, bytes] = {}
        self._histories: dict[str, History] = {}

    @property
    def damage(self) -> dict[str, str]:
        """What is wrong with each pack that can't be read, by its name. Raises OSError."""
        self._packs.refresh()
        return self._packs.damage

    def tips(self) -> frozenset[str]:
        """The commits from which all that is needed can be reached. Raises CheckpointError (store_corrupt), OSError."""
        histories = [self._history(session) for session in self.sessions()]
        return frozenset(tip for history in histories for tip in (history.tip(), history.held()) if tip)

    def held(self, session: str) -> Checkpoint | None:
        """What `hold` keeps for a session. Raises CheckpointError (store_corrupt), OSError."""
        commit = self._history(session).held()
        return self.get(commit) if commit else None

    def latest(self, session: str) -> Checkpoint | None:
        """A session's last checkpoint, None where it has none. Raises CheckpointError (store_corrupt), OSError."""
        last = last_scanned(self._history(session).rows())
        return self._checkpoint(session, last) if last is not None else None

    def standing(self, taken: Checkpoint) -> str:
        """What the session's next checkpoint builds on, where `taken` was just taken: a text for `stands`. Raises OSError."""
        return json.dumps([self._foundation(taken.number, taken.commit), *self._packs.names()])

    def stands(self, session: str, standing: str) -> bool:
        """Whether that is what the next checkpoint builds on, and nothing was taken away from the store since.

        Raises as `latest`.
        """
        last = last_scanned(self._history(session).rows())
        foundation, *packs = json.loads(standing)
        self._packs.refresh()
        is_last = last is not None and foundation == self._foundation(last.number, last.commit)
        return is_last and self._packs.names() >= set(packs)

    def _foundation(self, number: int, commit: str) -> str:
        # A purge makes another tree of it.
        return f"{number} {self._tree_id(commit).hex()} {os.stat(self.big_directory).st_mtime_ns}"

    def all(self, session: str) -> Sequence[Checkpoint]:
        """Every checkpoint of a session, oldest first, also those that were replaced. Raises as `latest`."""
        return [self._checkpoint(session, row) for row in self._history(session).rows()]

    def all_readable(self, session: str) -> Sequence[Checkpoint]:
        """As `all`, of a damaged store: those of which anything can be told. Raises OSError."""
        return [self._checkpoint(session, row) for row in self._history(session).readable_rows()]

    def list(self, session: str) -> list[Checkpoint]:
        """A session's checkpoints, newest first, without those that were replaced. Raises as `latest`."""
        rows = self._history(session).rows()
        last = {row.key: row.number for row in rows}
        return [self._checkpoint(session, row) for row in reversed(rows) if last[row.key] == row.number]

    def find(self, session: str, message_id: str, step: int = 0) -> Checkpoint:
        """The checkpoint with a message id. Raises CheckpointError: checkpoint_not_found, store_corrupt; OSError."""
        rows = self._history(session).rows()
        for row in reversed(rows):
            if row.key == (message_id, step):
                return self._checkpoint(session, row)
        which = f"'{message_id}'" if not step else f"'{message_id}', step {step}"
        raise CheckpointError(
            f"The session has no checkpoint {which}.",
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

    def get(self, commit: str) -> Checkpoint:
        """The checkpoint that made a commit (40 hex digits). Raises as `find`."""
        if not _ID.match(commit):
            raise CheckpointError(f"'{commit}' isn't a checkpoint's commit.", code="checkpoint_not_found")
        commit = self.called_now(commit)
        kind, data = self._packs.read(bytes.fromhex(commit))
        trailers: dict[str, object] = {}
        if kind == objects.COMMIT:
            _, parent, trailers = objects.decode_commit(data)
        session = trailers.get("Session")
        if not isinstance(session, str):
            raise CheckpointError(f"'{commit}' isn't a checkpoint's commit.", code="checkpoint_not_found")
        if trailers.get("Schema") not in SCHEMAS:
            raise CheckpointError(
                "The checkpoint was written in a format that isn't known.",
                code="store_corrupt",
                hint="A newer workbench has written it. Update this one.",
            )
        return self._checkpoint(session, row_of(commit, parent, trailers))

    def called_now(self, commit: str) -> str:
        """The id of a commit that had another one before its session was rewritten; any other's is its own."""
        return self._moved.now(commit)

    def trailers(self, checkpoint: Checkpoint) -> dict[str, object]:
        """The trailers of a checkpoint, those of a line without a commit of its own, too."""
        for row in self._history(checkpoint.session).readable_rows():
            if row.number == checkpoint.number:
                return trailers_of(row, checkpoint.session, "", [])
        raise objects.corrupt(f"the checkpoint {checkpoint.message_id} is gone")

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
            Purpose(RowKind(row.kind), row.step, row.origin, row.goal, row.landed, row.repository),
            lambda: self._manifest(row),
        )

    def _manifest(self, row: Row) -> Manifest:
        manifest = self._recorded(row).whole()
        self._remember(row.commit, manifest)
        return manifest

    def _recorded(self, row: Row) -> Recorded:
        return tree.recorded(
            self._tree_id(row.commit),
            self.object,
            whole=self._manifests.get(row.commit),
            boot_id=row.boot_id,
            scanned_ns=row.scanned_ns,
        )

    def _tree_id(self, commit: str) -> bytes:
        if commit not in self._trees:
            self._trees[commit] = objects.decode_commit(self._commit(bytes.fromhex(commit)))[0]
        return self._trees[commit]

    def _remember(self, commit: str, manifest: Manifest) -> None:
        self._manifests[commit] = manifest
        self._manifests.move_to_end(commit)
        if len(self._manifests) > _CACHED_MANIFESTS:
            self._manifests.popitem(last=False)

    def _commit(self, oid: bytes) -> bytes:
        return self.object(oid, objects.COMMIT)
