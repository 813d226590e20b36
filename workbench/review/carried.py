"""The agent's own commits, carried over from its overlay: objects alone, each verified; no config, no hook, no ref of its own.

What the overlay has of `.git` was written by commands, so nothing there is opened as a repository. Its object files go into
a quarantine of our own, from which git packs what the commits need; that pack is verified anew in another one.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from workbench.checkpoints.manifest import Manifest
from workbench.errors import CommitError
from workbench.review import git, risk
from workbench.review.diff import Contents, quoted
from workbench.review.names import is_git
from workbench.review.repository import GitDirectory, packed_refs
from workbench.vfs import paths
from workbench.vfs.local import LocalStorage
from workbench.vfs.storage import Kind

_ID = re.compile(rb"[0-9a-f]{40}|[0-9a-f]{64}")
_REFERENCE = re.compile(rb"ref: (refs/[!-~]+)")
_LOOSE = re.compile(rb"\.git/objects/([0-9a-f]{2}/[0-9a-f]{38}(?:[0-9a-f]{24})?)")
_PACK = re.compile(rb"\.git/objects/pack/pack-[0-9a-f]+\.pack")
_LIMIT = 1 << 29
"""Bytes of object files that are looked at; they go through memory."""


@dataclass(frozen=True, slots=True)
class Carried:
    """Commits on top of HEAD, oldest first: their ids, a pack of what they need, and the risky paths that they touch."""

    commits: tuple[str, ...]
    pack: bytes
    risky: tuple[bytes, ...]

    @property
    def tip(self) -> str:
        return self.commits[-1]


def carried(manifest: Manifest, lower: LocalStorage, store: Contents, work: str) -> Carried:
    """The commits that the overlay's HEAD has on top of the real one, verified.

    `work` is a directory of ours for the while. Raises CommitError (history_unavailable) where there are none, where they
    don't begin at the real HEAD, or where an object or a name in them is refused; no_repository, commit_failed;
    WorkspaceError, OSError, CheckpointError.
    """
    repository = GitDirectory.open(lower)
    if repository is None:
        raise CommitError("The workspace isn't a git repository.", code="no_repository", hint="Take a patch.")
    with repository:
        real = os.readlink(b"/proc/self/fd/%d" % repository.private_fd)
        objects = os.readlink(b"/proc/self/fd/%d" % repository.common_fd) + b"/objects"
        shallow = repository.shallow()
    form = _require(git.run(["rev-parse", "--show-object-format"], directory=real)).decode().strip()
    head = git.run(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"], directory=real).stdout.strip()
    tip = _tip(_Files(manifest, lower, store))
    if not tip or tip == head:
        raise _unavailable("There are no commits in the overlay's repository that yours lacks.")
    with tempfile.TemporaryDirectory(dir=work, prefix="history-") as directory:
        collected, verified = (
            _quarantine(os.path.join(directory, name), form, objects, shallow) for name in ("all", "new")
        )
        _collect(manifest, store, collected)
        if head and git.run(["merge-base", "--is-ancestor", head, tip], directory=collected).returncode:
            raise _unavailable("The commits in the overlay don't begin where your repository is now.")
        wanted = _require(
            git.run(["rev-list", "--objects", "--no-object-names", *_since(tip, head)], directory=collected)
        )
        pack = _require(git.run(["pack-objects", "--stdout", "--quiet"], directory=collected, stdin=wanted))
        _require(git.run(["index-pack", "--strict", "--stdin"], directory=verified, stdin=pack))
        _require(git.run(["rev-list", "--objects", "--quiet", *_since(tip, head)], directory=verified))
        commits = _require(git.run(["rev-list", "--reverse", "--topo-order", *_since(tip, head)], directory=verified))
        touched = set(_touched(commits.split(), verified))
    for path in touched:
        if any(is_git(part) for part in paths.parts(path)):
            raise _unavailable(f"A commit in the overlay has the path '{paths.display(path)}'.")
    risky = sorted(path for path in touched if risk.reason(path))
    return Carried(tuple(commits.decode().split()), pack, tuple(risky))


def _since(tip: bytes, head: bytes) -> list[bytes]:
    return [tip, b"^" + head] if head else [tip]


def _quarantine(directory: str, form: str, objects: bytes, shallow: bytes) -> bytes:
    _require(git.run(["init", "--bare", "--quiet", "--template=", f"--object-format={form}", directory]))
    with open(os.path.join(directory, "objects", "info", "alternates"), "wb") as file:
        file.write(quoted(objects) + b"\n")
    if shallow:
        with open(os.path.join(directory, "shallow"), "wb") as file:
            file.write(shallow)
    return os.fsencode(directory)


def _collect(manifest: Manifest, store: Contents, quarantine: bytes) -> None:
    """Put every object file that the overlay has into a quarantine, as it is."""
    size = 0
    for path, entry in manifest.entries.items():
        loose, is_pack = _LOOSE.fullmatch(path), _PACK.fullmatch(path) is not None
        if entry.kind is not Kind.FILE or entry.omitted or not (loose or is_pack):
            continue
        size += entry.size
        if size > _LIMIT:
            raise _unavailable(f"The overlay's repository has more than {_LIMIT >> 20} MB of objects.")
        with store.open(entry.blob) as file:
            content = file.read()
        if loose:
            to = os.path.join(quarantine, b"objects", loose[1])
            os.makedirs(os.path.dirname(to), exist_ok=True)
            with open(to, "wb") as out:
                out.write(content)
        else:
            _require(git.run(["index-pack", "--stdin"], directory=quarantine, stdin=content))


def _touched(commits: list[bytes], directory: bytes) -> Iterator[bytes]:
    options = ["--stdin", "-r", "-m", "-z", "--root", "--no-commit-id", "--name-only", "--no-renames"]
    listed = git.run(["diff-tree", *options], directory=directory, stdin=b"".join(one + b"\n" for one in commits))
    yield from filter(None, _require(listed).split(b"\0"))


class _Files:
    """The merged view's small files."""

    def __init__(self, manifest: Manifest, lower: LocalStorage, store: Contents) -> None:
        self._entries = manifest.entries
        self._lower = lower
        self._store = store

    def read(self, path: bytes) -> bytes | None:
        """A file's content, None where there is none."""
        entry = self._entries.get(path)
        if entry is not None:
            if entry.kind is not Kind.FILE or entry.omitted:
                return None
            with self._store.open(entry.blob) as file:
                return file.read()
        above = path
        while above := paths.parent(above):
            entry = self._entries.get(above)
            if entry is not None and (entry.kind is not Kind.DIR or entry.opaque):
                return None
        try:
            with self._lower.open(path) as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None


def _tip(files: _Files) -> bytes:
    """The commit that the overlay's HEAD names, empty where it names none."""
    found = (files.read(b".git/HEAD") or b"").strip()
    reference = _REFERENCE.fullmatch(found)
    if reference is not None and b".." not in found:
        name = reference[1]
        loose = files.read(b".git/" + name)
        packed = dict(packed_refs(files.read(b".git/packed-refs") or b""))
        found = (packed.get(name, b"") if loose is None else loose).strip()
    return found if _ID.fullmatch(found) else b""


def _require(done: git.Done) -> bytes:
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise _unavailable(f"The commits in the overlay can't be taken: {said[-1] if said else done.returncode}.")
    return done.stdout


def _unavailable(sentence: str) -> CommitError:
    return CommitError(sentence, code="history_unavailable", hint="Make the branch without --keep-history.")
