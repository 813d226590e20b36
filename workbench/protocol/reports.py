"""What the command line prints with `--json`. Fields are only ever added; `version` rises where one changes its meaning."""

from __future__ import annotations

import base64

from pydantic import ConfigDict, Field

from workbench.protocol.egress import EgressEvent
from workbench.protocol.records import Frozen


class PathReport(Frozen):
    """A path: as text, and where it isn't UTF-8 also as bytes (base64)."""

    path: str
    path_bytes: str | None = None

    @classmethod
    def of(cls, path: bytes) -> PathReport:
        """Undecodable bytes are replaced in `path`."""
        try:
            return PathReport(path=path.decode())
        except UnicodeDecodeError:
            encoded = base64.b64encode(path).decode("ascii")
            return PathReport(path=path.decode(errors="replace"), path_bytes=encoded)


class SandboxReport(Frozen):
    """`backend` is empty before the first command; `state` is `running` or `stopped`."""

    backend: str
    state: str
    jobs: int = 0


class StatusReport(Frozen):
    """`workbench status --json`."""

    version: int = 1
    workspace: str
    session: str
    digest: str | None
    changes: int
    sandbox: SandboxReport
    conflicts: tuple[PathReport, ...] = ()
    lower_changed: bool = False
    scratch: int = 0
    ignored: int = 0
    mount_points: tuple[PathReport, ...] = ()
    unresolved: tuple[PathReport, ...] = ()


class HunkReport(Frozen):
    """A run of changed lines: starts count from 1, `lines` begin with a space, `-` or `+`, undecodable bytes replaced.

    `id` depends on the path and the lines alone, so that it stays where the hunk only moves within the file.
    """

    id: str
    old_start: int
    old_lines: int
    new_start: int
    new_lines: int
    lines: tuple[str, ...]


class ChangeReport(PathReport):
    """One change; modes are octal strings of git's form (`100644`, `040000`), None where nothing stands."""

    kind: str
    old_mode: str | None
    new_mode: str | None
    binary: bool
    risk: str | None
    renamed_from: PathReport | None = None
    hunks: tuple[HunkReport, ...] = ()


class LeftReport(PathReport):
    """A changed path that stays in the overlay, why, and how many entries it stands for."""

    reason: str
    count: int


class DiffReport(Frozen):
    """`workbench diff --json`."""

    version: int = 1
    digest: str
    changes: tuple[ChangeReport, ...]
    left: tuple[LeftReport, ...] = ()


class ReviewedHunkReport(HunkReport):
    """A hunk and what was decided of it: `accepted` is None where nothing was. `parts` are what it can be taken apart into.

    `edited` are the lines that were accepted instead of it.
    """

    accepted: bool | None = None
    edited: tuple[str, ...] | None = None
    parts: tuple[ReviewedHunkReport, ...] = ()


class ReviewedChangeReport(ChangeReport):
    """A change, what it is to a reviewer (`risky`, `source`, `test`, `lock`, `generated`), and what was decided of it.

    `verdict` is `undecided`, `accepted`, `rejected` or `part`.
    """

    group: str
    verdict: str
    hunks: tuple[ReviewedHunkReport, ...] = ()


class CommentReport(PathReport):
    """What a person says to the agent about a change: `hunk`, `line` and `lines` where it's about one hunk of it."""

    created_at: str
    text: str
    hunk: str | None = None
    line: int | None = None
    lines: tuple[str, ...] = ()


class ReviewReport(Frozen):
    """`workbench review --json`: `digest` is that of what is accepted, None where nothing is; `accepted` what lands of it."""

    version: int = 1
    digest: str | None
    changes: tuple[ReviewedChangeReport, ...]
    accepted: tuple[PathReport, ...]
    left: tuple[LeftReport, ...] = ()
    comments: tuple[CommentReport, ...] = ()


