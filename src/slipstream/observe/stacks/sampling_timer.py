"""A timer that signals the main thread at a fixed interval. It is a POSIX timer with a signal that is ignored by
default. So if code resets the signal handlers of the process, as Lightning does, the signals have no effect. The timer
is inherited neither through fork nor through exec."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_SIGEV_THREAD_ID = 4
_CLOCK_MONOTONIC = 1

Handler = Callable[[int, "FrameType | None"], None]


class _SignalEvent(ctypes.Structure):
    """struct sigevent of Linux, 64 bytes."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("padding", ctypes.c_byte * 44),
    )


class _TimerSpec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("first_s", ctypes.c_long),
        ("first_ns", ctypes.c_long),
    )


class SignalTimer:
    """Calls the handler in the main thread, between two bytecodes, until it is disarmed."""

    def __init__(self, interval_s: float, handler: Handler) -> None:
        self._interval_ns = int(interval_s * 1e9)
        self._handler = handler
        self._timer: ctypes.c_void_p | None = None
        self._before: Any = None

    def arm(self) -> bool:
        """Starts the timer. Returns False where there is no such timer, where the signal is in use, or outside the main
        thread."""
        if not sys.platform.startswith("linux") or threading.current_thread() is not threading.main_thread():
            return False
        self._before = signal.getsignal(signal.SIGURG)
        if self._before not in (signal.SIG_DFL, signal.SIG_IGN) and not _is_ours(self._before):
            return False
        event = _SignalEvent(
            signal=signal.SIGURG, notify=_SIGEV_THREAD_ID, thread=threading.main_thread().native_id or 0
        )
        timer = ctypes.c_void_p()
        library = ctypes.CDLL(None, use_errno=True)
        if library.timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)) != 0:
            return False
        signal.signal(signal.SIGURG, self._handler)
        signal.siginterrupt(signal.SIGURG, False)
        pace = _TimerSpec(0, self._interval_ns, 0, self._interval_ns)
        library.timer_settime(timer, 0, ctypes.byref(pace), None)
        self._timer, self._library = timer, library
        return True

    @property
    def is_heard(self) -> bool:
        """Whether the handler is still in place."""
        return self._timer is not None and signal.getsignal(signal.SIGURG) == self._handler

    def disarm(self) -> None:
        if self._timer is None:
            return
        self._library.timer_delete(self._timer)
        self._timer = None
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGURG) == self._handler:
            signal.signal(signal.SIGURG, signal.SIG_DFL if _is_ours(self._before) else self._before)

    def forget(self) -> None:
        """Drops the timer in a forked child, which inherits the handler but not the timer."""
        self._timer = None


def _is_ours(handler: Any) -> bool:
    return getattr(type(getattr(handler, "__self__", None)), "__module__", "").startswith("slipstream.")
