"""Published holes in container engines, by version: a warning each, never a refusal.

Distributions repair them without a new upstream number, so that a version alone proves nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from workbench.sandbox.engine import EngineInfo

_Version = tuple[int, int, int, int]
_FINAL = 1 << 30


@dataclass(frozen=True, slots=True)
class Advisory:
    """A hole in a `component` (`runc` or `engine`): what it lets happen, and the first good version of each branch."""

    identifier: str
    component: str
    summary: str
    fixed: tuple[str, ...]


# From the advisories of runc (opencontainers/runc, GHSA) and of the Docker Engine's release notes.
ADVISORIES = (
    Advisory("CVE-2024-21626", "runc", "a container reaches the host through a leaked directory", ("1.1.12",)),
    Advisory("CVE-2024-45310", "runc", "a container creates empty files on the host", ("1.1.14",)),
    Advisory("CVE-2025-31133", "runc", "masked paths give write access to the host", ("1.2.8", "1.3.3", "1.4.0-rc.3")),
    Advisory("CVE-2025-52565", "runc", "/dev/console gives write access to the host", ("1.2.8", "1.3.3", "1.4.0-rc.3")),
    Advisory("CVE-2025-52881", "runc", "redirected writes escape the container", ("1.2.8", "1.3.3", "1.4.0-rc.3")),
    Advisory("CVE-2026-41579", "runc", "an image's /dev link misleads the set-up", ("1.3.6", "1.4.3", "1.5.0-rc.3")),
    Advisory("CVE-2024-41110", "engine", "authorization plugins are bypassed", ("25.0.6", "26.1.5", "27.1.1")),
    Advisory("CVE-2026-34040", "engine", "authorization plugins are bypassed", ("29.3.1",)),
    Advisory("CVE-2026-41567", "engine", "copying into a container runs its program on the host", ("29.5.1",)),
    Advisory("CVE-2026-17106", "engine", "unpacking an archive writes outside of it", ("29.7.0",)),
)


def known_holes(info: EngineInfo) -> tuple[Advisory, ...]:
    """The published holes that an engine has, going by its version and its runc's; none where it doesn't tell."""
    versions = {"runc": info.runc, "engine": "" if info.podman else info.version}
    return tuple(advisory for advisory in ADVISORIES if _affected(versions[advisory.component], advisory.fixed))


def _affected(version: str, fixed: tuple[str, ...]) -> bool:
    here = _parse(version)
    if here is None:
        return False
    good = sorted(parsed for text in fixed if (parsed := _parse(text)) is not None)
    branch = next((first for first in good if first[:2] == here[:2]), None)
    if branch is None:
        # A branch of its own that never got the repair, or one that began with it.
        return here < next((first for first in good if first[:2] > here[:2]), (0, 0, 0, 0))
    return here < branch


def _parse(version: str) -> _Version | None:
    match = re.match(r"v?(\d+)\.(\d+)\.(\d+)(?:-rc\.?(\d+))?", version)
    if match is None:
        return None
    major, minor, patch, candidate = match.groups()
    return int(major), int(minor), int(patch), int(candidate) if candidate else _FINAL
