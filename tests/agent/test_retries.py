"""When a model is asked again, and how long that waits."""

from __future__ import annotations

import threading

import anyio
import pytest

from tests.agent.support import LONG, end, of, read, talk, the
from workbench.agent import asking
from workbench.agent.retry import retry_delay, sleep
from workbench.errors import ModelRequestError, OperationCancelledError
from workbench.protocol.messages import Usage
from workbench.protocol.runs import RetryOptions
from workbench.protocol.signal import CancelSignal
from workbench.testing import Turn

QUICK = RetryOptions(base_delay_ms=1, max_delay_ms=2)


def failing(**fields: object) -> ModelRequestError:
    values = {"code": "overloaded", "provider": "p", "retryable": True} | fields
    return ModelRequestError("busy", **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attempt", "least", "most"), [(1, 250, 500), (2, 500, 1_000), (3, 1_000, 2_000), (9, 15_000, 30_000)]
)
def test_the_delay_doubles_half_of_it_fixed_and_half_random(attempt: int, least: float, most: float) -> None:
    """ "retryDelay(...) computes equal-jitter exponential backoff ... capped by maxDelayMs"."""
    options = RetryOptions()
    assert retry_delay(failing(), attempt, options, lambda: 0.0) == least
    assert retry_delay(failing(), attempt, options, lambda: 1.0) == most
    assert least <= retry_delay(failing(), attempt, options) <= most


def test_a_great_many_attempts_are_no_overflow() -> None:
    """The cap holds, however often."""
    assert retry_delay(failing(), 100_000, RetryOptions(), lambda: 1.0) == 30_000


@pytest.mark.parametrize(("hint", "delay"), [(0, 0), (7_000, 7_000), (60_000, 30_000)])
def test_a_hint_wins_and_is_capped(hint: float, delay: float) -> None:
    """ "lets a Retry-After hint win, capped by maxDelayMs"."""
    assert retry_delay(failing(retry_after_ms=hint), 3, RetryOptions(), lambda: 0.5) == delay


def test_an_error_of_another_copy_of_the_package_counts() -> None:
    """ "isModelRequestError() detects it structurally"."""

    class OtherError(Exception):
        code, status, retryable, retry_after_ms, provider, usage = "overloaded", 529, True, 70.0, "p", None

    assert retry_delay(OtherError(), 1, RetryOptions()) == 70


@pytest.mark.anyio
async def test_sleep_ends_by_itself() -> None:
    """ "sleep(ms, signal)"."""
    with anyio.fail_after(LONG):
        await sleep(1)
        await sleep(1, CancelSignal())


@pytest.mark.anyio
@pytest.mark.parametrize("thread", [False, True])
@pytest.mark.parametrize("reason", [None, ValueError("enough")])
async def test_sleep_is_abortable_from_any_thread(thread: bool, reason: BaseException | None) -> None:
    """ "sleep(ms, signal) is abortable"."""
    signal = CancelSignal()

    async def abort() -> None:
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        if thread:
            threading.Thread(target=signal.cancel, args=(reason,)).start()
        else:
            signal.cancel(reason)

    with anyio.fail_after(LONG):
        async with anyio.create_task_group() as group:
            group.start_soon(abort)
            with pytest.raises(OperationCancelledError if reason is None else ValueError):
                await sleep(1_000_000, signal)
        with pytest.raises(OperationCancelledError if reason is None else ValueError):
            await sleep(1_000_000, signal)


@pytest.mark.anyio
async def test_a_passing_error_is_tried_again_with_a_notice_for_each_wait() -> None:
    """ "The session loop retries only errors marked retryable, ... and reports each wait as a notice event"."""
    async with talk(Turn(error=failing()), Turn(error=failing()), Turn(text="ok"), retry=QUICK) as it:
        events = await it.say()
    assert end(events) == "stop"
    assert [(event.code, event.delay_ms <= 2) for event in of(events, "notice")] == [("retry", True)] * 2
    assert the(events, "text").text == "ok"
    assert it.model.requests[0].messages == it.model.requests[2].messages


@pytest.mark.anyio
async def test_tries_end_after_as_many_as_allowed() -> None:
    """ "RetryOptions: attempts = 4 (tries in all)"."""
    async with talk(*[Turn(error=failing())] * 3, retry=QUICK.model_copy(update={"attempts": 3})) as it:
        events = await it.say()
    assert (the(events, "error").error.code, len(of(events, "notice"))) == ("overloaded", 2)


@pytest.mark.anyio
async def test_an_error_that_will_not_pass_is_not_tried_again() -> None:
    """ "retries only errors marked retryable"."""
    async with talk(Turn(error=failing(retryable=False)), retry=QUICK) as it:
        assert of(await it.say(), "notice") == []


@pytest.mark.anyio
@pytest.mark.parametrize("turn", [Turn(deltas=["a"], error=failing()), Turn(reasoning="a", error=failing())])
async def test_nothing_is_tried_again_once_a_token_was_seen(turn: Turn) -> None:
    """ "only before the first token reaches the client": no token twice. OpenHands: a callback inside what is tried
    again."""
    async with talk(turn, retry=QUICK) as it:
        events = await it.say()
    assert end(events) == "error"
    assert of(events, "notice") == []


@pytest.mark.anyio
async def test_a_wait_beyond_the_cap_fails_at_once() -> None:
    """ "lets a Retry-After hint win, capped by maxDelayMs"; here: one beyond the cap fails at once, no hammering.
    PrimeIntellect-ai/prime-agent 816."""
    async with talk(Turn(error=failing(retry_after_ms=60_000))) as it:
        events = await it.say()
    assert of(events, "notice") == []
    assert end(events) == "error"


@pytest.mark.anyio
async def test_a_hint_is_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry-After is waited for, not less. VoltAgent/voltagent 1276, mastra-ai/mastra 19885, earendil-works/pi 9595."""
    slept: list[float] = []

    async def note(ms: float) -> None:
        slept.append(ms)

    monkeypatch.setattr(asking, "sleep", note)
    async with talk(Turn(error=failing(retry_after_ms=1_234)), Turn(text="ok")) as it:
        events = await it.say()
    assert slept == [1_234] == [event.delay_ms for event in of(events, "notice")]


@pytest.mark.anyio
async def test_a_wait_can_be_cancelled() -> None:
    """ "abortable"."""
    async with talk(Turn(error=failing(retry_after_ms=30_000))) as it:
        run = it.session.run("a")
        async for event in run:
            if event.type == "notice":
                run.cancel()
        assert (await run.result()).end_reason == "cancelled"
        assert await read(run) == []


@pytest.mark.anyio
async def test_what_failed_tries_used_is_counted() -> None:
    """Usage of all model calls, failed ones too."""
    used = Usage(input_tokens=5, cost_usd=0.5)
    async with talk(Turn(error=failing(usage=used)), Turn(text="ok", usage=used), retry=QUICK) as it:
        run = it.session.run("a")
        events = await read(run)
        result = await run.result()
    assert (len(of(events, "usage")), result.usage.input_tokens, result.usage.cost_usd) == (2, 10, 1.0)
