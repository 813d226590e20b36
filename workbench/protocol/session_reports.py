"""What the command line prints of sessions with `--json`. Fields are only ever added."""

from __future__ import annotations

from pydantic import AwareDatetime

from workbench.protocol.messages import ChatMessage, Usage
from workbench.protocol.records import Frozen
from workbench.protocol.reports import PathReport, SandboxReport


class ConversationReport(Frozen):
    """A session's conversation; `messages` counts them. `problem` is a sentence where it can't be read: all else is empty."""

    title: str = ""
    model: str = ""
    messages: int = 0
    usage: Usage = Usage()
    created_at: AwareDatetime | None = None
    updated_at: AwareDatetime | None = None
    problem: str | None = None


class SessionReport(Frozen):
    """One session. Sizes are in bytes, on the disk; `age_s` is in seconds since it was last used, None where unknown.

    `standing` says of the workspace: `here`, `missing` (deleted, moved, or its disk isn't there), `replaced` (another
    directory is there now), `unreachable`, `let_go` (the old one of such a directory was given up), None where the record
    can't be read. `changes` is None where nobody counted them since they last changed: `entries` is then how many files,
    links and deletions the overlay has, notes and ignored ones too. `upper_size` and `entries` are at least that where not
    `complete`. `checkpoint_size` is its share of the packs. `sandbox` is as in `StatusReport`, with the state `busy` where
    another process has the overlay. `conversation` is None where there is none. `problem` is None, or a sentence.
    """

    session: str
    workspace: PathReport
    standing: str | None
    age_s: float | None
    changes: int | None
    entries: int
    upper_size: int
    complete: bool
    checkpoints: int
    checkpoint_size: int
    sandbox: SandboxReport
    problem: str | None = None
    conversation: ConversationReport | None = None


class StoreReport(Frozen):
    """A workspace in the state directory; `size` is what its checkpoints take, at least that where not `complete`.

    `standing` and `problem` are as in `SessionReport`.
    """

    workspace: PathReport
    standing: str | None
    directory: str
    size: int
    complete: bool
    problem: str | None = None


class SessionsReport(Frozen):
    """`workbench sessions --json`."""

    version: int = 1
    sessions: tuple[SessionReport, ...]
    workspaces: tuple[StoreReport, ...]


class ShownSessionReport(SessionReport):
    """`workbench sessions show --json`: `prompt` is the last message of the person's, `reply` the last text that answered
    it; None where there is none."""

    version: int = 1
    prompt: ChatMessage | None = None
    reply: ChatMessage | None = None


class RenamedReport(Frozen):
    """`workbench sessions rename --json`."""

    version: int = 1
    session: str
    workspace: PathReport
    title: str


class DeletedReport(SessionReport):
    """`workbench sessions delete --json`: what the session was, before it was removed."""

    version: int = 1


class PrunedSessionReport(SessionReport):
    """A session that was old enough; `reason` says why it was kept, None where it wasn't."""

    reason: str | None = None


class PrunedCommitReport(Frozen):
    """A commit that landed long ago, of which only what a revert needs was left; `size` is what that took."""

    commit_id: str
    workspace: PathReport
    size: int


class PruneReport(Frozen):
    """`workbench prune --json`: what was removed, or with `dry_run` what would be, in bytes `freed`.

    `kept` are sessions that are old enough, each with a `reason`. `workspaces` are those of which nothing was left and
    whose directory is gone. `failed` are errors: what each is about stays, at least in part.
    """

    version: int = 1
    dry_run: bool
    removed: tuple[PrunedSessionReport, ...]
    kept: tuple[PrunedSessionReport, ...]
    commits: tuple[PrunedCommitReport, ...]
    workspaces: tuple[PathReport, ...]
    freed: int
    failed: tuple[dict[str, str | None], ...] = ()
