"""Public helpers for tests: conformance suites for storages, overlays and sandboxes, freezing, model providers.

`StorageContract`, `OverlayContract` and `SandboxContract` are classes that pytest collects once they're subclassed, and
need nothing but pytest's `tmp_path`; with `pytest.register_assert_rewrite("workbench.testing")` in your conftest.py their
failures show the values. `freeze` makes an overlay's whole content its lower layer.
`StubModelServer` is a model provider on this machine, which answers from a script in every wire format.
"""

from __future__ import annotations

from workbench.testing.freezing import freeze
from workbench.testing.model_formats import StubCall, StubReply, StubUsage
from workbench.testing.model_server import StubModelServer, StubRequest
from workbench.testing.overlay_contract import OverlayContract
from workbench.testing.sandbox_contract import SandboxContract, SandboxLayers
from workbench.testing.storage_contract import StorageContract
from workbench.testing.trees import Directory, File, Link, Tree

__all__ = [
    "Directory",
    "File",
    "Link",
    "OverlayContract",
    "SandboxContract",
    "SandboxLayers",
    "StorageContract",
    "StubCall",
    "StubModelServer",
    "StubReply",
    "StubRequest",
    "StubUsage",
    "Tree",
    "freeze",
]
