"""From what the workbench knows to what `--json` prints."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime

from workbench.checkpoints.store import Checkpoint
from workbench.checkpoints.upkeep import Verified
from workbench.errors import WorkbenchError
from workbench.landing import Landed
from workbench.protocol.commands import CommandResult
from workbench.protocol.egress import EgressEvent
from workbench.protocol.records import AuditRecord, CommentRecord
from workbench.protocol.reports import (
    AuditReport,
    BranchReport,
    ChainReport,
    ChangeReport,
    CheckpointReport,
    CommentReport,
    CommitReport,
    DiffReport,
    DiscardReport,
    ExecReport,
    HunkReport,
    JobReport,
    LandedReport,
    LeftReport,
    MergeReport,
    PathReport,
    RevertReport,
    ReviewedChangeReport,
    ReviewedHunkReport,
    ReviewReport,
    RewindReport,
    SandboxReport,
    StatusReport,
    UnmergedReport,
    VerifyReport,
    text,
)
from workbench.review import diff
from workbench.review.audit import Verified as AuditVerified
from workbench.review.branch import Branch
from workbench.review.changeset import Change, ChangeSet, Left, LeftPath, State
from workbench.review.decisions import Review
from workbench.review.hunks import NamedHunk, named_hunks
from workbench.review.landed import Committed
from workbench.review.log import LogEntry
from workbench.review.merge import Merge
from workbench.review.order import group_of, in_order
from workbench.sandbox.facts import JobFacts
from workbench.timeline import Preview
from workbench.vfs.storage import Kind, Storage
from workbench.workspace import Discarded, Travelled, Workspace, WorkspaceStatus

_TYPE_BITS = {Kind.FILE: 0o100000, Kind.SYMLINK: 0o120000, Kind.DIR: 0o040000}


def status_report(workspace: Workspace, status: WorkspaceStatus) -> StatusReport:
    """The report of `workbench status`."""
    return StatusReport(
        workspace=workspace.root.decode(errors="replace"),
        session=workspace.session,
        digest=status.digest,
        changes=len(status.changes.shown),
        sandbox=SandboxReport(
            backend=status.sandbox.backend,
            state="running" if status.sandbox.running else "stopped",
            jobs=status.sandbox.jobs,
        ),
        conflicts=_paths(status.conflicts),
        lower_changed=status.lower_changed,
        scratch=_counted(status.changes, Left.SCRATCH),
        ignored=_counted(status.changes, Left.IGNORED),
        mount_points=_paths(status.mount_points),
        unresolved=_paths(status.unresolved),
    )


def diff_report(workspace: Workspace, changes: ChangeSet, shown: Iterable[Change]) -> DiffReport:
    """The report of `workbench diff`: the digest of the whole change set, and the changes that were asked for."""
    return DiffReport(
        digest=changes.digest,
        changes=tuple(_change(workspace.lower, workspace.store, change) for change in shown),
        left=_left(changes.left),
    )


def preview_report(preview: Preview, shown: Iterable[Change]) -> DiffReport:
    """The report of a difference that can't land as it is: it has no digest."""
    return DiffReport(digest="", changes=tuple(_change(preview.old, preview.new, change) for change in shown))


def checkpoint_report(checkpoint: Checkpoint) -> CheckpointReport:
    """One checkpoint, without what it changed."""
    return CheckpointReport(
        message_id=checkpoint.message_id,
        created_at=_time(checkpoint.created_at),
        label=checkpoint.label,
        kind=checkpoint.purpose.kind.value,
        session=checkpoint.session,
        number=checkpoint.number,
        step=checkpoint.purpose.step,
        commit=checkpoint.commit,
        landed=checkpoint.purpose.landed or None,
    )


def entry_report(entry: LogEntry, result: str | None) -> CheckpointReport:
    """An entry of `workbench log`; `result` is how its message's run ended, where there was one."""
    found = {
        "changes": entry.changes,
        "added": entry.added,
        "modified": entry.modified,
        "removed": entry.removed,
        "steps": tuple(map(checkpoint_report, entry.steps)),
        "result": result,
        "left": entry.is_left,
        "forks": entry.forks,
    }
    return checkpoint_report(entry.checkpoint).model_copy(update=found)


def landed_report(committed: Committed, messages: Iterable[str]) -> LandedReport:
    """An entry of `workbench log --commits`; `messages` are those that led to it."""
    return LandedReport(
        commit_id=committed.commit_id,
        created_at=_time(committed.created_ns),
        session=committed.session,
        digest=committed.digest,
        checkpoint=committed.checkpoint,
        changes=sum(not change.implied for change in committed.changes),
        landed=_paths(committed.landed),
        messages=tuple(messages),
    )


def audit_report(record: AuditRecord) -> AuditReport:
    """An entry of `workbench log --audit`."""
    return AuditReport(at=_time(record.at_ns), **record.model_dump(exclude={"version", "at_ns", "previous"}))


