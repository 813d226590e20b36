"""Keeping a store small and whole: retention, purging, collecting what nobody needs, checking, starting afresh.

Nothing here is on the way of a checkpoint or a rewind, and what takes long is done beside those who add: only moving
references and removing what was replaced excludes them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from workbench.checkpoints import files, git, side_store
from workbench.checkpoints.history import RowKind
from workbench.checkpoints.manifest import Manifest
from workbench.checkpoints.store import Checkpoint, CheckpointStore
from workbench.checkpoints.system import failing
from workbench.errors import CheckpointError, OptionsError
from workbench.vfs import paths, syscalls

MANY_PACKS = 64
"""Each checkpoint makes a pack; beyond so many, looking for an object takes longer than collecting them."""

_COLLECTING = "collecting"
"""The file that is locked for as long as somebody collects; its mtime is when somebody last set out to."""

_PACKED = "packed"
"""The file that names the packs of the last collection."""

_PACKED_TIGHTER = 32 << 20
"""Bytes of new packs. What checkpoints write is compressed in haste; to do that anew saves a sixth, and takes a second for
2 MB."""

_AGAIN_S = 10.0
"""How soon after somebody set out to collect another one may."""

_DAY_NS = 86_400_000_000_000
_UPKEEP_NS = _DAY_NS // 24
"""How long what was taken for ourselves stays: a command that runs compares with what was there before it."""

_ROUNDS = 5
"""How often what was added meanwhile is packed beside those who add, before they have to wait for it."""

_HARDLY = 100
"""A store that takes so much less than a session's contents may isn't looked through for what to drop."""
_MAKES_SENSE_OF = (RowKind.LANDED, RowKind.FORK, RowKind.REWIND, RowKind.REDO, RowKind.DISCARD)
"""What going back goes by: the commits on the way, the levels of redo, the session before."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of one session's checkpoints to keep.

    `count` is of those that a listing shows, with the steps of messages; `days` is their age; `size` the bytes of all
    contents that they alone hold, uncompressed. What is newest stays first; steps of a message go before messages. The last
    checkpoint always stays, and for an hour what was taken for ourselves.
    """

    count: int = 1000
    days: float = 90
    size: int = 8 << 30


def retain(store: CheckpointStore, session: str, policy: Retention, needed: Iterable[str] = ()) -> int:
    """Drop what a session has beyond its retention, but for the commits `needed`; how many went of those that are listed.

    Raises CheckpointError, OSError.
    """
    checkpoints = store.list(session)
    points = {store.called_now(commit) for commit in needed}
    now_ns = time.time_ns()
    oldest_ns = now_ns - int(policy.days * _DAY_NS)

    def stays(checkpoint: Checkpoint) -> bool:
        is_young = not checkpoint.is_listed and checkpoint.created_at > now_ns - _UPKEEP_NS
        return checkpoint.commit in points or checkpoint is checkpoints[0] or is_young

    kept: set[int] = set()
    seen: set[str] = set()
    size = listed = 0
    # Reading every manifest takes by far the longest.
    counts_bytes = disk_bytes(store) > policy.size // _HARDLY
    # What has to stay, then messages before their steps: of each, the newest first.
    for checkpoint in sorted(checkpoints, key=lambda each: (not stays(each), bool(each.purpose.step), -each.number)):
        must = stays(checkpoint)
        if not must and (
            not checkpoint.is_listed
            or listed >= policy.count
            or size > policy.size
            or checkpoint.created_at < oldest_ns
        ):
            continue
        added = _sizes(checkpoint) if counts_bytes and checkpoint.is_listed else {}
        size += sum(added[blob] for blob in added.keys() - seen)
        if must or size <= policy.size:
            seen |= added.keys()
            kept.add(checkpoint.number)
            listed += checkpoint.is_listed
    oldest = min(kept, default=0)

    def keep(number: int, kind: str) -> bool:
        return number in kept or (number > oldest and kind in _MAKES_SENSE_OF)

    store.rewrite(session, lambda row: keep(row.number, row.kind))
    return sum(each.is_listed and not keep(each.number, each.purpose.kind) for each in checkpoints)


def retain_beside(store: CheckpointStore, session: str, beside: str, policy: Retention) -> int:
    """Drop what the session `beside` holds beside checkpoints that a session has no more; how many went.

    There the id of each is the number of the checkpoint that it's beside, but of those that were taken by themselves: they
    go by their age. The last one always stays. Raises CheckpointError, OSError.
    """
    if beside not in store.sessions():
        return 0
    stays = {str(checkpoint.number) for checkpoint in store.all(session)}
    oldest_ns = time.time_ns() - int(policy.days * _DAY_NS)
    return store.rewrite(
        beside, lambda row: row.message in stays or (not row.message.isdecimal() and row.created_ns >= oldest_ns)
    )


def _sizes(checkpoint: Checkpoint) -> dict[str, int]:
    return {entry.blob: entry.size for entry in checkpoint.manifest.entries.values() if entry.blob}


def drop(store: CheckpointStore, session: str, checkpoint: Checkpoint) -> None:
    """Drop one checkpoint of a session. Raises CheckpointError (checkpoint_failed) where it's needed, OSError."""
    latest = store.latest(session)
    needed = checkpoint.purpose.kind in _MAKES_SENSE_OF or (latest is not None and latest.number == checkpoint.number)
    if checkpoint.session != session or needed:
        raise CheckpointError(
            f"The checkpoint '{checkpoint.message_id}' is needed to go back from here, so it can't be dropped.",
            hint="`workbench checkpoint` first, where it's the last one; what it holds goes with --purge PATH.",
        )
    store.rewrite(session, lambda row: row.number != checkpoint.number)


