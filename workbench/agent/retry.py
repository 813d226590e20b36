"""When to ask a model again."""

from __future__ import annotations

import random as _random
from collections.abc import Callable

import anyio
from anyio import from_thread
from anyio.lowlevel import current_token

from workbench.models.errors import is_model_request_error
from workbench.protocol.runs import RetryOptions
from workbench.protocol.signal import CancelSignal


def retry_delay(
    error: BaseException, attempt: int, options: RetryOptions, random: Callable[[], float] = _random.random
) -> float:
    """The milliseconds to wait after failed try `attempt`, which counts from 1.

    Equal jitter: half of `base_delay_ms * 2 ** (attempt - 1)` is fixed, half random. A hint of the provider's wins. Both
    are capped by `max_delay_ms`.
    """
    hint = error.retry_after_ms if is_model_request_error(error) else None
    if hint is not None:
        return min(hint, options.max_delay_ms)
    # Beyond 2 ** 64 the cap has long won, and a float would overflow.
    delay = min(options.base_delay_ms * 2.0 ** min(attempt - 1, 64), options.max_delay_ms)
    return delay / 2 + delay / 2 * random()


def may_retry(error: BaseException, attempt: int, options: RetryOptions) -> bool:
    """Whether the request may be sent again: the error is passing, a try is left, and the wait asked for isn't too long."""
    return (
        is_model_request_error(error)
        and error.retryable
        and attempt < options.attempts
        and (error.retry_after_ms is None or error.retry_after_ms <= options.max_delay_ms)
    )


async def sleep(ms: float, signal: CancelSignal | None = None) -> None:
    """Wait so long. Raises the signal's reason, else OperationCancelledError, as soon as it's cancelled."""
    if signal is None:
        await anyio.sleep(ms / 1_000)
        return
    aborted = anyio.Event()
    token = current_token()

    def abort() -> None:
        try:
            here = current_token() == token
        except anyio.NoEventLoopError:
            here = False
        if here:
            aborted.set()
        else:
            from_thread.run_sync(aborted.set, token=token)

    with anyio.move_on_after(ms / 1_000), signal.on_cancel(abort):
        await aborted.wait()
    signal.raise_if_cancelled()
