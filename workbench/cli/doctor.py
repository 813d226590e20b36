"""`doctor`: what was found here, what was picked and why, what to do where something is missing."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

import anyio
import typer

from workbench.cli import output
from workbench.cli.failure import find_error
from workbench.cli.options import JsonOption, WorkspaceOption, failing, workspace_path
from workbench.cli.report import error_fields
from workbench.errors import SandboxError, WorkbenchError
from workbench.mounting import SandboxOptions
from workbench.protocol.reports import DoctorReport, FindingReport, LeftoverReport
from workbench.repair import Leftover, leftovers_of, mend
from workbench.sandbox import devcontainer, filesystems, images, namespace, probe
from workbench.sandbox.advisories import known_holes
from workbench.sandbox.backend import SandboxSpec
from workbench.sandbox.engine import Engine, EngineInfo
from workbench.state import StateDirectory
from workbench.vfs.local import LocalStorage

OK, WARNING, PROBLEM = "ok", "warning", "problem"
_GVISOR = "runsc"
_KNOBS = {
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": ("0", "AppArmor restricts unprivileged user namespaces"),
    "/proc/sys/kernel/unprivileged_userns_clone": ("1", "unprivileged user namespaces are switched off"),
}


def doctor(
    fix: Annotated[
        bool,
        typer.Option(
            "--fix", metavar="", help="Remove or complete what killed processes and vanished directories left."
        ),
    ] = False,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Say what was found (engine, kernel, filesystems, image), what was picked and why, and what to do.

    Also what was left over in the state directory and around it, and what --fix would do about each; never anything of
    another user's, nor that holds what was never landed.

    Ends with 0, and with 1 where no sandbox can be started here, or --fix couldn't do all of what it should.
    """
    with failing(json):
        report = anyio.run(_examine, workspace_path(workspace))
        left = tuple(_mended(found) if fix else _told(found) for found in leftovers_of(StateDirectory.open()))
        report = report.model_copy(update={"leftovers": left})
    if json:
        output.write_json(report)
    else:
        _print(report)
    if report.picked is None or any(found.error for found in left):
        raise typer.Exit(1)


def _told(found: Leftover) -> LeftoverReport:
    return LeftoverReport(kind=found.kind, finding=found.finding, fix=found.fix, mendable=found.mend is not None)


def _mended(found: Leftover) -> LeftoverReport:
    raised = mend(found)
    told = _told(found)
    if raised is not None and (error := find_error(raised)) is not None:
        return told.model_copy(update={"error": error_fields(error)})
    return told.model_copy(update={"fixed": told.mendable})


async def _examine(root: bytes) -> DoctorReport:
    state = StateDirectory.open()
    findings = [FindingReport(topic="kernel", state=OK, finding=f"Linux {platform.release()}, {platform.machine()}")]
    findings += _filesystems(state, root)
    spec = _spec()
    await _docker(state, spec, findings)
    await _namespace(state, spec, findings)
    wanted = os.environ.get("WORKBENCH_BACKEND") or SandboxOptions().backend
    if wanted == "none":
        why = "it was asked for: files can be worked on, and no command runs"
        return DoctorReport(picked=wanted, why=why, findings=tuple(findings))
    try:
        picked = await probe.pick(wanted, spec, state.path)
    except SandboxError as error:
        return DoctorReport(picked=None, why=error.message, findings=tuple(findings))
    why = f"{picked.why}. Compared with docker it has {picked.isolation}" if picked.isolation else picked.why
    return DoctorReport(picked=picked.backend, why=why, findings=tuple(findings))


def _filesystems(state: StateDirectory, root: bytes) -> Iterator[FindingReport]:
    problem = filesystems.upper_problem(state.path)
    found = f"{state.path} is on {filesystems.filesystem_name(state.path)}"
    yield _finding("state directory", problem, found, "Set WORKBENCH_STATE to a directory on a local disk.")
    shown = output.path(root)
    try:
        problem = filesystems.lower_problem(root)
        yield _finding("workspace", problem, f"{shown} is on {filesystems.filesystem_name(root)}", None)
        with LocalStorage(root) as lower:
            for point in lower.mount_points():
                yield FindingReport(
                    topic="workspace",
                    state=WARNING,
                    finding=f"{output.path(point)} is a mount point: an empty directory in the sandbox",
                )
            if offered := devcontainer.offered(lower):
                yield FindingReport(topic="image", state=OK, finding=offered)
    except OSError as error:
        yield FindingReport(topic="workspace", state=PROBLEM, finding=f"{shown} can't be read: {error.strerror}")


def _spec() -> SandboxSpec:
    uid, gid = os.geteuid(), os.getegid()
    sharing = SandboxOptions().sharing
    return SandboxSpec("auto", images.DEFAULT, mounts=(), uid=uid or 65534, gid=gid or 65534, sharing=sharing)


