"""Which backend works here, found out by doing the whole cycle once: a mount that succeeds proves nothing."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import anyio
import anyio.to_thread
from pydantic import BaseModel, ConfigDict

from workbench.errors import OptionsError, OverlayError, SandboxError, StateError
from workbench.sandbox import filesystems, images, namespace
from workbench.sandbox.backend import OverlayMount, SandboxSpec
from workbench.sandbox.docker import DockerBackend
from workbench.sandbox.engine import Engine, EngineInfo
from workbench.sandbox.leftovers import OVERLAY_LABEL, remove_tree
from workbench.sandbox.namespace import NamespaceBackend
from workbench.sandbox.targets import FALLBACK
from workbench.vfs.overlay_lock import OverlayLock
from workbench.vfs.session import OverlayDirectory
from workbench.vfs.statefile import read_json, write_json

_VERSION = 2
"""Raised when the cycle changes: results of another are not trusted."""

_WAYS = {
    "mounted": "",
    "copied": "copies of our files",
    "plain": "plain copies of our files, and no overlay",
}
WAYS_OF_SHARING = tuple(_WAYS)
_SECONDS = 60
_ANSWER_LIMIT = 1 << 20
_FILE = "probe.json"
_PREFIX = "probe-"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"

# What the sandbox does with the overlay; what must have become of it is checked from outside.
_CYCLE = b"""\
import json, os, shutil, sys

target = json.loads(sys.argv[1])["targets"][0]
answer = {}
try:
    os.chdir(target)
    with open("nonce") as file:
        answer["nonce"] = file.read()
    with open("/proc/sys/kernel/random/boot_id") as file:
        answer["boot_id"] = file.read()
    with open("/proc/self/mountinfo", errors="surrogateescape") as file:
        mounts = [line.split() for line in file]
    mount = [fields for fields in mounts if fields[4] == target.replace(" ", "\\\\040")][-1]
    answer["type"], answer["options"] = mount[mount.index("-") + 1], mount[5].split(",")
    answer["super_options"] = mount[-1].split(",")
    answer["uid"] = os.getuid()
    with open("appended", "a") as file:
        file.write(" and more")
    os.unlink("deleted")
    shutil.rmtree("opaque")
    os.mkdir("opaque")
    with open("opaque/new", "w") as file:
        file.write("new")
    os.rename("before", "after")
    os.mkdir("made")
    os.rename("made", "renamed")
    os.chmod("mode", 0o640)
    os.setxattr("attribute", "user.workbench.probe", b"yes")
    answer["seen"] = {"opaque": os.listdir("opaque"), "top": sorted(os.listdir("."))}
except Exception as error:
    answer["error"] = "%s: %s" % (type(error).__name__, error)
os.write(1, json.dumps(answer).encode() + b"\\n")
os.read(0, 1)
"""

Report = Callable[[str], None]
_Prober = DockerBackend | NamespaceBackend

_LOWER = {
    "nonce": "",
    "appended": "some",
    "deleted": "gone",
    "opaque/old": "old",
    "before": "moved",
    "mode": "mode",
    "attribute": "attribute",
    "untouched": "untouched",
}
_WHITEOUTS = ("before", "deleted")
_WRITTEN = {
    "appended": "some and more",
    "opaque/new": "new",
    "after": "moved",
    "mode": "mode",
    "attribute": "attribute",
}
_UPPER = ["after", "appended", "attribute", "before", "deleted", "mode", "opaque", "renamed"]
_SEEN = ["after", "appended", "attribute", "mode", "nonce", "opaque", "renamed", "untouched"]


def _quiet(line: str) -> None:
    """For callers who don't want to hear it."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Whether a backend works here; `reason` says why not, `details` is one line each for people.

    `sharing` is as in `SandboxSpec`. Where it works with copies only, `reason` says why.
    """

    backend: str
    ok: bool
    reason: str = ""
    details: tuple[str, ...] = ()
    sharing: str = "mounted"

    @property
    def way(self) -> str:
        """What the sandbox works on, in words; empty where it is our files themselves."""
        return _WAYS[self.sharing]


@dataclass(frozen=True, slots=True)
class Picked:
    """The backend to use, its image's full name, why it was picked, and what its isolation lacks (empty for docker)."""

    backend: str
    image: str
    why: str
    isolation: str
    result: ProbeResult


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True)

    key: str
    details: tuple[str, ...]
    reason: str = ""
    sharing: str = "mounted"


class _Cache(BaseModel):
    model_config = ConfigDict(frozen=True)

    version: int = _VERSION
    passed: dict[str, _Entry] = {}


