"""What a test needs of its machine beside this project."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import NoReturn

import pytest


def unavailable(reason: str) -> NoReturn:
    """Skip, saying why; in CI, where everything can be had, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason, allow_module_level=True)


def need_program(name: str, path: str | None = None) -> None:
    """Go on only where a program is installed, on this search path or the usual one."""
    if shutil.which(name, path=path) is None:
        unavailable(f"{name} isn't installed")


def without_namespaces() -> list[str]:
    """What goes before a command that is to find no user namespaces, and no rights to do without; it's this user's."""
    script = 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"'
    prefix = ["unshare", "-Ur", "sh", "-c", script, "sh"]
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("there are no user namespaces here that could be switched off in one")
    return prefix
