"""Which signals a command handles itself."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from slipstream.supervise.signals import EndedBySignal, Interrupts, ended_by_signals, unbroken


@pytest.fixture
def without_hangup() -> Iterator[None]:
    """SIGHUP is ignored, as under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_termination_ends_a_race_with_its_signal() -> None:
    with pytest.raises(EndedBySignal) as ended, ended_by_signals():
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM and ended.value.name == "SIGTERM"


def test_a_race_does_not_end_by_an_ignored_signal(without_hangup: None) -> None:
    with ended_by_signals():
        os.kill(os.getpid(), signal.SIGHUP)
        with unbroken():
            pass
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    with pytest.raises(EndedBySignal), ended_by_signals():
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_check_does_not_forward_an_ignored_signal(without_hangup: None) -> None:
    sent: list[int] = []
    with ended_by_signals(), Interrupts(sent.append) as interrupts:
        os.kill(os.getpid(), signal.SIGHUP)
        interrupts.look()
        assert sent == []
        os.kill(os.getpid(), signal.SIGTERM)
        interrupts.look()
    assert sent == [signal.SIGTERM]


def test_a_signal_that_another_thread_receives_is_forwarded() -> None:
    sent: list[int] = []
    is_over = threading.Event()
    other = threading.Thread(target=is_over.wait)
    other.start()  # before the signals are blocked: this thread receives them
    try:
        with Interrupts(sent.append) as interrupts:
            os.kill(os.getpid(), signal.SIGTERM)
            interrupts.look()
    finally:
        is_over.set()
        other.join()
    assert sent == [signal.SIGTERM]
