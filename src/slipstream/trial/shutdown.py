"""A script that was told to stop and does not end: after a grace period the process leaves all the same, with exit
code 0. For riders of check, whose process is theirs alone."""

from __future__ import annotations

import contextlib
import os
import sys
import threading

from slipstream.records import Ending
from slipstream.seams.stop import StopTrial
from slipstream.trial.lifecycle import ScriptRun

GRACE_S = 15.0
_FAREWELL_S = 3.0


_has_stopped = threading.Event()


def has_stopped() -> bool:
    """Whether a seam has stopped the script in this process."""
    return _has_stopped.is_set()


def limit_stopping(ride: ScriptRun, grace_s: float = GRACE_S) -> None:
    """Counts from the first time that a seam stops the script: handlers may catch that, or clean up for ever."""

    def on_stop() -> None:
        if not _has_stopped.is_set():
            _has_stopped.set()
            threading.Thread(target=_leave_later, args=(ride, grace_s), name="slipstream-grace", daemon=True).start()

    StopTrial.on_stop = on_stop


def _leave_later(ride: ScriptRun, grace_s: float) -> None:
    threading.Event().wait(grace_s)
    farewell = threading.Thread(target=_say_goodbye, args=(ride, grace_s), daemon=True)
    farewell.start()
    farewell.join(_FAREWELL_S)  # whatever hangs in the script may hold a lock that this needs
    os._exit(0)


def _say_goodbye(ride: ScriptRun, grace_s: float) -> None:
    with contextlib.suppress(BaseException):
        ride.recorder.note(f"The script did not end within {grace_s:.0f} s of being stopped, and was ended.")
        ride.leave(Ending("stopped", 0, 0.0))
        sys.stdout.flush()
        sys.stderr.flush()
