"""A change set as a commit on a new branch of the workspace's own repository: plumbing alone.

One `git fast-import` writes the objects and the ref. The index, the working tree and HEAD aren't touched, no hook runs, and
contents go in as they are, through no filter.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from dulwich.config import ConfigFile

from workbench.errors import CommitError, OptionsError
from workbench.review import git
from workbench.review.bases import BIG, steps_of
from workbench.review.carried import Carried
from workbench.review.changeset import ChangeSet, State
from workbench.review.diff import quoted
from workbench.review.plan import check_landable
from workbench.review.repository import GitDirectory
from workbench.review.staging import Blobs
from workbench.vfs.local import LocalStorage
from workbench.vfs.storage import Kind

_PERSON = re.compile(r"[^<>\n\0]+ <[^<>\n\0]*>")
_NOBODY = "workbench <workbench@localhost>"
_ASKED_AT_ONCE = 200
_EXECUTABLE = 0o100


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch that was made, and the id of its commit.

    `carried` are the agent's own commits on it, oldest first. `uncommitted` are paths that the person had changed and not
    committed: the branch has what the overlay made of that.
    """

    name: str
    commit: str
    uncommitted: tuple[bytes, ...]
    carried: tuple[str, ...] = ()


def make_branch(
    lower: LocalStorage,
    changes: ChangeSet,
    store: Blobs,
    name: str,
    *,
    message: str = "",
    author: str = "",
    history: Carried | None = None,
) -> Branch:
    """Make a branch of what HEAD has with a change set on it.

    With a `history` its commits are on the branch, and last, where they don't end with the very same tree, one that
    brings them to it. `author` is `NAME <EMAIL>`, else the person whom git's configuration names. Directories by
    themselves aren't in it, nor modes beyond the executable bit. Raises OptionsError for a name that can't be a branch's or
    an author that can't be one; CommitError: no_repository, branch_exists, not_landable, commit_failed; WorkspaceError
    (workspace_unreadable), OSError, CheckpointError.
    """
    if author and not _PERSON.fullmatch(author):
        raise OptionsError(f"{author!r} isn't an author.", hint="An author looks like 'Name <email@example.com>'.")
    steps = steps_of(changes.changes)
    check_landable(steps, lower.mount_points())
    found = GitDirectory.open(lower)
    if found is None:
        raise CommitError(
            "The workspace isn't a git repository.", code="no_repository", hint="Take a patch: workbench diff > FILE."
        )
    with found:
        directory = os.readlink(b"/proc/self/fd/%d" % found.private_fd)
        person = _person(found)
    reference = _new_branch(directory, name)
    head = git.run(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"], directory=directory).stdout.decode().strip()
    uncommitted = tuple(_uncommitted(directory, head, steps)) if head else ()
    if history is not None:
        _require(git.run(["index-pack", "--strict", "--stdin"], directory=directory, stdin=history.pack))
    stream = io.BytesIO()
    now = int(time.time())
    text = (message or f"{sum(not change.implied for change in changes.changes)} changes, by workbench").encode()
    stream.write(b"commit %s\n" % reference)
    stream.write(f"author {author or person} {now} +0000\ncommitter {person} {now} +0000\n".encode())
    stream.write(b"data %d\n%s\n" % (len(text), text))
    if head:
        stream.write(b"from %s\n" % head.encode())
    for piece in _files(steps, store):
        stream.write(piece)
    stream.write(b"done\n")
    # A repository on a filesystem that ignores case would take two names for one.
    command = ["-c", "core.ignorecase=false", "fast-import", "--quiet", "--done"]
    done = git.run(command, directory=directory, stdin=stream.getvalue())
    if done.returncode:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, b"fast_import_crash_%d" % done.pid))
    _require(done)
    made = _require(git.run(["rev-parse", "--verify", reference], directory=directory)).strip()
    if history is not None:
        made = _onto(directory, reference, made, history.tip)
    return Branch(name, made.decode(), uncommitted, history.commits if history is not None else ())