def purge(store: CheckpointStore, path: bytes) -> int:
    """Take a path, and all that is below it, out of every checkpoint of every session; how many held it.

    What the overlays hold now isn't touched. A collection follows, so that the contents are gone from the store, unless
    another path has the same. Raises OptionsError for an impossible path, CheckpointError, OSError.
    """
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if not parts or b".." in parts:
        raise OptionsError(f"'{paths.display(path)}' names nothing to purge.", hint="Name a path below the root.")
    path = b"/".join(parts)
    held = 0
    for session in store.sessions():

        def without(manifest: Manifest) -> Manifest:
            nonlocal held
            contents = (*manifest.entries, *(each for each, base in manifest.bases.items() if base.blob))
            if not any(_is_at(each, path) for each in contents):
                return manifest
            held += 1
            entries = {each: entry for each, entry in manifest.entries.items() if not _is_at(each, path)}
            # What the real workspace had there may be the very secret: that something was there is all that stays.
            bases = {
                each: base._replace(blob="") if _is_at(each, path) else base for each, base in manifest.bases.items()
            }
            return manifest.with_entries(entries, bases)

        store.rewrite(session, lambda row: True, without)
    collect(store)
    return held


def _is_at(path: bytes, top: bytes) -> bool:
    return path == top or paths.is_below(path, top)


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection did: the store's bytes before and after it."""

    before: int
    after: int


def wants_collection(store: CheckpointStore) -> bool:
    """Whether there are so many packs that collecting them pays. Costs listing a directory. Raises OSError."""
    return len(_packs(store)) > MANY_PACKS and git.is_there()


def is_due(store: CheckpointStore) -> bool:
    """As `wants_collection`, unless somebody was told so within the last seconds: who hears it sets out to. Raises OSError."""
    if not wants_collection(store):
        return False
    path = os.path.join(store.directory, _COLLECTING)
    with contextlib.suppress(FileNotFoundError):
        if abs(time.time() - os.stat(path).st_mtime) < _AGAIN_S:
            return False
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.utime(fd)
    finally:
        os.close(fd)
    return True


