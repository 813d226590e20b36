"""The person's editor, on a text of ours."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import tempfile

from workbench.errors import OptionsError

_SUFFIX = re.compile(r"\.[A-Za-z0-9_+-]{1,16}")


def edit(text: bytes, suffix: str = "") -> bytes:
    """What somebody makes of a text in `$VISUAL`, `$EDITOR` or vi, in a file whose name ends in `suffix`.

    The file is in a directory of its own, where nothing tells an editor what to do. Raises OptionsError where the editor
    can't be started or ends with an error, OSError.
    """
    wanted = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="workbench-edit-") as directory:
        path = os.path.join(directory, f"edit{suffix if _SUFFIX.fullmatch(suffix) else ''}")
        with open(path, "xb") as file:
            file.write(text)
        # ^C is for the editor; a handler of ours isn't passed on to it, as ignoring would be.
        before = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            # A shell would take names apart; an editor with arguments is words all the same, as for git.
            ended = subprocess.run([*shlex.split(wanted), path], cwd=directory, check=False).returncode
        except (OSError, ValueError) as error:
            raise OptionsError(
                f"The editor {wanted!r} can't be started: {error}.", hint="Name another one: EDITOR=nano."
            ) from error
        finally:
            signal.signal(signal.SIGINT, before)
        if ended:
            raise OptionsError(f"The editor {wanted!r} ended with {ended}; nothing was changed.")
        with open(path, "rb") as file:
            return file.read()