def chain_report(verified: AuditVerified) -> ChainReport:
    """The report of `workbench log --audit --verify`."""
    return ChainReport(lines=verified.lines, last=verified.last, wrong=verified.wrong, why=verified.why)


def rewind_report(travelled: Travelled | None, messages: int = 0) -> RewindReport:
    """The report of `workbench rewind` and `workbench redo`; `travelled` is None where the files stayed."""
    if travelled is None:
        return RewindReport(removed=(), restored=(), ended_processes=0, before="", messages=messages)
    journey = travelled.journey
    return RewindReport(
        removed=_paths(journey.removed),
        restored=_paths(journey.restored),
        ended_processes=len(travelled.ended),
        ended=job_reports(travelled.ended),
        before=journey.before,
        left=_paths(journey.left),
        without_repository=journey.without_repository,
        messages=messages,
    )


def verify_report(found: Verified) -> VerifyReport:
    """The report of `workbench checkpoint --verify`."""
    broken = tuple({"session": session, "message_id": message, "why": why} for session, message, why in found.broken)
    return VerifyReport(whole=found.whole, broken=broken, damage=found.damage)


def _time(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def commit_report(landed: Landed | None, digest: str = "") -> CommitReport:
    """The report of `workbench commit`; None is a commit with nothing to land."""
    if landed is None:
        return CommitReport(commit_id=None, digest=digest, landed=(), left=())
    return CommitReport(
        commit_id=landed.committed.commit_id,
        digest=landed.committed.digest,
        landed=_paths(landed.committed.landed),
        left=_left(landed.left.left),
        ended_processes=len(landed.ended),
        weak=landed.committed.weak,
        ended=job_reports(landed.ended),
        verified=landed.verified,
        differs=_paths(landed.differs),
    )


def branch_report(branch: Branch, digest: str) -> BranchReport:
    """The report of `workbench commit --git`."""
    return BranchReport(
        branch=branch.name,
        commit=branch.commit,
        digest=digest,
        uncommitted=_paths(branch.uncommitted),
        carried=branch.carried,
    )


def merge_report(merge: Merge, ended: tuple[JobFacts, ...]) -> MergeReport:
    """The report of `workbench merge`, which ended those commands."""
    named = ((PathReport.of(path), why) for path, why in merge.unmerged.items())
    return MergeReport(
        merged=_paths(merge.merged),
        marked=_paths(merge.marked),
        taken=_paths(merge.taken),
        unmerged=tuple(UnmergedReport(path=path.path, path_bytes=path.path_bytes, reason=why) for path, why in named),
        ended_processes=len(ended),
        ended=job_reports(ended),
    )


def revert_report(changes: ChangeSet, reverted: Committed | None) -> RevertReport:
    """The report of `workbench revert`; `reverted` is None where nothing was done."""
    return RevertReport(
        commit_id=reverted.commit_id if reverted is not None else None,
        digest=changes.digest,
        reverted=_paths(change.path for change in changes.changes),
    )


def discard_report(discarded: Discarded) -> DiscardReport:
    """The report of `workbench discard`."""
    return DiscardReport(
        discarded=discarded.changes,
        checkpoint=discarded.checkpoint,
        ended_processes=len(discarded.ended),
        left=_left(discarded.left.left),
        ended=job_reports(discarded.ended),
    )


def job_reports(jobs: Iterable[JobFacts]) -> tuple[JobReport, ...]:
    """The reports of commands of the sandbox."""
    return tuple(map(_job, jobs))


def _job(job: JobFacts) -> JobReport:
    result = job.result
    return JobReport(
        id=job.id,
        argv=tuple(text(os.fsencode(word)) for word in job.argv),
        state="ended" if job.over or job.ended_by else "running",
        background=job.background,
        tty=job.tty,
        client=job.client,
        started_at=datetime.fromtimestamp(job.started_at_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        running_ms=job.running_ms,
        exit_code=result.exit_code if result else None,
        signal=(result.signal or None) if result else None,
        ended_by=(result.ended_by if result else job.ended_by) or None,
        cpu_ms=result.user_cpu_ms + result.system_cpu_ms if result else job.cpu_ms,
        memory_bytes=job.memory_bytes,
        processes=job.processes,
        output_bytes=job.output_bytes,
    )


def exec_report(
    result: CommandResult,
    exit_code: int,
    changes: int | None,
    landing: Landed | WorkbenchError | None = None,
    egress: tuple[EgressEvent, ...] = (),
) -> ExecReport:
    """The report of `workbench exec`, which itself ends with `exit_code`; `landing` is what landed, or why it waits."""
    return ExecReport(
        exit_code=exit_code,
        exit_code_of="workbench" if result.timed_out else "command",
        signal=result.signal or None,
        timed_out=result.timed_out,
        duration_ms=result.duration_ms,
        stdout=text(result.stdout),
        stderr=text(result.stderr),
        omitted_bytes=result.omitted_bytes,
        stopped_processes=result.stopped_processes,
        out_of_memory=result.out_of_memory,
        ended_by=result.ended_by or None,
        changes=changes,
        out_of_processes=result.out_of_processes,
        user_cpu_ms=result.user_cpu_ms,
        system_cpu_ms=result.system_cpu_ms,
        memory_peak_bytes=result.memory_peak_bytes,
        tmp_full=result.tmp_full,
        home_full=result.home_full,
        commit_id=landing.committed.commit_id if isinstance(landing, Landed) else None,
        waits=error_fields(landing) if isinstance(landing, WorkbenchError) else None,
        egress=egress,
    )


def failed_exec_report(error: WorkbenchError, exit_code: int) -> ExecReport:
    """The report of a `workbench exec` whose command never ran, or was lost with its sandbox."""
    return ExecReport(exit_code=exit_code, exit_code_of="workbench", error=error_fields(error))


def error_fields(error: WorkbenchError) -> dict[str, str | None]:
    """An error as programs get it."""
    return {"code": error.code, "message": error.message, "hint": error.hint}


def review_report(workspace: Workspace, review: Review, accepted: ChangeSet) -> ReviewReport:
    """The report of `workbench review`; `accepted` is the change set that lands of it."""
    return ReviewReport(
        digest=accepted.digest if accepted.changes else None,
        changes=tuple(_reviewed(workspace, review, change) for change in in_order(review.changes.shown)),
        accepted=_paths(path for change in accepted.changes for path, _, _ in change.steps()),
        left=_left(review.changes.left),
        comments=tuple(map(comment_report, workspace.reviewing.comments.all())),
    )


def comment_report(comment: CommentRecord) -> CommentReport:
    """What a person says to the agent."""
    named = PathReport.of(comment.path)
    return CommentReport(
        path=named.path,
        path_bytes=named.path_bytes,
        created_at=_time(comment.at_ns),
        text=comment.text,
        hunk=comment.hunk or None,
        line=comment.line or None,
        lines=tuple(map(text, comment.quoted)),
    )


def _reviewed(workspace: Workspace, review: Review, change: Change) -> ReviewedChangeReport:
    decision = review.decision(change)

    def decided(hunk: NamedHunk) -> bool | None:
        if decision.accepted is not None:
            return decision.accepted
        known = {decision.hunks.get(part.id) for part in hunk.leaves}
        return known.pop() if len(known) == 1 else None

    def told(hunk: NamedHunk) -> ReviewedHunkReport:
        fields = dict(_hunk(hunk))
        lines = decision.edits.get(hunk.id)
        return ReviewedHunkReport(
            **fields,
            accepted=decided(hunk),
            edited=None if lines is None else tuple(map(text, lines)),
            parts=tuple(map(told, hunk.parts)),
        )

    fields = dict(_change(workspace.lower, workspace.store, change, with_hunks=False))
    hunks = named_hunks(change, workspace.lower, workspace.store)
    return ReviewedChangeReport(
        **{**fields, "hunks": tuple(map(told, hunks))},
        group=group_of(change).name.lower(),
        verdict=review.verdict(change).value,
    )


def _change(old: Storage, new: diff.Contents, change: Change, *, with_hunks: bool = True) -> ChangeReport:
    named = PathReport.of(change.path)
    binary = diff.is_binary(change, old, new)
    hunks = () if binary or not with_hunks else named_hunks(change, old, new)
    return ChangeReport(
        path=named.path,
        path_bytes=named.path_bytes,
        kind=change.kind.value,
        old_mode=_mode(change.old),
        new_mode=_mode(change.new),
        binary=binary,
        risk=change.risk or None,
        renamed_from=PathReport.of(change.renamed_from) if change.renamed_from else None,
        hunks=tuple(map(_hunk, hunks)),
    )


def _hunk(named: NamedHunk) -> HunkReport:
    hunk = named.hunk
    return HunkReport(
        id=named.id,
        old_start=hunk.old_start,
        old_lines=hunk.old_count,
        new_start=hunk.new_start,
        new_lines=hunk.new_count,
        lines=tuple(text(line) for line in hunk.lines),
    )


def _mode(state: State | None) -> str | None:
    return None if state is None else f"{_TYPE_BITS.get(state.kind, 0) | state.mode:06o}"


def _paths(found: Iterable[bytes]) -> tuple[PathReport, ...]:
    return tuple(PathReport.of(path) for path in found)


def _left(left: Iterable[LeftPath]) -> tuple[LeftReport, ...]:
    named = ((PathReport.of(one.path), one) for one in left)
    return tuple(
        LeftReport(path=path.path, path_bytes=path.path_bytes, reason=one.reason.value, count=one.count)
        for path, one in named
    )


def _counted(changes: ChangeSet, reason: Left) -> int:
    return sum(one.count for one in changes.left if one.reason is reason)