class DecisionsInput(Frozen):
    """What `workbench review --decisions` reads: paths relative to the workspace's root, and ids of hunks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    accept: tuple[str, ...] = ()
    reject: tuple[str, ...] = ()
    accept_hunks: tuple[str, ...] = ()
    reject_hunks: tuple[str, ...] = ()


class JobReport(Frozen):
    """A command of the sandbox: one line of `workbench ps --json`, and what other commands say they ended.

    `argv` is cut where it's long. `state` is `running` or `ended`; `exit_code` and `signal` are known once it has ended.
    CPU time is all it has used; memory and processes are those of the moment.
    """

    id: str
    argv: tuple[str, ...]
    state: str
    background: bool
    tty: bool
    client: int
    started_at: str
    running_ms: int
    exit_code: int | None = None
    signal: str | None = None
    ended_by: str | None = None
    cpu_ms: int = 0
    memory_bytes: int = 0
    processes: int = 0
    output_bytes: int = 0


class JobsReport(Frozen):
    """`workbench ps --json`, oldest first."""

    version: int = 1
    jobs: tuple[JobReport, ...]


class StartedReport(Frozen):
    """`workbench exec -d --json`: the id under which the command is known."""

    version: int = 1
    id: str


class LogsReport(Frozen):
    """`workbench logs --json`: what is kept of both streams, undecodable bytes replaced, and how much isn't."""

    version: int = 1
    id: str
    state: str
    stdout: str
    stderr: str
    omitted_bytes: int


class StopReport(Frozen):
    """`workbench stop --json` and `workbench refresh --json`: what that ended."""

    version: int = 1
    ended: tuple[JobReport, ...] = ()


class CommitReport(Frozen):
    """`workbench commit --json`. `weak` says that the filesystem can't exchange two names, which leaves a window.

    `verified` says that what landed was read back; `differs` are the paths at which it's no longer what was reviewed.
    """

    version: int = 1
    commit_id: str | None
    digest: str
    landed: tuple[PathReport, ...]
    left: tuple[LeftReport, ...]
    ended_processes: int = 0
    weak: bool = False
    ended: tuple[JobReport, ...] = ()
    verified: bool = False
    differs: tuple[PathReport, ...] = ()


class BranchReport(Frozen):
    """`workbench commit --git --json`: `uncommitted` are paths with changes of the person's own, which the branch has, too."""

    version: int = 1
    branch: str
    commit: str
    digest: str
    uncommitted: tuple[PathReport, ...]
    carried: tuple[str, ...] = ()


class UnmergedReport(PathReport):
    """A path that couldn't be merged, and why, in a word or two."""

    reason: str


class MergeReport(Frozen):
    """`workbench merge --json`: `marked` are those of `merged` with conflict markers, `taken` went by --ours or --theirs."""

    version: int = 1
    merged: tuple[PathReport, ...]
    marked: tuple[PathReport, ...]
    taken: tuple[PathReport, ...]
    unmerged: tuple[UnmergedReport, ...]
    ended_processes: int = 0
    ended: tuple[JobReport, ...] = ()


class RevertReport(Frozen):
    """`workbench revert --json`: the commit that it landed as, None with --dry-run, and the paths that were taken back."""

    version: int = 1
    commit_id: str | None
    digest: str
    reverted: tuple[PathReport, ...]


class DiscardReport(Frozen):
    """`workbench discard --json`: the checkpoint that still holds what was discarded."""

    version: int = 1
    discarded: int
    checkpoint: str
    left: tuple[LeftReport, ...] = ()
    ended_processes: int = 0
    ended: tuple[JobReport, ...] = ()


class LetGoReport(Frozen):
    """`workbench discard --replaced --json`: how many workspaces that stood here before were let go of."""

    version: int = 1
    let_go: int


