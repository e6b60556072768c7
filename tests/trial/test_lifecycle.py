"""Signals that arrive while the session is being written."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from slipstream.trial.lifecycle import _undisturbed


@pytest.mark.skipif(not hasattr(signal, "SIGCHLD"), reason="no such signal here")
def test_a_handler_that_raises_for_a_dead_worker_does_not_lose_the_session() -> None:
    def complain(*_: Any) -> None:
        raise RuntimeError("DataLoader worker is killed by signal: Killed.")

    before = signal.signal(signal.SIGCHLD, complain)
    try:
        with _undisturbed(True):
            os.kill(os.getpid(), signal.SIGCHLD)
        assert signal.getsignal(signal.SIGCHLD) is complain
        with pytest.raises(RuntimeError, match="killed"):
            os.kill(os.getpid(), signal.SIGCHLD)
    finally:
        signal.signal(signal.SIGCHLD, before)
