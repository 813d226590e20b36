"""What fsspec's filesystems raise, each in its own way, as errors of a storage."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from workbench.errors import WorkbenchError
from workbench.vfs import paths

_CODES: tuple[tuple[type[OSError], int], ...] = (
    (FileNotFoundError, errno.ENOENT),
    (NotADirectoryError, errno.ENOTDIR),
    (IsADirectoryError, errno.EISDIR),
    (PermissionError, errno.EACCES),
    (TimeoutError, errno.ETIMEDOUT),
)


@contextmanager
def said_of(path: bytes) -> Iterator[None]:
    """Whatever a filesystem raises, as an OSError with errno and path."""
    try:
        yield
    except WorkbenchError:
        raise
    except OSError as error:
        code = error.errno or next((code for kind, code in _CODES if isinstance(error, kind)), errno.EIO)
        raise paths.error(code, path) from error
    except Exception as error:
        raise paths.error(errno.EIO, path, f"{type(error).__name__}: {error}") from error