def _onto(directory: bytes, reference: bytes, made: bytes, tip: str) -> bytes:
    """Have a branch that was made continue from `tip`, with the same tree; its commit."""
    trees = [
        _require(git.run(["rev-parse", "--verify", commit + b"^{tree}"], directory=directory))
        for commit in (made, tip.encode())
    ]
    commit = tip.encode()
    if trees[0] != trees[1]:
        head, _, text = _require(git.run(["cat-file", "commit", made], directory=directory)).partition(b"\n\n")
        people = [line for line in head.splitlines() if line.startswith((b"author ", b"committer "))]
        lines = [b"tree " + trees[0].strip(), b"parent " + commit, *people, b"", text]
        written = git.run(
            ["hash-object", "-t", "commit", "-w", "--stdin"], directory=directory, stdin=b"\n".join(lines)
        )
        commit = _require(written).strip()
    _require(git.run(["update-ref", reference, commit, made], directory=directory))
    return commit


def _files(steps: dict[bytes, tuple[State | None, State | None]], store: Blobs) -> Iterator[bytes]:
    for path, (old, new) in steps.items():
        if old is not None and old.kind is not Kind.DIR and (new is None or new.kind is Kind.DIR):
            yield b"D %s\n" % quoted(path)
    for path, (_, new) in steps.items():
        if new is None or new.kind is Kind.DIR:
            continue
        mode = b"120000" if new.kind is Kind.SYMLINK else b"100755" if new.mode & _EXECUTABLE else b"100644"
        with store.open(new.blob) as file:
            content = file.read()
        yield b"M %s inline %s\ndata %d\n" % (mode, quoted(path), len(content))
        yield content
        yield b"\n"


def _new_branch(directory: bytes, name: str) -> bytes:
    reference = os.fsencode(f"refs/heads/{name}")
    if name.startswith("-") or git.run(["check-ref-format", reference]).returncode:
        raise OptionsError(f"{name!r} can't name a branch.", hint="Use letters, digits, hyphens and slashes.")
    if git.run(["rev-parse", "--verify", "--quiet", reference], directory=directory).returncode == 0:
        raise CommitError(f"There is a branch '{name}' already.", code="branch_exists", hint="Choose another name.")
    return reference


def _uncommitted(directory: bytes, head: str, steps: dict[bytes, tuple[State | None, State | None]]) -> Iterator[bytes]:
    """The paths that the working tree has otherwise than HEAD, of those whose old content is known."""
    known = {
        path: old.blob
        for path, (old, _) in steps.items()
        if old is not None and old.kind is not Kind.DIR and old.blob and not old.blob.startswith(BIG)
    }
    names = list(known)
    for at in range(0, len(names), _ASKED_AT_ONCE):
        asked = names[at : at + _ASKED_AT_ONCE]
        listed = _require(
            git.run(["--literal-pathspecs", "ls-tree", "-z", "--full-tree", head, "--", *asked], directory=directory)
        )
        committed = {}
        for line in filter(None, listed.split(b"\0")):
            told, _, path = line.partition(b"\t")
            committed[path] = told.split(b" ")[2].decode()
        # With other ids than ours (SHA-256) nothing can be told.
        yield from (
            path for path in asked if len(committed.get(path, known[path])) == 40 and committed.get(path) != known[path]
        )


def _person(repository: GitDirectory) -> str:
    """Whom git's configuration names, as git itself would look it up, read as files."""
    home = os.environ.get("HOME", "")
    configured = os.environ.get("XDG_CONFIG_HOME") or (os.path.join(home, ".config") if home else "")
    sources: Iterable[Callable[[], ConfigFile]] = (
        repository.config,
        lambda: ConfigFile.from_path(os.path.join(home, ".gitconfig")),
        lambda: ConfigFile.from_path(os.path.join(configured, "git", "config")),
    )
    for read in sources:
        try:
            config = read()
            name, email = (config.get((b"user",), key).decode() for key in (b"name", b"email"))
        except (KeyError, ValueError, OSError):
            continue
        if _PERSON.fullmatch(f"{name} <{email}>"):
            return f"{name} <{email}>"
    return _NOBODY


def _require(done: git.Done) -> bytes:
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise CommitError(
            f"git couldn't make the branch: {said[0] if said else done.returncode}.",
            hint="The working tree is untouched. Take a patch instead: workbench diff > FILE.",
        )
    return done.stdout