async def pick(preference: str, spec: SandboxSpec, state_directory: str, report: Report = _quiet) -> Picked:
    """Choose the backend of a sandbox.

    Args:
        preference: `docker` or `namespace`, which never fall back; or `auto`: docker where it works, else namespace.
        spec: what would be started; its backend isn't looked at, its mounts are not touched. Where it says `copied` or `plain`,
            an engine gets copies even if it shares our files.
        state_directory: where the layers of overlays are, and where what was found out is remembered.
        report: hears what takes long.

    Raises OptionsError for another word, SandboxError: backend_unavailable where none works, with each one's reason;
    engine_unavailable and image_unavailable where docker was asked for, or an image that can't be had.
    """
    if preference == "namespace":
        return _picked(_required(await probe_namespace(spec, state_directory, report)), spec, "it was asked for")
    if preference == "docker":
        return _picked(_required(await probe_docker(spec, state_directory, report)), spec, "it was asked for")
    if preference != "auto":
        raise OptionsError(
            f"There is no backend called {preference!r}.", hint="Choose docker, namespace or none, or auto."
        )
    try:
        docker = await probe_docker(spec, state_directory, report)
    except SandboxError as error:
        if error.code == "image_unavailable" and images.reference(spec.image) != images.DEFAULT:
            raise
        docker = ProbeResult("docker", False, error.message)
        hint = error.hint
    else:
        hint = "`workbench doctor` says more."
        if docker.ok:
            return _picked(docker, spec, f"docker works here{_with_copies(docker)}")
    fallback = await probe_namespace(spec, state_directory, report)
    if fallback.ok:
        return _picked(fallback, spec, f"docker can't be used: {docker.reason.rstrip('.')}")
    raise SandboxError(
        f"No sandbox can be started here. docker: {docker.reason} namespace: {fallback.reason}",
        code="backend_unavailable",
        hint=hint,
    )


async def probe_docker(
    spec: SandboxSpec, state_directory: str, report: Report = _quiet, *, fresh: bool = False
) -> ProbeResult:
    """Do the whole cycle with docker, or remember that it went well before; the image is there afterwards.

    Args:
        spec: what would be started; its mounts are not touched.
        state_directory: where it is done.
        report: hears what takes long.
        fresh: do it even if it's known.

    Raises SandboxError (engine_unavailable, image_unavailable).
    """
    engine = Engine()
    info = await anyio.to_thread.run_sync(engine.facts)
    key = _key(spec, state_directory, info)
    image = await anyio.to_thread.run_sync(lambda: images.ensure(spec.image, report, engine=engine))
    if not fresh and (known := _remembered(state_directory, "docker", key, report)):
        return known
    spec = replace(spec, backend="docker", image=image)
    owner = os.geteuid() if info.rootless else spec.uid

    def make(spec: SandboxSpec) -> DockerBackend:
        return DockerBackend(spec, engine=engine, source=_CYCLE)

    if spec.sharing != "mounted":
        reason = "They were asked for."
    elif not info.local:
        where = "on another machine" if engine.is_remote else "in a virtual machine"
        reason = f"{info.operating_system} runs {where}, without our files."
    else:
        result = await _probe(spec, state_directory, make, owner)
        reason = "" if result.ok else result.reason
    said = reason
    for sharing in ("copied", "plain") if reason and spec.sharing != "plain" else ("plain",) if reason else ():
        result = await _probe(replace(spec, sharing=sharing), state_directory, make, owner)
        if result.ok:
            result = replace(result, reason=reason)
            break
        # Mostly it's the same: what was said last of why.
        same, said = said.splitlines()[-1].rpartition(": ")[2] in result.reason, result.reason
        more = f"It's the same with {_WAYS[sharing]}." if same else f"With {_WAYS[sharing]}: {said}"
        reason = f"{reason.rstrip('.')}. {more}"
        result = replace(result, reason=reason)
    if not result.ok or result.sharing == spec.sharing or not info.local:
        _remember(state_directory, result, key, report)
    return result


async def probe_namespace(
    spec: SandboxSpec, state_directory: str, report: Report = _quiet, *, fresh: bool = False
) -> ProbeResult:
    """As `probe_docker`, with the namespace backend."""
    spec = replace(spec, backend="namespace", sharing="mounted")
    key = _key(spec, state_directory, None)
    if not fresh and (known := _remembered(state_directory, "namespace", key, report)):
        return known
    owner = spec.uid if os.geteuid() == 0 else os.geteuid()
    result = await _probe(spec, state_directory, lambda s: NamespaceBackend(s, source=_CYCLE), owner)
    _remember(state_directory, result, key, report)
    return result


