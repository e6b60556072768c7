"""Ends the process of a script that does not end after it was told to stop. The process exits with code 0 after a grace
period. This module is only used in processes that slipstream or the script started for a trial."""

from __future__ import annotations

import contextlib
import os
import sys
import threading

from slipstream.records import Ending
from slipstream.seams.stop import add_stop_listener
from slipstream.trial.lifecycle import ScriptRun

GRACE_S = 15.0
_CLOSE_S = 3.0


_has_stopped = threading.Event()


def has_stopped() -> bool:
    """Whether a seam has stopped the script in this process."""
    return _has_stopped.is_set()


def limit_stopping(run: ScriptRun, grace_s: float = GRACE_S) -> None:
    """Starts the grace period when a seam stops the script for the first time. The script may catch the exception, or
    never finish cleaning up."""

    def on_stop() -> None:
        if not _has_stopped.is_set():
            _has_stopped.set()
            threading.Thread(target=_leave_later, args=(run, grace_s), name="slipstream-grace", daemon=True).start()

    add_stop_listener(on_stop)


def _leave_later(run: ScriptRun, grace_s: float) -> None:
    threading.Event().wait(grace_s)
    closing = threading.Thread(target=_close_run, args=(run, grace_s), daemon=True)
    closing.start()
    closing.join(_CLOSE_S)  # the script may hang while it holds a lock that this thread needs
    os._exit(0)


def _close_run(run: ScriptRun, grace_s: float) -> None:
    with contextlib.suppress(BaseException):
        run.recorder.note(f"The script did not end within {grace_s:.0f} s of being stopped, so slipstream ended it.")
        run.leave(Ending("stopped", 0, 0.0))
        sys.stdout.flush()
        sys.stderr.flush()
