from __future__ import annotations

import pytest

from workbench.vfs import syscalls


@pytest.fixture(params=["openat2", "walk"])
def resolver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Paths are opened by the kernel's openat2, or by the walk that stands in for it."""
    if request.param == "walk":
        monkeypatch.setattr(syscalls, "_has_openat2", lambda: False)
    elif not syscalls._has_openat2():
        pytest.skip("this kernel, or a filter, has no openat2")
    return str(request.param)
