"""From an error to an exit code."""

from __future__ import annotations

import errno
import os

from workbench.errors import CommandError, ConflictError, OptionsError, StateError, WorkbenchError
from workbench.vfs import paths

EXIT_ERROR, EXIT_USAGE, EXIT_CONFLICT, EXIT_REFUSED, EXIT_CHECK = 1, 2, 3, 4, 6
EXIT_BEFORE, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND = 125, 126, 127
_REFUSALS = frozenset(
    {
        "digest_required",
        "digest_unknown",
        "digest_changed",
        "risky_paths",
        "not_landable",
        "unresolved_conflicts",
        "policy_denied",
        "confirmation_required",
        "changes_not_landed",
        "session_changed",
    }
)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NEVER_RAN = {"command_not_found": EXIT_NOT_FOUND, "command_not_executable": EXIT_NOT_EXECUTABLE}


def exit_code(error: WorkbenchError) -> int:
    """Conflict 3, refused by a rule 4, the check failed 6, wrong use 2, anything else 1."""
    if isinstance(error, ConflictError):
        return EXIT_CONFLICT
    if error.code == "check_failed":
        return EXIT_CHECK
    if error.code in _REFUSALS:
        return EXIT_REFUSED
    return EXIT_USAGE if isinstance(error, OptionsError) else EXIT_ERROR


def exit_code_before(error: WorkbenchError) -> int:
    """Of a command that never ran: not found 127, not executable 126, wrong use 2, anything else 125."""
    if isinstance(error, CommandError):
        return _NEVER_RAN.get(error.code, EXIT_BEFORE)
    return EXIT_USAGE if isinstance(error, OptionsError) else EXIT_BEFORE


def find_error(raised: BaseException) -> WorkbenchError | None:
    """The error itself, the system's as one of ours, or the first one in a group of errors; None for a closed pipe."""
    if isinstance(raised, WorkbenchError):
        return raised
    if isinstance(raised, OSError) and not isinstance(raised, BrokenPipeError):
        return _of_system(raised)
    if isinstance(raised, BaseExceptionGroup):
        return next(filter(None, map(find_error, raised.exceptions)), None)
    return None


def _of_system(error: OSError) -> WorkbenchError:
    if error.errno in _FULL:
        return StateError(
            f"There's no room on the disk{_at(error)}.", code="disk_full", hint="Free disk space, then try again."
        )
    return WorkbenchError(f"The system refused{_at(error)}: {error.strerror or error}.", code="system_error")


def _at(error: OSError) -> str:
    return f" at {paths.display(os.fsencode(error.filename))}" if isinstance(error.filename, str | bytes) else ""
