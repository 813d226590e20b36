"""What a subscription or a registration returns."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType


class Disposer:
    """Call it, or leave its `with`, to undo a subscription or registration; a second call does nothing."""

    def __init__(self, dispose: Callable[[], None]) -> None:
        self._dispose: Callable[[], None] | None = dispose

    def __call__(self) -> None:
        dispose, self._dispose = self._dispose, None
        if dispose is not None:
            dispose()

    def __enter__(self) -> Disposer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self()
