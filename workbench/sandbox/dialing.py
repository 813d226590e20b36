"""A connection to a container engine, wherever that listens: at a Unix socket, behind TLS, or at the far end of ssh.

Each is had as a connected Unix socket, whose other end is the engine, a thread that speaks TLS, or ssh itself: so whoever
uses it needn't know, and can wait for it in any way.
"""

from __future__ import annotations

import shlex
import socket
import subprocess
import threading
from urllib.parse import SplitResult, urlsplit


def is_remote(address: str) -> bool:
    """Whether an engine's address isn't the path of a Unix socket, so that it can't see this machine's files."""
    return "://" in address


def dial(address: str, certificates: str, seconds: float | None) -> socket.socket:
    """Connect to an engine.

    Args:
        address: the path of a Unix socket, `ssh://[user@]host[:port][/path of its socket]` or `tcp://host[:port]`.
        certificates: a directory with `ca.pem`, `cert.pem` and `key.pem`, by which an engine at `tcp://` is known and
            knows us. Without it only the loopback is talked to.
        seconds: how long connecting may take.

    Returns a Unix socket. Raises OSError, ValueError for an address that can't be.
    """
    if not is_remote(address):
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.settimeout(seconds)
            connected.connect(address)
        except BaseException:
            connected.close()
            raise
        return connected
    parts = urlsplit(address)
    if not parts.hostname:
        raise ValueError(f"{address} names no host")
    near, far = socket.socketpair()
    try:
        if parts.scheme == "ssh":
            _start_ssh(parts, far)
        else:
            # Imported here since TLS takes longer to import than a sandbox has.
            from workbench.sandbox import tls_dialing

            server = tls_dialing.connect(str(parts.hostname), parts.port, certificates, seconds)
            threading.Thread(target=tls_dialing.pump, args=(server, far), daemon=True).start()
    except BaseException:
        near.close()
        far.close()
        raise
    near.settimeout(seconds)
    return near


def _start_ssh(parts: SplitResult, far: socket.socket) -> None:
    """Have ssh start what docker's own command line uses: a program that passes bytes on to the engine there."""
    there = ["docker", *([f"--host=unix://{parts.path}"] if parts.path.strip("/") else []), "system", "dial-stdio"]
    # Nobody is there to be asked: the sandbox's keeper uses it, too.
    command = ["ssh", "-T", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"]
    command += ["-l", parts.username] if parts.username else []
    command += ["-p", str(parts.port)] if parts.port else []
    with far:
        process = subprocess.Popen(
            [*command, "--", str(parts.hostname), shlex.join(there)],
            stdin=far.fileno(),
            stdout=far.fileno(),
            start_new_session=True,
        )
    threading.Thread(target=process.wait, daemon=True).start()
