"""The process of a keeper: `python -m workbench.sandbox.keeper_process OVERLAY LOCK_FD CONTROL_FD HOW`.

Over CONTROL_FD, a Unix socket, it and whoever started it talk in lines of JSON. First it's told `spec` and the mount's
`name`, and, where HOW is `adopts`, gets the descriptors of a sandbox that was started already; without that nothing is
mounted. It says `{"report": sentence}` while it starts one itself, `{"hello": true}` once the supervisor has, is told the
mount's `epoch_ns`, which is on disk by then, and says `{"ready": true}`, or `{"error": …}` instead of anything.

What has to be imported for an event loop and for clients is imported while the sandbox comes up.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import traceback
from typing import Any, NamedTuple

from workbench.errors import OptionsError, SandboxError, WorkbenchError
from workbench.sandbox import frames
from workbench.sandbox.backend import Backend, Limits, OverlayMount, SandboxSpec
from workbench.sandbox.backends import make_backend
from workbench.vfs.overlay_lock import OverlayLock

STARTS, ADOPTS = "starts", "adopts"
"""Whether it starts the sandbox itself, or gets one that runs: then it gets ready before it's told of anything."""

_ORDERS_SIZE = 1 << 20
_DESCRIPTORS = 8


class _Starter:
    """Whoever started us, and may be gone at any time: the sandbox is there for the next one."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    def sandbox(self) -> _Sandbox | None:
        """Wait for what we are to keep; None where there will be nothing."""
        received, handed, _, _ = socket.recv_fds(self._control, _ORDERS_SIZE, _DESCRIPTORS)
        while received and not received.endswith(b"\n"):
            piece = self._control.recv(_ORDERS_SIZE)
            received = received + piece if piece else b""
        for descriptor in handed:
            os.set_inheritable(descriptor, False)
        self._control.setblocking(False)
        if not received:
            return None
        orders = json.loads(received)
        spec = spec_from_json(orders["spec"])
        return _Sandbox(spec, make_backend(spec, orders["name"]), tuple(handed))

    def report(self, sentence: str) -> None:
        self._tell({"report": sentence})

    async def mounted(self) -> int:
        """Say that the sandbox answers; returns the mount's epoch."""
        import asyncio

        self._tell({"hello": True})
        told = await asyncio.get_running_loop().sock_recv(self._control, _ORDERS_SIZE)
        if not told:
            raise SandboxError("Whoever started the sandbox has gone.", code="keeper_failed")
        return int(json.loads(told)["epoch_ns"])

    def ready(self) -> None:
        self._tell({"ready": True})
        self._control.close()

    def failed(self, error: WorkbenchError | OSError) -> None:
        told = (
            error if isinstance(error, (SandboxError, OptionsError)) else SandboxError(str(error), code="keeper_failed")
        )
        self._tell({"error": frames.failure_content(told)})

    def _tell(self, content: frames.Json) -> None:
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps(content).encode() + b"\n")


def spec_from_json(content: dict[str, Any]) -> SandboxSpec:
    """The other way round of `dataclasses.asdict(spec)`, by way of JSON. Raises KeyError, TypeError."""
    content["mounts"] = tuple(OverlayMount(**mount) for mount in content["mounts"])
    content["groups"] = tuple(content["groups"])
    content["limits"] = Limits(**content["limits"])
    return SandboxSpec(**content)


class _Sandbox(NamedTuple):
    """What is to be kept: `handed` are the descriptors of one that runs already."""

    spec: SandboxSpec
    backend: Backend
    handed: tuple[int, ...]


def _serve(path: str, lock: OverlayLock, starter: _Starter, launched: _Sandbox | None) -> None:
    import anyio

    from workbench.sandbox.keeper import Keeper

    async def keep() -> None:
        if sandbox := launched or starter.sandbox():
            keeper = Keeper(path, lock, sandbox.spec, sandbox.backend)
            await keeper.run(starter.report, starter.mounted, starter.ready, sandbox.handed)

    anyio.run(keep, backend="asyncio")


def main() -> None:
    """Run as the module's docstring says; returns when the sandbox is gone."""
    path, lock_fd, control_fd, how = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    # Nobody's child: whoever started us needn't wait for our end.
    if os.fork():
        os._exit(0)
    os.setsid()
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    starter = _Starter(control)
    try:
        # Whoever hears that it failed finds the overlay free.
        with contextlib.closing(OverlayLock.adopt(path, lock_fd)) as lock:
            launched = starter.sandbox() if how == STARTS else None
            if launched:
                launched.backend.launch()
            if launched or how == ADOPTS:
                _serve(path, lock, starter, launched)
    except (WorkbenchError, OSError) as error:
        traceback.print_exc()
        starter.failed(error)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