class CheckpointReport(Frozen):
    """One checkpoint: `workbench checkpoint --json`, and an entry of `workbench log --json`.

    `created_at` is a time of RFC 3339 in UTC. `changes` counts the paths that a command changed, of any other kind those
    that differ from the entry before it, of which `added` are new and `removed` gone. `kind` is `message`, `command`
    (what was there before one), `before` (before a rewind, redo or discard), `rewind`, `redo`, `discard`, `fork` or
    `landed` (after the commit `landed`). `steps` are those of its message, `result` is how that message's run
    ended, as `end_reason` of `workbench run --json`: empty while it hasn't, None where there was none. `left` says that a
    rewind went back behind it, `forks` names the sessions that began there.
    """

    message_id: str
    created_at: str
    label: str
    changes: int = 0
    added: int = 0
    modified: int = 0
    removed: int = 0
    kind: str = "message"
    session: str = ""
    number: int = 0
    step: int = 0
    commit: str = ""
    landed: str | None = None
    steps: tuple[CheckpointReport, ...] = ()
    result: str | None = None
    left: bool = False
    forks: tuple[str, ...] = ()


class LandedReport(Frozen):
    """An entry of `workbench log --commits --json`: a commit that landed, newest first."""

    commit_id: str
    created_at: str
    session: str
    digest: str
    checkpoint: str
    changes: int
    landed: tuple[PathReport, ...]
    messages: tuple[str, ...] = ()


class AuditReport(Frozen):
    """An entry of `workbench log --audit --json`, newest first: who did what, when, to how many changes of each kind.

    `code` is that of the error of a refusal; `commit_id` is the commit's, of a branch git's.
    """

    at: str
    uid: int
    user: str
    action: str
    session: str
    digest: str
    commit_id: str
    code: str
    message: str
    counts: dict[str, int]


class ChainReport(Frozen):
    """`workbench log --audit --verify --json`: `lines` follow from each other, `last` is the hash of the last of them.

    `wrong` is the first line (from 1) that isn't what was written there, 0 where none is, and `why` says how it shows.
    """

    version: int = 1
    lines: int
    last: str
    wrong: int
    why: str


class RewindReport(Frozen):
    """`workbench rewind --json` and `workbench redo --json`.

    `removed` is gone, `restored` is what it was. `before` is the id of what was there before. `left` stays as a person
    made it after a commit; with `without_repository` so does the real repository, which moved on. `messages` counts those
    of the conversation that were taken back, or came back.
    """

    version: int = 1
    removed: tuple[PathReport, ...]
    restored: tuple[PathReport, ...]
    ended_processes: int
    before: str
    left: tuple[PathReport, ...] = ()
    without_repository: bool = False
    ended: tuple[JobReport, ...] = ()
    messages: int = 0


class ForkReport(Frozen):
    """`workbench fork --json`."""

    version: int = 1
    session: str
    message_id: str


class VerifyReport(Frozen):
    """`workbench checkpoint --verify --json`: how many checkpoints are whole, and which ones aren't, and why."""

    version: int = 1
    whole: int
    broken: tuple[dict[str, str], ...] = ()
    damage: dict[str, str] = Field(default_factory=dict)


class ExecReport(Frozen):
    """`workbench exec --json`, always one such object, also where the command never ran.

    `exit_code` is what `workbench exec` itself ends with, and `exit_code_of` says whose that is: `command`, or `workbench`
    for 124 (`timed_out`; `signal` says what ended the command), 2, 125, 126 and 127, where `error` (`code`, `message`,
    `hint`) says why there is no result. `stdout` and `stderr` are text, undecodable bytes replaced, with what
    `omitted_bytes` counts left out between their heads and tails. `changes` is how many the overlay holds now. With
    `--commit success` `commit_id` is what they landed as, or `waits` (`code`, `message`, `hint`) says why they didn't.
    `egress` are the first of the requests that left the sandbox, or wanted to.
    """

    version: int = 1
    exit_code: int
    exit_code_of: str = "command"
    signal: str | None = None
    timed_out: bool = False
    duration_ms: int = 0
    stdout: str = ""
    stderr: str = ""
    omitted_bytes: int = 0
    stopped_processes: int = 0
    out_of_memory: bool = False
    ended_by: str | None = None
    changes: int | None = None
    egress: tuple[EgressEvent, ...] = ()
    error: dict[str, str | None] | None = None
    out_of_processes: bool = False
    user_cpu_ms: int = 0
    system_cpu_ms: int = 0
    memory_peak_bytes: int = 0
    commit_id: str | None = None
    waits: dict[str, str | None] | None = None
    tmp_full: bool = False
    home_full: bool = False


