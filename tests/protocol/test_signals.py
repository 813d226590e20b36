"""Aborts with a reason, and what takes a registration back."""

from __future__ import annotations

import threading

import pytest

from workbench.errors import OperationCancelledError
from workbench.protocol.disposer import Disposer
from workbench.protocol.signal import CancelSignal


def test_a_signal_is_cancelled_once_and_keeps_its_first_reason() -> None:
    signal, reason = CancelSignal(), ValueError("first")
    signal.raise_if_cancelled()
    assert (signal.cancelled, signal.reason) == (False, None)
    signal.cancel(reason)
    signal.cancel(ValueError("second"))
    assert (signal.cancelled, signal.reason) == (True, reason)
    with pytest.raises(ValueError, match="first"):
        signal.raise_if_cancelled()


def test_a_signal_without_a_reason_has_one_of_its_own() -> None:
    signal = CancelSignal()
    signal.cancel()
    with pytest.raises(OperationCancelledError) as raised:
        signal.raise_if_cancelled()
    assert raised.value.code == "cancelled"


def test_listeners_hear_of_it_once_and_late_ones_at_once() -> None:
    signal = CancelSignal()
    heard: list[str] = []
    signal.on_cancel(lambda: heard.append("first"))
    with signal.on_cancel(lambda: heard.append("disposed")):
        pass
    signal.cancel()
    signal.cancel()
    signal.on_cancel(lambda: heard.append("late"))()
    assert heard == ["first", "late"]


def test_a_signal_may_be_cancelled_by_many_threads() -> None:
    signal = CancelSignal()
    heard: list[int] = []
    for number in range(100):
        signal.on_cancel(lambda number=number: heard.append(number))  # type: ignore[misc]
    threads = [threading.Thread(target=signal.cancel) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(heard) == list(range(100))


def test_a_disposer_disposes_once() -> None:
    calls: list[int] = []
    disposer = Disposer(lambda: calls.append(1))
    disposer()
    disposer()
    with Disposer(lambda: calls.append(2)) as other:
        other()
    assert calls == [1, 2]
