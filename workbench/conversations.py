"""The conversation of a session as it lies on the disk, to be looked at: no lock is taken, and nothing is set aside."""

from __future__ import annotations

import os
from typing import TypeVar

from pydantic import ValidationError

from workbench.errors import StateError
from workbench.protocol.sessions import SessionSummary
from workbench.vfs import paths

FILE = "session.json"

_Model = TypeVar("_Model", bound=SessionSummary)


def stored(directory: str, model: type[_Model]) -> _Model | None:
    """What is kept of a conversation, all of it or what a list shows, by the model that it's read as.

    `directory` is the conversation's, `WorkspaceDirectory.conversation_path`. None where there is no conversation. Raises
    StateError (state_corrupt) where it can't be read, OSError.
    """
    path = os.path.join(directory, FILE)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise StateError(
            f"The conversation in {paths.display(os.fsencode(path))} can't be read.",
            hint="The next run of its session sets it aside and begins another one.",
        ) from error
