"""A failure to read a session, which is a value, as the error of who asked for that one session."""

from __future__ import annotations

from workbench.errors import SessionNotFoundError, TranscriptError
from workbench.transcripts.models import ReadFailed, SessionNotFound, SessionReadError
from workbench.vfs import paths


def unread(failure: SessionReadError) -> SessionNotFoundError | TranscriptError:
    """A failure to read a session as an error."""
    shown = paths.display(failure.path.encode("utf-8", "surrogateescape"))
    if isinstance(failure, SessionNotFound):
        return SessionNotFoundError(f"The session {shown} isn't there any more.")
    if isinstance(failure, ReadFailed):
        return TranscriptError(f"The session {shown} can't be read: {failure.message}.")
    return TranscriptError(
        f"The session {shown} is of a generation of {failure.agent} that isn't read here: {failure.generation}."
    )