def is_collecting(store: CheckpointStore) -> bool:
    """Whether somebody collects at this moment. Raises OSError."""
    with _collecting(store) as fd:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def collect(store: CheckpointStore) -> Collected:
    """Put all that checkpoints need into one pack, and remove the rest, while others go on adding.

    Raises CheckpointError: checkpoint_failed where the disk has no room for both or there's no git, with all as it was;
    store_corrupt where something that is needed is missing. OSError.
    """
    with failing("The checkpoint store couldn't be packed together"), _one_at_a_time(store):
        old, before = _packs(store), disk_bytes(store)
        packed = old & _packed(store)
        _require_room(store, [*old, *(old - packed)])
        made: set[str] = set()
        passing: set[str] = set()
        tips: frozenset[str] = frozenset()
        big = _Big(store)
        for attempt in range(_ROUNDS):
            # What was added since may rely on what only an old pack has.
            now = store.tips()
            if now - tips:
                if not tips and _pack_bytes(store, old - packed) <= _PACKED_TIGHTER:
                    passing = _pack(
                        store, now, (), "--no-reuse-object", *(f"--keep-pack={name}.pack" for name in packed)
                    )
                made |= _pack(store, now, tips)
                tips = now
            with store.alone():
                now = store.tips()
                if now - tips:
                    if attempt < _ROUNDS - 1:
                        continue
                    made |= _pack(store, now, tips)
                files.replace(
                    os.path.join(store.directory, _PACKED), "".join(f"{name}\n" for name in made).encode("ascii")
                )
                _remove_packs(store, (old | passing) - made)
                big.remove_unneeded()
                break
        return Collected(before, disk_bytes(store))


