"""The user's terminal while a script rides: the script keeps seeing one (a pseudo-terminal of the same size), its bytes
are relayed unchanged, and our live line shows only where the script left the cursor at the start of a line."""

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

if sys.platform != "win32":  # the command line refuses there, after it has imported this module
    import fcntl
    import pty
    import termios

_ERASE: Final = b"\r\x1b[2K"
_REDRAW_S: Final = 0.25


class PtyRelay:
    """Between the rider and those of stdout and stderr that are terminals. Use as a context manager."""

    def __init__(self) -> None:
        self.stdout: int | None = None  # to be given to the rider; None: it inherits ours
        self.stderr: int | None = None
        self._master = self._slave = -1
        self._out = 1 if os.isatty(1) else 2 if os.isatty(2) else -1
        self._at_line_start = True
        self._line = b""  # what of ours is on the screen
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
        """The rider has its end: ours of it is closed."""
        if self._slave >= 0:
            os.close(self._slave)
            self._slave = -1

    def pump(self, timeout_s: float, trial: int) -> None:
        """Relays what the script prints for up to `timeout_s`."""
        if not self.is_open:
            time.sleep(timeout_s)
            return
        if self._is_resized:
            self._is_resized = False
            self._copy_size()
            with contextlib.suppress(ProcessLookupError):
                os.kill(trial, signal.SIGWINCH)
        if select.select([self._master], [], [], timeout_s)[0] and not self._process_backend():
            time.sleep(timeout_s)  # nobody has the other end any more

    def drain(self) -> None:
        """What is left when the script has ended."""
        while self.is_open and select.select([self._master], [], [], 0)[0] and self._process_backend():
            pass

    def show(self, text: str) -> None:
        """Draws the live line, if the script's own output leaves room and it is time."""
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

    def _process_backend(self) -> bool:
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
        """As the real terminal, but bytes pass as they are: the real one does the line endings."""
        modes = termios.tcgetattr(self._out)
        modes[1] &= ~termios.OPOST
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(self._slave, termios.TCSANOW, modes)

    def _copy_size(self) -> None:
        size = fcntl.ioctl(self._out, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def _resized(self, _number: int, _frame: FrameType | None) -> None:
        self._is_resized = True
