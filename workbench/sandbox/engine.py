"""Finding the container engine, and talking to it.

The few calls that starting a sandbox takes go over a small client of our own: importing the engine's SDK costs 85 ms,
half of what `docker run` takes as a whole. What isn't in a hurry (building and pulling images) uses the SDK.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import anyio
import anyio.to_thread

from workbench.errors import SandboxError
from workbench.sandbox.attach import AttachStream, upgrade
from workbench.sandbox.dialing import dial, is_remote
from workbench.sandbox.unix_stream import UnixStream

DEFAULT_SOCKET = "/var/run/docker.sock"
_REQUEST_SECONDS = 120
_READ_SIZE = 256 << 10
_HINT_START = "Start it (on most systems: sudo systemctl start docker), or run `workbench doctor`."
_HINT_LOCAL = (
    "Point DOCKER_HOST, or the docker context, at an engine: unix:///path/to/docker.sock, ssh://host, tcp://host."
)
_CERTIFICATES = "ca.pem"


class EngineRefusedError(SandboxError):
    """The engine answered a request with an error; `status` is the HTTP status, the message the engine's own text."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message, code="sandbox_failed")
        self.status = status


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine says about itself.

    `cgroup_version` is "1", "2" or empty. `kernel` is the engine's, another than ours in a virtual machine.
    `unenforced` names the limits that it can't enforce: `memory`, `processes`, `processor time`. `local` is False where
    it runs in a virtual machine or on another one, and so doesn't see our files. `runc` and `containerd` are empty where
    it doesn't tell.
    """

    identifier: str
    socket: str
    version: str
    api_version: str
    operating_system: str
    kernel: str
    storage_driver: str
    cgroup_version: str
    cgroup_driver: str
    security_options: tuple[str, ...]
    rootless: bool
    userns_remap: bool
    podman: bool
    unenforced: tuple[str, ...]
    local: bool
    runc: str
    containerd: str
    runtimes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """An image that the engine has: its id, its size in bytes, and the labels that it was built with."""

    identifier: str
    size: int
    labels: dict[str, str]


def find_socket(environment: Mapping[str, str] | None = None) -> str:
    """Where the engine listens: what `DOCKER_HOST`, else the docker context, names, else the usual path.

    Args:
        environment: the process's own where it isn't given.

    Returns the path of a Unix socket, which need not exist, or a URL as of `dialing.dial`. Raises SandboxError
    (engine_unavailable) where another kind of place is named, or the context can't be read.
    """
    env = os.environ if environment is None else environment
    host = env.get("DOCKER_HOST", "") or _context_host(env)
    if not host:
        return DEFAULT_SOCKET
    scheme, _, rest = host.partition("://")
    if not rest or scheme not in ("unix", "ssh", "tcp"):
        raise SandboxError(
            f"The container engine at {host} can't be reached from here.", code="engine_unavailable", hint=_HINT_LOCAL
        )
    return rest if scheme == "unix" else host


def find_certificates(environment: Mapping[str, str] | None = None) -> str:
    """The directory with what TLS to the engine takes, as docker's own command line finds it; empty where there's none."""
    env = os.environ if environment is None else environment
    directory = _configuration(env)
    if not env.get("DOCKER_HOST"):
        directory = os.path.join(directory, "contexts", "tls", _context_directory(env), "docker")
    elif env.get("DOCKER_TLS_VERIFY") or env.get("DOCKER_CERT_PATH"):
        directory = env.get("DOCKER_CERT_PATH") or directory
    else:
        return ""
    return directory if os.path.exists(os.path.join(directory, _CERTIFICATES)) else ""


def _configuration(env: Mapping[str, str]) -> str:
    return env.get("DOCKER_CONFIG") or os.path.join(env.get("HOME") or "/", ".docker")


def _context_directory(env: Mapping[str, str]) -> str:
    name = env.get("DOCKER_CONTEXT", "")
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if not name:
            with open(os.path.join(_configuration(env), "config.json"), "rb") as file:
                name = str(json.load(file).get("currentContext", ""))
    return hashlib.sha256(name.encode()).hexdigest()


def _context_host(env: Mapping[str, str]) -> str:
    directory = _configuration(env)
    name = env.get("DOCKER_CONTEXT", "")
    where = os.path.join(directory, "config.json")
    try:
        if not name:
            with open(where, "rb") as file:
                name = json.load(file).get("currentContext", "")
        if name in ("", "default"):
            return ""
        digest = hashlib.sha256(name.encode()).hexdigest()
        where = os.path.join(directory, "contexts", "meta", digest, "meta.json")
        with open(where, "rb") as file:
            return str(json.load(file)["Endpoints"]["docker"]["Host"])
    except FileNotFoundError:
        if not name:
            return ""
        raise SandboxError(
            f"There is no docker context called {name}.",
            code="engine_unavailable",
            hint="`docker context ls` shows those that there are; DOCKER_CONTEXT or `docker context use` picks one.",
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SandboxError(
            f"The docker configuration {where} can't be read: {error}.", code="engine_unavailable", hint=_HINT_LOCAL
        ) from error


class Engine:
    """A container engine that speaks the Docker Engine API. Its methods block, but `attach`."""

    def __init__(self, path: str | None = None) -> None:
        """`path`: the engine's socket, or URL; found as `find_socket` says where it isn't given."""
        self.path = find_socket() if path is None else path
        self.certificates = find_certificates() if self.is_remote else ""
        """Where `ca.pem`, `cert.pem` and `key.pem` are, for one at `tcp://`."""
        self.is_podman = False
        """Whether it's Podman, which differs from Docker here and there; known after `ping`."""
        self._prefix = ""
        self._rootless: bool | None = None

    @property
    def is_remote(self) -> bool:
        """Whether it's on another machine, for all that is known: it doesn't see our files."""
        return is_remote(self.path)

    def ping(self) -> str:
        """Make sure that it answers, and agree on the version of its API.

        Returns that version, the newest that the engine speaks. Raises SandboxError (engine_unavailable).
        """
        status, headers, body = self._exchange("GET", "/_ping", b"")
        if status != 200:
            raise SandboxError(
                f"The container engine at {self.path} isn't well: {body.decode('utf-8', 'replace').strip()}.",
                code="engine_unavailable",
                hint=_HINT_START,
            )
        version = headers.get("api-version", "")
        self.is_podman = "libpod-api-version" in headers
        self._prefix = f"/v{version}" if version else ""
        return version

    def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        *,
        seconds: float | None = _REQUEST_SECONDS,
    ) -> Any:
        """Make one request of the API.

        Args:
            method: `GET`, `POST`, `DELETE`.
            path: below the version, such as `/containers/json`; names in it are already quoted.
            query: the query's parameters.
            body: sent as JSON.
            seconds: how long the engine may be silent; None waits for ever.

        Returns what the answer's JSON holds, None where it's empty. Raises EngineRefusedError, and SandboxError
        (engine_unavailable) where the engine can't be reached.
        """
        if not self._prefix:
            self.ping()
        target = self._prefix + path + ("?" + urlencode(query) if query else "")
        content = json.dumps(body).encode() if body is not None else b""
        status, _, answer = self._exchange(method, target, content, seconds)
        if status >= 400:
            raise EngineRefusedError(status, _message(answer))
        return json.loads(answer) if answer.strip() else None

    def facts(self) -> EngineInfo:
        """Read what the engine says about itself. Raises as `call`."""
        version = self.ping()
        info = self.call("GET", "/info")
        about = self.call("GET", "/version")
        components = {str(c.get("Name", "")).lower(): str(c.get("Version", "")) for c in about.get("Components") or ()}
        security = tuple(str(option) for option in info.get("SecurityOptions") or ())
        rootless = _says_rootless(info) or self.rootless()
        system = str(info.get("OperatingSystem", ""))
        return EngineInfo(
            identifier=str(info.get("ID", "")),
            socket=self.path,
            version=str(about.get("Version", "")),
            api_version=version,
            operating_system=system,
            kernel=str(info.get("KernelVersion", "")),
            storage_driver=str(info.get("Driver", "")),
            cgroup_version=str(info.get("CgroupVersion", "")),
            cgroup_driver=str(info.get("CgroupDriver", "")),
            security_options=security,
            rootless=rootless,
            userns_remap=any("name=userns" in option for option in security),
            podman=self.is_podman,
            unenforced=_unenforced(info, rootless),
            local=not self.is_remote and not any(name in system for name in ("Docker Desktop", "OrbStack")),
            runc=components.get("runc", ""),
            containerd=components.get("containerd", ""),
            runtimes=tuple(sorted(info.get("Runtimes") or ())),
        )

    def rootless(self) -> bool:
        """Whether whoever listens on the socket isn't root, as the kernel tells; asking the engine takes 5 ms and more.

        Raises SandboxError (engine_unavailable).
        """
        if self.is_remote:
            if self._rootless is None:
                self._rootless = _says_rootless(self.call("GET", "/info"))
            return self._rootless
        with self._connect() as connection:
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return bool(struct.unpack("3i", credentials)[1])

    def unenforced(self) -> tuple[str, ...]:
        """The limits that it takes without a word, and doesn't enforce; as in `EngineInfo`. Raises as `call`."""
        # One that is root says so in its answer to the request itself, and isn't worth another one.
        return _unenforced(self.call("GET", "/info"), rootless=True) if self.rootless() else ()

    def image(self, name: str) -> ImageFacts | None:
        """Look an image up by name or id; None where the engine hasn't got it.

        Raises as `call`, and SandboxError (image_unavailable) for what can't be an image's name.
        """
        try:
            found = self.call("GET", f"/images/{quote(name, safe='/:@')}/json")
        except EngineRefusedError as refusal:
            if refusal.status == 404:
                return None
            if refusal.status == 400:
                raise SandboxError(
                    f"{name!r} can't be an image's name: {refusal.message}",
                    code="image_unavailable",
                    hint="Names look like python:3.12-slim or registry.example.com/team/image:tag.",
                ) from refusal
            raise
        config = found.get("Config") or {}
        return ImageFacts(str(found["Id"]), int(found.get("Size") or 0), dict(config.get("Labels") or {}))

    def containers(self, label: str) -> list[dict[str, Any]]:
        """All containers, running or not, with a label `name=value`, as the API lists them. Raises as `call`."""
        filters = json.dumps({"label": [label]})
        return list(self.call("GET", "/containers/json", {"all": "1", "filters": filters}) or ())

    def volumes(self, label: str) -> list[dict[str, Any]]:
        """All volumes with a label `name=value`, as the API lists them. Raises as `call`."""
        filters = json.dumps({"label": [label]})
        return list(self.call("GET", "/volumes", {"filters": filters}).get("Volumes") or ())

    def volumes_of(self, name: str) -> list[dict[str, Any]]:
        """All volumes that are called `name`, or `name-` and something, as the API lists them. Raises as `call`.

        A label doesn't tell: for a container whose volume is gone an engine makes another, without any.
        """
        found = self.call("GET", "/volumes", {"filters": json.dumps({"name": [name]})}).get("Volumes") or ()
        return [volume for volume in found if str(volume["Name"]) == name or str(volume["Name"]).startswith(f"{name}-")]

    def remove_container(self, name: str) -> None:
        """Kill and remove a container with its anonymous volumes; harmless where it isn't there. Raises as `call`."""
        try:
            self.call("DELETE", f"/containers/{quote(name, safe='')}", {"force": "1", "v": "1"})
        except EngineRefusedError as refusal:
            if refusal.status != 404:
                raise

    def remove_volume(self, name: str) -> None:
        """Unmount and remove a volume; harmless where it isn't there. Raises as `call`, status 409 if it's in use."""
        try:
            self.call("DELETE", f"/volumes/{quote(name, safe='')}")
        except EngineRefusedError as refusal:
            if refusal.status != 404:
                raise

    async def attach(self, container: str) -> AttachStream:
        """Connect to a container that is created and not yet started.

        Returns its stream. Raises EngineRefusedError, SandboxError (engine_unavailable).
        """
        query = urlencode({"stream": "1", "stdin": "1", "stdout": "1", "stderr": "1"})
        request = (
            f"POST {self._prefix}/containers/{quote(container, safe='')}/attach?{query} HTTP/1.1\r\n"
            "Host: engine\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n"
        )
        try:
            if self.is_remote:
                opened = UnixStream(await anyio.to_thread.run_sync(self._connect))
            else:
                opened = await UnixStream.connect(self.path)
            stream, head, rest = await upgrade(opened, request.encode("ascii"))
        except OSError as error:
            raise _unreachable(self.path, error) from error
        except (anyio.EndOfStream, anyio.BrokenResourceError) as error:
            raise _gone(self.path) from error
        status, headers = _parse_head(head)
        if status not in (101, 200):
            await stream.aclose()
            length = int(headers.get("content-length", "0") or 0)
            raise EngineRefusedError(status, _message(rest[:length] if length else rest))
        return AttachStream(stream, rest)

    def _connect(self) -> socket.socket:
        try:
            return dial(self.path, self.certificates, _REQUEST_SECONDS)
        except OSError as error:
            raise _unreachable(self.path, error) from error
        except ValueError as error:
            raise SandboxError(
                f"The container engine at {self.path} can't be reached: {error}.",
                code="engine_unavailable",
                hint="DOCKER_CERT_PATH names a directory with ca.pem, cert.pem and key.pem, and DOCKER_TLS_VERIFY is 1.",
            ) from error

    def _exchange(
        self, method: str, target: str, body: bytes, seconds: float | None = _REQUEST_SECONDS
    ) -> tuple[int, dict[str, str], bytes]:
        head = f"{method} {target} HTTP/1.1\r\nHost: engine\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        if body:
            head += "Content-Type: application/json\r\n"
        received = bytearray()
        with self._connect() as connection:
            connection.settimeout(seconds)
            try:
                connection.sendall(head.encode("ascii") + b"\r\n" + body)
                while piece := connection.recv(_READ_SIZE):
                    received += piece
            except TimeoutError as error:
                raise SandboxError(
                    f"The container engine at {self.path} didn't answer for {seconds} s.",
                    code="engine_unavailable",
                    hint="Look at its log (journalctl -u docker); it may need a restart.",
                ) from error
            except OSError as error:
                raise _gone(self.path) from error
        answer, _, rest = bytes(received).partition(b"\r\n\r\n")
        try:
            status, headers = _parse_head(answer)
            return status, headers, _unchunked(rest) if headers.get("transfer-encoding", "") == "chunked" else rest
        except (ValueError, IndexError) as error:
            raise _gone(self.path) from error


