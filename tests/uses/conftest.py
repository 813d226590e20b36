"""An agent at work as its person sets it up: a provider over HTTP in the configuration, and the `workbench` command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from workbench.testing import StubModelServer

Configure = Callable[..., None]


@pytest.fixture
def configure(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> Configure:
    """Makes the person's configuration: the provider `stub`, of this wire format, and what else is to be in it."""

    def write(stub: StubModelServer, more: str = "", api: str = "chat") -> None:
        directory = tmp_path / "config"
        directory.mkdir(exist_ok=True)
        version = "/v1" if api in ("chat", "responses") else ""
        provider = f'[providers.stub]\napi = "{api}"\nbase_url = "{stub.url}{version}"\n'
        (directory / "config.toml").write_text(provider + more)
        monkeypatch.setenv("WORKBENCH_CONFIG", str(directory))

    return write