async def _docker(state: StateDirectory, spec: SandboxSpec, findings: list[FindingReport]) -> None:
    try:
        info = await anyio.to_thread.run_sync(lambda: Engine().facts())
        findings += _engine(info)
        result = await probe.probe_docker(spec, state.path, fresh=True)
    except WorkbenchError as error:
        findings.append(FindingReport(topic="docker", state=PROBLEM, finding=error.message, hint=error.hint))
        return
    findings += _probed(result)
    if _GVISOR not in info.runtimes:
        findings.append(FindingReport(topic="gVisor", state=OK, finding=f"the engine has no runtime called {_GVISOR}"))
    else:
        result = await probe.probe_docker(replace(spec, runtime=_GVISOR), state.path, fresh=True)
        found = "a whole cycle went well with --runtime runsc" if result.ok else f"it can't be used: {result.reason}"
        findings.append(FindingReport(topic="gVisor", state=OK if result.ok else WARNING, finding=found))


def _engine(info: EngineInfo) -> Iterator[FindingReport]:
    kind = "Podman" if info.podman else "Docker"
    modes = [word for word, on in (("rootless", info.rootless), ("userns-remap", info.userns_remap)) if on]
    yield FindingReport(
        topic="engine",
        state=OK,
        finding=f"{kind} {info.version} ({', '.join([f'API {info.api_version}', *modes])}) at {info.socket}",
    )
    yield FindingReport(
        topic="engine",
        state=OK,
        finding=f"storage driver {info.storage_driver}, cgroup v{info.cgroup_version} ({info.cgroup_driver}), "
        f"runc {info.runc or 'unknown'}, security {', '.join(info.security_options) or 'none'}",
    )
    for limit in info.unenforced:
        yield FindingReport(topic="engine", state=WARNING, finding=f"the engine can't enforce a limit on {limit}")
    for advisory in known_holes(info):
        yield FindingReport(
            topic="engine",
            state=WARNING,
            finding=f"{advisory.identifier} ({advisory.component}): {advisory.summary}",
            hint=f"Fixed in {', '.join(advisory.fixed)}; a distribution may have it in an older number, too.",
        )


async def _namespace(state: StateDirectory, spec: SandboxSpec, findings: list[FindingReport]) -> None:
    bwrap = namespace.bubblewrap()
    found = f"bubblewrap at {bwrap}" if bwrap else "no bubblewrap: it is done without"
    findings.append(FindingReport(topic="namespace", state=OK, finding=found))
    for path, (wanted, meaning) in _KNOBS.items():
        with contextlib.suppress(OSError), open(path, encoding="ascii") as stream:
            if (value := stream.read().strip()) != wanted:
                findings.append(
                    FindingReport(topic="namespace", state=WARNING, finding=f"{meaning} ({path} is {value})")
                )
    result = await probe.probe_namespace(spec, state.path, fresh=True)
    findings += _probed(result)
    if result.ok:
        findings.append(
            FindingReport(topic="namespace", state=OK, finding=f"compared with docker it has {namespace.lacks()}")
        )


def _probed(result: probe.ProbeResult) -> Iterator[FindingReport]:
    if not result.ok:
        yield FindingReport(topic=result.backend, state=PROBLEM, finding=result.reason)
        return
    yield FindingReport(topic=result.backend, state=OK, finding="a whole cycle of mount, change and unmount went well")
    if result.way:
        slower = "each start, and each look at what was changed," if result.sharing == "plain" else "each start"
        finding = f"it works on {result.way}, which makes {slower} slower: {result.reason}"
        yield FindingReport(topic=result.backend, state=WARNING, finding=finding)
    for detail in result.details:
        yield FindingReport(topic=result.backend, state=OK, finding=detail)


def _finding(topic: str, problem: str, found: str, hint: str | None) -> FindingReport:
    if problem:
        return FindingReport(topic=topic, state=PROBLEM, finding=f"{found}: {problem}", hint=hint)
    return FindingReport(topic=topic, state=OK, finding=found)


def _print(report: DoctorReport) -> None:
    marks = {OK: "ok", WARNING: "!!", PROBLEM: "XX"}
    for finding in report.findings:
        print(f"{marks[finding.state]}  {finding.topic:<16} {finding.finding}")
        if finding.hint:
            print(f"    {'':<16} {finding.hint}")
    _print_leftovers(report.leftovers)
    print()
    if report.picked is None:
        print(f"{output.bold('Picked')} nothing: {report.why}")
    else:
        print(f"{output.bold('Picked')} {report.picked}: {report.why}")


def _print_leftovers(found: tuple[LeftoverReport, ...]) -> None:
    for left in found:
        mark = "ok" if left.fixed else "XX" if left.error else "!!"
        print(f"{mark}  {'left over':<16} {left.finding}")
        words = "fixed" if left.fixed else "--fix would" if left.mendable else ""
        print(f"    {'':<16} {f'{words}: {left.fix}' if left.fixed else f'{words} {left.fix}'.strip()}")
        if left.error:
            print(f"    {'':<16} {left.error['message']} {left.error['hint'] or ''}".rstrip())
