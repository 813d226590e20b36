"""Python's garbage collector, left out of work that only makes what stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Don't collect meanwhile, in the whole process: for a moment in which very much is made at once.

    The collector would walk through all of it again and again, which takes more time than making it.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