def _picked(result: ProbeResult, spec: SandboxSpec, why: str) -> Picked:
    isolation = namespace.lacks() if result.backend == "namespace" else ""
    return Picked(result.backend, images.reference(spec.image), why, isolation, result)


def _with_copies(result: ProbeResult) -> str:
    return f", with {result.way}: {result.reason.rstrip('.')}" if result.way else ""


def _required(result: ProbeResult) -> ProbeResult:
    if not result.ok:
        raise SandboxError(
            f"The {result.backend} backend doesn't work here: {result.reason}",
            code="backend_unavailable",
            hint="`workbench doctor` says more; --backend auto takes another one.",
        )
    return result


async def _probe(
    spec: SandboxSpec, state_directory: str, make: Callable[[SandboxSpec], _Prober], owner: int
) -> ProbeResult:
    if problem := filesystems.upper_problem(state_directory):
        problem = f"The state directory can't hold layers: {problem}. Set WORKBENCH_STATE."
        return ProbeResult(spec.backend, False, problem)
    overlay, held = await anyio.to_thread.run_sync(_begin, state_directory, spec.image)
    lower = os.path.join(overlay.path, "lower")
    nonce = secrets.token_hex(16)
    try:
        _fill(lower, nonce)
        if os.geteuid() == 0:
            try:
                for path in (lower, overlay.upper_path):
                    _give(path, spec.uid, spec.gid)
            except OSError as error:
                problem = f"This root can't give files to user {spec.uid}: {error.strerror}."
                return ProbeResult(spec.backend, False, problem)
        mount = OverlayMount(lower, overlay.upper_path, overlay.work_path, FALLBACK)
        labels = {**spec.labels, OVERLAY_LABEL: overlay.path}
        backend = make(replace(spec, mounts=(mount,), labels=labels))
        answer, details = await _cycle(backend)
        problem = _answer_problem(answer, nonce, spec.sharing) or _layers_problem(
            lower, overlay.upper_path, nonce, owner
        )
        return ProbeResult(spec.backend, not problem, problem, (*details, *_warnings(backend)), spec.sharing)
    except SandboxError as error:
        if error.code in ("engine_unavailable", "image_unavailable"):
            raise
        return ProbeResult(spec.backend, False, f"{error.message} {error.hint or ''}".strip())
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(_end, state_directory, spec.image, overlay, held)


