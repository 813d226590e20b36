"""The published schema of sessions and events."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from workbench.agent.prompt import create_message
from workbench.protocol import events
from workbench.protocol.events import Event, MessageCompleted, TextEvent, session_events
from workbench.protocol.messages import ImageAttachment
from workbench.protocol.schemas import session_schema

PUBLISHED = resources.files("workbench.protocol") / "sessions.schema.json"


def test_the_published_schema_is_that_of_the_models() -> None:
    """Write it anew with `python -m workbench.protocol.schemas > workbench/protocol/sessions.schema.json`."""
    assert json.loads(PUBLISHED.read_text()) == session_schema()


def test_every_event_is_in_the_schema_by_its_type() -> None:
    schema = session_schema()
    mapping = schema["$defs"]["SessionEvent"]["discriminator"]["mapping"]
    classes = [value for value in vars(events).values() if isinstance(value, type) and issubclass(value, Event)]
    assert set(mapping) == {value.model_fields["type"].default for value in classes if value is not Event}
    assert all(reference.removeprefix("#/$defs/") in schema["$defs"] for reference in mapping.values())


@pytest.mark.parametrize(
    "event",
    [
        TextEvent(seq=1, session_id="s", run_id="r", text="x"),
        MessageCompleted(
            seq=2,
            session_id="s",
            run_id="r",
            message=create_message("user", "x", images=[ImageAttachment(media_type="image/png", data=b"\xff\x00")]),
        ),
    ],
)
def test_what_is_sent_fits_the_schema_and_is_read_back(event: Any) -> None:
    schema = session_schema()
    text = session_events.dump_json(event)
    validator = Draft202012Validator({"$ref": "#/$defs/SessionEvent", **schema})
    assert not list(validator.iter_errors(json.loads(text)))
    assert list(validator.iter_errors({**json.loads(text), "seq": "x"}))
    assert session_events.validate_json(text) == event