def _says_rootless(info: dict[str, Any]) -> bool:
    return bool(info.get("Rootless")) or any("rootless" in str(option) for option in info.get("SecurityOptions") or ())


def _unenforced(info: dict[str, Any], rootless: bool) -> tuple[str, ...]:
    limits = (("memory", "MemoryLimit"), ("processes", "PidsLimit"), ("processor time", "CpuCfsQuota"))
    # The first version of control groups is root's alone, whatever Podman says of it.
    without = info.get("CgroupDriver") == "none" or (rootless and str(info.get("CgroupVersion")) == "1")
    return tuple(name for name, enforced in limits if without or not info.get(enforced))


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return int(first.split(" ", 2)[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


def _unchunked(data: bytes) -> bytes:
    whole = bytearray()
    while True:
        line, _, data = data.partition(b"\r\n")
        size = int(line.split(b";")[0], 16)
        if not size:
            return bytes(whole)
        whole += data[:size]
        data = data[size + 2 :]


def _message(answer: bytes) -> str:
    text = answer.decode("utf-8", "replace").strip()
    try:
        return str(json.loads(text)["message"]).strip()
    except (ValueError, KeyError, TypeError):
        return text


def _gone(path: str) -> SandboxError:
    return SandboxError(
        f"The container engine at {path} closed the connection.", code="engine_unavailable", hint=_HINT_START
    )


def _unreachable(path: str, error: OSError) -> SandboxError:
    if isinstance(error, PermissionError):
        return SandboxError(
            f"This user may not talk to the container engine at {path}.",
            code="engine_unavailable",
            hint="Join the group that may (sudo usermod -aG docker $USER, then log in again), or use a rootless one.",
        )
    what = "there is no such socket" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
    return SandboxError(
        f"No container engine answers at {path}: {what.lower()}.", code="engine_unavailable", hint=_HINT_START
    )
