"""Public helpers for tests: conformance suites for storages, overlays, sandboxes and session adapters, and freezing.

`StorageContract`, `OverlayContract`, `SandboxContract` and `SessionAdapterContract` are classes that pytest collects once
they're subclassed, and need nothing but pytest's `tmp_path`; with `pytest.register_assert_rewrite("workbench.testing")` in
your conftest.py their failures show the values. `freeze` makes an overlay's whole content its lower layer.
"""

from __future__ import annotations

from workbench.testing.freezing import freeze
from workbench.testing.overlay_contract import OverlayContract
from workbench.testing.sandbox_contract import SandboxContract, SandboxLayers
from workbench.testing.session_adapter_contract import CountingPlatform, SessionAdapterContract
from workbench.testing.storage_contract import StorageContract
from workbench.testing.trees import Directory, File, Link, Tree

__all__ = [
    "CountingPlatform",
    "Directory",
    "File",
    "Link",
    "OverlayContract",
    "SandboxContract",
    "SandboxLayers",
    "SessionAdapterContract",
    "StorageContract",
    "Tree",
    "freeze",
]
