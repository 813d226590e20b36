"""The JSON schema of what is stored and sent: sessions, their events, requests for approval."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from workbench.protocol.events import session_events
from workbench.protocol.sessions import ApprovalRequest, CreateSessionRequest, SessionDetail, SessionSummary

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def session_schema() -> dict[str, Any]:
    """One schema document whose `$defs` hold every model by its name; an event is one of `SessionEvent`."""
    models = (SessionDetail, SessionSummary, CreateSessionRequest, ApprovalRequest)
    _, document = models_json_schema([(model, "serialization") for model in models], title="workbench sessions")
    event = session_events.json_schema(mode="serialization")
    definitions = {**document["$defs"], **event.pop("$defs"), "SessionEvent": event}
    return {"$schema": _DIALECT, "title": document["title"], "$defs": dict(sorted(definitions.items()))}


if __name__ == "__main__":
    import json

    print(json.dumps(session_schema(), indent=2))
