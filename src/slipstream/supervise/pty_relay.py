"""The user's terminal while a script runs. The script writes to a pseudo-terminal of the same size, and its output is
forwarded unchanged. slipstream's live line is drawn only while the cursor is at the start of a line."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from types import FrameType
from typing import Any, Final

if sys.platform != "win32":  # on Windows the command line refuses to run, but only after it has imported this module
    import fcntl
    import pty
    import termios

_ERASE: Final = b"\r\x1b[2K"
_REDRAW_S: Final = 0.25


class PtyRelay:
    """Connects the trial with stdout and stderr, as far as these are terminals. Use it as a context manager."""

    def __init__(self) -> None:
        self.stdout: int | None = None  # to be passed to the trial; None: the trial inherits stdout
        self.stderr: int | None = None
        self._master = self._slave = -1
        self._out = 1 if os.isatty(1) else 2 if os.isatty(2) else -1
        self._at_line_start = True
        self._line = b""  # the live line that is on the screen
        self._drawn_s = 0.0
        self._is_resized = False
        self._former_handler: Any = None

    @property
    def is_open(self) -> bool:
        return self._master >= 0

    @property
    def width(self) -> int:
        return shutil.get_terminal_size().columns

    def __enter__(self) -> PtyRelay:
        if self._out >= 0:
            self._master, self._slave = pty.openpty()
            self._copy_modes()
            self._copy_size()
            self.stdout = self._slave if os.isatty(1) else None
            self.stderr = self._slave if os.isatty(2) else None
            self._former_handler = signal.signal(signal.SIGWINCH, self._resized)
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_open:
            self.erase()
            signal.signal(signal.SIGWINCH, self._former_handler)
            self.started()
            os.close(self._master)
            self._master = -1

    def started(self) -> None:
        """Closes this process's copy of the trial's end of the pseudo-terminal. Call it when the trial has started."""
        if self._slave >= 0:
            os.close(self._slave)
            self._slave = -1

    def pump(self, timeout_s: float, trial: int) -> None:
        """Waits up to `timeout_s` for output of the script and forwards it."""
        if not self.is_open:
            time.sleep(timeout_s)
            return
        if self._is_resized:
            self._is_resized = False
            self._copy_size()
            with contextlib.suppress(ProcessLookupError):
                os.kill(trial, signal.SIGWINCH)
        if select.select([self._master], [], [], timeout_s)[0] and not self._forward_output():
            time.sleep(timeout_s)  # the other end is closed everywhere

    def drain(self) -> None:
        """Forwards the remaining output after the script has ended."""
        while self.is_open and select.select([self._master], [], [], 0)[0] and self._forward_output():
            pass

    def show(self, text: str) -> None:
        """Draws the live line, unless the script has written an incomplete line or the last drawing is too recent."""
        now_s = time.monotonic()
        if not self.is_open or not self._at_line_start or now_s - self._drawn_s < _REDRAW_S:
            return
        self._drawn_s = now_s
        self._line = text.encode(errors="replace")
        self._write(_ERASE + self._line)

    def erase(self) -> None:
        if self._line:
            self._line = b""
            self._write(_ERASE)

    def _forward_output(self) -> bool:
        try:
            data = os.read(self._master, 65536)
        except OSError:  # EIO: the other end is closed
            return False
        if data:
            self.erase()
            self._write(data)
            self._at_line_start = data.endswith(b"\n")
        return bool(data)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._out, data) :]

    def _copy_modes(self) -> None:
        """Copies the modes of the real terminal. Output processing is switched off, because the real terminal converts
        line endings."""
        modes = termios.tcgetattr(self._out)
        modes[1] &= ~termios.OPOST
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(self._slave, termios.TCSANOW, modes)

    def _copy_size(self) -> None:
        size = fcntl.ioctl(self._out, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def _resized(self, _number: int, _frame: FrameType | None) -> None:
        self._is_resized = True
