"""Handles signals while a script runs. During a check, the first Ctrl-C interrupts the script, and the session is still
saved. A termination signal is forwarded to the trial. A second signal of any kind kills the script. During a race, a
Ctrl-C or a termination signal ends the race. A signal that was ignored when the command started, for example by nohup,
stays ignored."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

_WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndedBySignal(SystemExit):
    """A termination signal ends the command."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number
        super().__init__(self.exit_code)
        self.name = signal.Signals(number).name


class Interrupts:
    """Forwards signals to the trial of a check. Use it as a context manager, in the main thread. Enter it after the
    trial has started, because the trial must not inherit the signal mask and the handlers that this class sets."""

    def __init__(self, send: Callable[[int], None]) -> None:
        """`send` sends a signal to the trial."""
        self._send = send
        self._num_interrupts = 0
        self._former_mask: set[Any] = set()
        self._watched = _not_ignored(_WATCHED)
        self._handlers = _handling(dict.fromkeys(self._watched, self._handle))

    def __enter__(self) -> Interrupts:
        self._handlers.__enter__()
        if hasattr(signal, "sigtimedwait"):  # this function tells who sent a signal
            self._former_mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, self._watched))
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(signal, "sigtimedwait"):
            self.look()  # the last signals are for the trial, not for code that runs after this block
            signal.pthread_sigmask(signal.SIG_SETMASK, self._former_mask)
        self._handlers.__exit__(None, None, None)

    def look(self) -> None:
        """Handles the signals that arrived since the last call."""
        while hasattr(signal, "sigtimedwait") and (info := signal.sigtimedwait(self._watched, 0)) is not None:
            # A Ctrl-C in the terminal has already reached the trial, which is in the same foreground process group. A
            # signal that another process sent has reached only this process.
            self._act(info.si_signo, is_shared=info.si_code > 0)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        """Handles a signal whose sender is unknown, because another thread received the signal or the system has no
        `sigtimedwait`."""
        self._act(number, is_shared=number == signal.SIGINT)

    def _act(self, number: int, *, is_shared: bool) -> None:
        self._num_interrupts += 1
        if self._num_interrupts > 1:
            self._send(signal.SIGKILL)
        elif not is_shared:
            self._send(number)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Turns a termination signal into an exception, so that trials are ended and workspaces removed before the exit."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise EndedBySignal(number)

    with _handling({signal.SIGTERM: leave, signal.SIGHUP: leave}):
        yield


@contextlib.contextmanager
def unbroken() -> Iterator[None]:
    """Ignores signals while trials are being ended, which takes a few seconds at most. Another Ctrl-C would leave
    trials behind."""
    with _handling(dict.fromkeys(_WATCHED, signal.SIG_IGN)):
        yield


@contextlib.contextmanager
def _handling(handlers: dict[signal.Signals, Any]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handlers[number]) for number in _not_ignored(handlers)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _not_ignored(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
