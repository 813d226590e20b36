"""Public helpers for tests: conformance suites, freezing, scripted models, model providers.

`StorageContract`, `OverlayContract`, `SandboxContract`, `HistoryContract`, `LockerContract`, `SessionStoreContract` and
`SessionAdapterContract` are classes that pytest collects once they're subclassed, and need nothing but pytest's `tmp_path`;
with `pytest.register_assert_rewrite("workbench.testing")` in your conftest.py their failures show the values. `freeze` makes an
overlay's whole content its lower layer. `ScriptedModel` answers from a script of `Turn`s; `RecordedModel` from
a file; `StubModelServer` is a model provider on this machine, which answers from a script in every wire format, and
`ChaosTransport` a network that fails now and then.
"""

from __future__ import annotations

from workbench.testing.chaos_transport import ChaosTransport
from workbench.testing.freezing import freeze
from workbench.testing.history_contract import HistoryContract
from workbench.testing.locker_contract import LockerContract
from workbench.testing.model_formats import StubCall, StubReply, StubUsage
from workbench.testing.model_server import StubModelServer, StubRequest
from workbench.testing.overlay_contract import OverlayContract
from workbench.testing.recorded_model import RecordedModel
from workbench.testing.sandbox_contract import SandboxContract, SandboxLayers
from workbench.testing.scripted_model import ScriptedModel, Turn
from workbench.testing.session_adapter_contract import CountingPlatform, SessionAdapterContract
from workbench.testing.session_store_contract import SessionStoreContract
from workbench.testing.storage_contract import StorageContract
from workbench.testing.trees import Directory, File, Link, Tree

__all__ = [
    "ChaosTransport",
    "CountingPlatform",
    "Directory",
    "File",
    "HistoryContract",
    "Link",
    "LockerContract",
    "OverlayContract",
    "RecordedModel",
    "SandboxContract",
    "SandboxLayers",
    "ScriptedModel",
    "SessionAdapterContract",
    "SessionStoreContract",
    "StorageContract",
    "StubCall",
    "StubModelServer",
    "StubReply",
    "StubRequest",
    "StubUsage",
    "Tree",
    "Turn",
    "freeze",
]