@contextlib.contextmanager
def _alone(state_directory: str) -> Iterator[None]:
    """While nobody else makes or removes directories of probes: what has no lock then is nobody's."""
    fd = os.open(state_directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _begin(state_directory: str, image: str) -> tuple[OverlayDirectory, OverlayLock]:
    with _alone(state_directory):
        _remove_abandoned(state_directory, image)
        path = os.path.join(state_directory, f"{_PREFIX}{secrets.token_hex(8)}")
        overlay = OverlayDirectory.create(path, "probe")
        # A process that another thread has just forked holds every lock of ours until it executes its program.
        return overlay, overlay.take_lock(_SECONDS)


def _end(state_directory: str, image: str, overlay: OverlayDirectory, held: OverlayLock) -> None:
    try:
        with _alone(state_directory):
            remove_tree(overlay.path, image=image)
    finally:
        held.close()


def _remove_abandoned(state_directory: str, image: str) -> None:
    for name in os.listdir(state_directory):
        if not name.startswith(_PREFIX):
            continue
        path = os.path.join(state_directory, name)
        with contextlib.suppress(OverlayError, FileNotFoundError), OverlayDirectory.open(path).lock():
            remove_tree(path, image=image)


def _fill(lower: str, nonce: str) -> None:
    for name, content in _LOWER.items():
        path = os.path.join(lower, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="ascii") as file:
            file.write(content or nonce)


def _warnings(backend: _Prober) -> tuple[str, ...]:
    return backend.warnings if isinstance(backend, DockerBackend) else ()


async def _cycle(backend: _Prober) -> tuple[dict[str, Any], tuple[str, ...]]:
    try:
        with anyio.fail_after(_SECONDS):
            stream = await backend.start(lambda line: None)
            line = b""
            while not line.endswith(b"\n") and len(line) < _ANSWER_LIMIT:
                line += await stream.receive()
    except TimeoutError as error:
        raise SandboxError(f"The sandbox didn't answer for {_SECONDS} s.") from error
    except (anyio.EndOfStream, anyio.BrokenResourceError) as error:
        said = backend.stderr.decode("utf-8", "replace").strip()
        raise SandboxError(f"The sandbox ended before it answered: {said or 'without a word'}") from error
    finally:
        await backend.stop()
    answer = json.loads(line)
    # Without the layers' paths, which are the probe's own.
    options = [option for option in answer.get("super_options", ()) if "dir=/" not in option]
    return answer, (f"user inside: {answer.get('uid')}", f"overlay options: {','.join(options)}")


def _answer_problem(answer: dict[str, Any], nonce: str, sharing: str) -> str:
    if "error" in answer:
        return f"A step failed inside: {answer['error']}"
    if answer["nonce"] != nonce:
        return "The sandbox doesn't see our files."
    with open(_BOOT_ID, encoding="ascii") as file:
        if sharing == "mounted" and answer["boot_id"] != file.read():
            return "The engine runs on another kernel, so it can't share our files reliably."
    if sharing != "plain" and answer["type"] != "overlay":
        return f"The sandbox sees a {answer['type']} where the overlay should be."
    if "rw" not in answer["options"] or "rw" not in answer["super_options"]:
        return "The overlay is read-only."
    if answer["seen"] != {"opaque": ["new"], "top": _SEEN}:
        return f"The merged view is wrong inside: {answer['seen']}."
    return ""


def _layers_problem(lower: str, upper: str, nonce: str, owner: int) -> str:
    for name, content in _LOWER.items():
        if _content(os.path.join(lower, name)) != (content or nonce):
            return f"The lower layer was changed: {name}."
    names = sorted(os.listdir(upper))
    if names != _UPPER:
        return f"The upper layer has other names than were written: {names}."
    for name in _WHITEOUTS:
        entry = os.lstat(os.path.join(upper, name))
        if not stat.S_ISCHR(entry.st_mode) or entry.st_rdev:
            return f"A deletion isn't recorded as a whiteout: {name}."
    for name, content in _WRITTEN.items():
        path = os.path.join(upper, name)
        if _content(path) != content:
            return f"The upper layer has other bytes than were written: {name}."
        if (uid := os.lstat(path).st_uid) != owner:
            return f"What the sandbox writes belongs to user {uid} and not to {owner}."
    if _attribute(os.path.join(upper, "opaque"), "user.overlay.opaque") != b"y":
        return "A directory that was deleted and made anew isn't marked as opaque."
    if os.listdir(os.path.join(upper, "opaque")) != ["new"]:
        return "A directory that was deleted and made anew has other names than were written."
    if _attribute(os.path.join(upper, "attribute"), "user.workbench.probe") != b"yes":
        return "An extended attribute got lost."
    if stat.S_IMODE(os.lstat(os.path.join(upper, "mode")).st_mode) != 0o640:
        return "A mode got lost."
    return ""


def _content(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _attribute(path: str, name: str) -> bytes:
    return os.getxattr(path, name) if name in os.listxattr(path) else b""


def _give(directory: str, uid: int, gid: int) -> None:
    for parent, _, files in os.walk(directory):
        for path in (parent, *(os.path.join(parent, name) for name in files)):
            os.chown(path, uid, gid)


def _key(spec: SandboxSpec, state_directory: str, info: EngineInfo | None) -> str:
    kernel = os.uname()
    parts = [
        kernel.release,
        kernel.version,
        os.stat(state_directory).st_dev,
        os.geteuid(),
        (spec.uid, spec.gid, spec.groups, spec.runtime, spec.sharing),
        (info.identifier, info.version, info.kernel, info.socket, info.security_options) if info else (),
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _read(state_directory: str, report: Report) -> _Cache:
    try:
        cache = read_json(os.path.join(state_directory, _FILE), _Cache)
    except FileNotFoundError:
        return _Cache()
    except StateError as error:
        report(error.message)
        return _Cache()
    return cache if cache.version == _VERSION else _Cache()


def _remembered(state_directory: str, backend: str, key: str, report: Report) -> ProbeResult | None:
    entry = _read(state_directory, report).passed.get(backend)
    if entry is None or entry.key != key:
        return None
    return ProbeResult(backend, True, entry.reason, entry.details, entry.sharing)


def _remember(state_directory: str, result: ProbeResult, key: str, report: Report) -> None:
    # Only what worked: what didn't may have been put right by the next time.
    before = _read(state_directory, report).passed
    passed = {backend: entry for backend, entry in before.items() if backend != result.backend}
    if result.ok:
        entry = _Entry(key=key, details=result.details, reason=result.reason, sharing=result.sharing)
        passed[result.backend] = entry
    if passed != before:
        write_json(os.path.join(state_directory, _FILE), _Cache(passed=passed))