class ErrorReport(Frozen):
    """What any command but `exec` prints with `--json` when it fails: `error` has a `code`, a `message` and a `hint`.

    `paths` are those that it is about: the conflicting ones, the risky ones.
    """

    version: int = 1
    error: dict[str, str | None]
    paths: tuple[PathReport, ...] = ()


def text(data: bytes) -> str:
    """Output as text: undecodable bytes are replaced."""
    return data.decode(errors="replace")


class ImageReport(Frozen):
    """One of our own images; `size` is in bytes, `current` says that it's of this version's recipe."""

    name: str
    reference: str
    built: bool
    size: int
    current: bool


class ImagesReport(Frozen):
    """`workbench images list --json`."""

    version: int = 1
    images: tuple[ImageReport, ...]


class FindingReport(Frozen):
    """One line of `workbench doctor`: `state` is `ok`, `warning` or `problem`."""

    topic: str
    state: str
    finding: str
    hint: str | None = None


class LeftoverReport(Frozen):
    """Something that was left over: `fix` is what `--fix` does about it, where it's `mendable`, else what a person can do.

    `kind` is `process`, `sandbox`, `commit`, `staging`, `overlay`, `workspace`, `removal`, `temporary` or `unreadable`. `fixed`
    says that `--fix` did it; `error` (`code`, `message`, `hint`) what stood in the way.
    """

    kind: str
    finding: str
    fix: str
    mendable: bool
    fixed: bool = False
    error: dict[str, str | None] | None = None


class DoctorReport(Frozen):
    """`workbench doctor --json`; `picked` is the backend that `auto` takes here, None where none works."""

    version: int = 1
    picked: str | None
    why: str
    findings: tuple[FindingReport, ...]
    leftovers: tuple[LeftoverReport, ...] = ()


class EntryReport(PathReport):
    """An entry of the merged view: `path` is from the workspace's root, `mode` an octal string of all 16 bits.

    `kind` is `file`, `dir`, `symlink`, `fifo`, `socket` or `device`; `target` is where a symlink leads. `mark` is `A` for
    what is new in the overlay, `M` for what it has a copy of its own of, None for what is the real workspace's.
    """

    kind: str
    mode: str
    size: int
    mtime_ns: int
    target: PathReport | None = None
    mark: str | None = None


class ListReport(Frozen):
    """`workbench ls --json`: what there is at `path`, a directory or one entry."""

    version: int = 1
    path: PathReport
    entries: tuple[EntryReport, ...]


class PurgedReport(PathReport):
    """A path that was purged, and how many checkpoints held it."""

    checkpoints: int


class PurgeReport(Frozen):
    """`workbench prune --purge PATH --json`, and the same of `workbench checkpoint --purge`."""

    version: int = 1
    purged: tuple[PurgedReport, ...]


class ImportedEditReport(Frozen):
    """An edit of another agent's, at the path that its records name, made after the message `message_id`.

    `status` is `applied`, `already` (the file has it), `conflict`, `outside` or `unrecorded`; `reason` says why it was left
    out.
    """

    path: str
    action: str
    status: str
    reason: str | None = None
    message_id: str


class ImportReport(Frozen):
    """`workbench transcripts import --json`: the session that was made, or with `dry_run` would be.

    `counts` are the edits by status. `commands` is how many calls of shells there were: what those changed isn't recorded.
    """

    version: int = 1
    dry_run: bool
    session: str
    workspace: PathReport
    agent: str
    source_id: str
    messages: int
    checkpoints: int
    commands: int
    counts: dict[str, int]
    edits: tuple[ImportedEditReport, ...]


class ServeReport(Frozen):
    """`workbench serve --json`, once it listens: `token_file` holds what requests are sent with."""

    version: int = 1
    url: str
    host: str
    port: int
    token_file: str