@contextlib.contextmanager
def _collecting(store: CheckpointStore) -> Iterator[int]:
    fd = os.open(os.path.join(store.directory, _COLLECTING), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _one_at_a_time(store: CheckpointStore) -> Iterator[None]:
    """Collect while nobody else does; the kernel frees a killed holder's lock."""
    with _collecting(store) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield


def _pack(store: CheckpointStore, wanted: frozenset[str], known: Iterable[str], *options: str) -> set[str]:
    """Make a pack of all that some commits need, others don't, and the options leave; its name, none where that's nothing."""
    names = "".join([*(f"{tip}\n" for tip in sorted(wanted)), *(f"^{tip}\n" for tip in sorted(known))])
    place = os.path.join(store.pack_directory, "pack")
    # Beyond git's usual 10: what is nearest to each other is as far apart as a checkpoint is long.
    options = ("--revs", "--delta-base-offset", "--window=50", "--depth=50", "--non-empty", "-q", *options)
    name = git.run(store.directory, "pack-objects", *options, place, stdin=names.encode()).decode().strip()
    return {f"pack-{name}"} if name else set()


def _packed(store: CheckpointStore) -> set[str]:
    """The packs that collections have made: what is in them is compressed as tightly as it will be."""
    with contextlib.suppress(FileNotFoundError), open(os.path.join(store.directory, _PACKED), encoding="ascii") as file:
        return {line.rstrip("\n") for line in file}
    return set()


def _require_room(store: CheckpointStore, packs: Iterable[str]) -> None:
    needed = _pack_bytes(store, packs)
    status = os.statvfs(store.directory)
    if status.f_bavail * status.f_frsize < needed + (16 << 20):
        raise CheckpointError(
            "There's no room on the disk to pack the checkpoint store together: that takes its size again for a while.",
            hint="Free disk space, or drop whole sessions with `workbench prune`.",
        )


def _pack_bytes(store: CheckpointStore, packs: Iterable[str]) -> int:
    return sum(os.path.getsize(os.path.join(store.pack_directory, f"{name}.pack")) for name in packs)


def _packs(store: CheckpointStore) -> set[str]:
    return {
        name[:-4] for name in os.listdir(store.pack_directory) if name.startswith("pack-") and name.endswith(".idx")
    }


def _remove_packs(store: CheckpointStore, names: Iterable[str]) -> None:
    for name in names:
        # Readers look for indexes: a pack without one isn't there.
        for ending in ("idx", "rev", "pack"):
            path = os.path.join(store.pack_directory, f"{name}.{ending}")
            if os.path.exists(path):
                os.unlink(path)


class _Big:
    """The big files of a store, and which of them its checkpoints need: looked at beside others who add."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._known: set[str] = set()
        self._unneeded = {name for name in os.listdir(store.big_directory) if not name.startswith(files.PREFIX)}
        self._look()

    def remove_unneeded(self) -> None:
        """Remove what nobody needs, also of the checkpoints that were added since; needs the store alone."""
        self._look()
        for name in self._unneeded:
            os.unlink(os.path.join(self._store.big_directory, name))

    def _look(self) -> None:
        if self._unneeded:
            for checkpoint in _commits(self._store):
                if checkpoint.commit not in self._known:
                    self._known.add(checkpoint.commit)
                    blobs = (entry.blob for entry in checkpoint.manifest.entries.values())
                    self._unneeded -= {blob.removeprefix(side_store.PREFIX) for blob in blobs}


def _commits(store: CheckpointStore) -> Iterable[Checkpoint]:
    for session in store.sessions():
        yield from {each.commit: each for each in store.all(session)}.values()
        held = store.held(session)
        if held is not None:
            yield held


def disk_bytes(store: CheckpointStore) -> int:
    """What the contents of all checkpoints take on the disk. Raises OSError."""
    total = 0
    for place in (store.pack_directory, store.big_directory):
        for name in os.listdir(place):
            # Others go on adding meanwhile, and their temporary files come and go.
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(place, name), follow_symlinks=False).st_blocks * 512
    return total


@dataclass(slots=True)
class Verified:
    """What a check found: `whole` checkpoints can be restored, `broken` ones (session, id, why) can't, `damage` is what is
    wrong with packs by name."""

    whole: int = 0
    broken: list[tuple[str, str, str]] = field(default_factory=list)
    damage: dict[str, str] = field(default_factory=dict)


def verify(store: CheckpointStore) -> Verified:
    """Read every content of every checkpoint, and compare it with its id. Raises OSError."""
    found = Verified()
    for session in store.sessions():
        _verify_session(store, session, _checked(store), found)
    found.damage = store.damage
    return found


def _checked(store: CheckpointStore) -> Callable[[str], str]:
    """What is wrong with a blob, empty where nothing is; each is read once."""
    known: dict[str, str] = {}

    def problem(blob: str) -> str:
        if blob not in known:
            try:
                store.check(blob)
                known[blob] = ""
            except CheckpointError as error:
                known[blob] = error.message
        return known[blob]

    return problem


def _verify_session(
    store: CheckpointStore, session: str, problem: Callable[[str], str], found: Verified
) -> list[Checkpoint]:
    """The whole checkpoints of a session, oldest first; `found` hears of all."""
    whole = []
    for checkpoint in store.all_readable(session):
        try:
            blobs = {entry.blob for entry in checkpoint.manifest.entries.values() if entry.blob}
        except CheckpointError as error:
            found.broken.append((session, checkpoint.message_id, error.message))
            continue
        why = next((said for blob in sorted(blobs) if (said := problem(blob))), "")
        if why:
            found.broken.append((session, checkpoint.message_id, why))
        else:
            found.whole += 1
            whole.append(checkpoint)
    return whole


def start_afresh(store: CheckpointStore) -> tuple[str, Verified]:
    """Set a damaged store aside, and go on in a fresh one with all of its checkpoints that are whole.

    Returns where the old one is now, and what was found in it. Raises CheckpointError, OSError.
    """
    with failing("The damaged checkpoint store couldn't be set aside"), store.alone():
        number = 1
        while os.path.lexists(aside := f"{store.directory}.damaged-{number}"):
            number += 1
        found = Verified()
        with CheckpointStore(aside) as fresh:
            for session in store.sessions():
                fresh.adopt(session, _verify_session(store, session, _checked(store), found), store)
            found.damage = store.damage
        base, name = os.path.split(os.fsencode(store.directory))
        base_fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # In one step: whoever waits for the old one's guard finds the fresh one in its place.
            beside = os.path.basename(os.fsencode(aside))
            syscalls.renameat2(base_fd, beside, base_fd, name, syscalls.RENAME_EXCHANGE)
        finally:
            os.close(base_fd)
    return aside, found
