"""The id of a session as the name of a file or a directory."""

from __future__ import annotations

import hashlib
from urllib.parse import quote

from workbench.errors import OptionsError

_LONGEST_ID = 256
_LONGEST_NAME = 200


def file_name(session_id: str) -> str:
    """A name of plain ASCII characters, at most 200 bytes long, that no other id has.

    What is unfit for a name is percent-encoded, a leading dot too; where that gets too long the name is `sha256=` and the
    hash of the id. Raises OptionsError for what can't be an id.
    """
    try:
        encoded = session_id.encode()
    except UnicodeEncodeError as error:
        raise OptionsError(f"The session id {session_id!r} isn't text.") from error
    if not 0 < len(session_id) <= _LONGEST_ID:
        raise OptionsError(
            f"A session id of {len(session_id)} characters can't be.", hint=f"Use 1 to {_LONGEST_ID} characters."
        )
    name = quote(encoded, safe="")
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    # No encoded id has a plain '=' in it, so that an id which looks like a hash gets another name.
    return name if len(name) <= _LONGEST_NAME else f"sha256={hashlib.sha256(encoded).hexdigest()}"
