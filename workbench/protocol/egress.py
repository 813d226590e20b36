"""What is told of a request that left, or wanted to leave, a sandbox."""

from __future__ import annotations

from workbench.protocol.records import Frozen


class EgressEvent(Frozen):
    """One request through the proxy or with a secret: where to, whether it was let, and how much went each way.

    `kind` is `proxy` or `secret` (`secret` then names it, never its value). `verdict` is `allowed`, `refused` (a rule),
    `failed` (the host), `limited` (cut at the limit of bytes); `reason` says why. `sent` and `received` are bytes at
    the host's end, `status` that of the response, 0 in a tunnel. Times are of the real-time clock.
    """

    version: int = 1
    kind: str
    method: str
    host: str
    port: int
    secret: str = ""
    verdict: str
    reason: str = ""
    address: str = ""
    status: int = 0
    sent: int = 0
    received: int = 0
    began_ns: int
    ended_ns: int
