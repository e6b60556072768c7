"""A check on a terminal: the script still writes to a terminal, and the live line never mixes with its output."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

SCRIPT = """
import os, sys, time
print("size", os.get_terminal_size(1).columns, sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty(), flush=True)
time.sleep(0.6)
print("half ", end="", flush=True)
time.sleep(0.6)
print("line", flush=True)
print("answer", input(), flush=True)
raise ValueError("mine")
"""


def run_on_terminal(command: list[str], cwd: Path, answer: bytes) -> tuple[int, bytes]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 91, 0, 0))

    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        command, cwd=cwd, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, preexec_fn=take_terminal
    )
    os.close(slave)
    output, is_answered, deadline = b"", False, time.monotonic() + 120
    while time.monotonic() < deadline:
        if select.select([master], [], [], 0.2)[0]:
            try:
                data = os.read(master, 65536)
            except OSError:
                break
            output += data
        if b"half" in output and not is_answered:
            is_answered = True
            os.write(master, answer)
    os.close(master)
    return process.wait(timeout=60), output


def test_the_script_keeps_its_terminal(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    code, output = run_on_terminal([sys.executable, "-m", "slipstream", "check", "train.py"], tmp_path, b"yes\n")
    text = output.decode()
    assert code == 1
    assert "size 91 True True True" in text
    assert "answer yes" in text
    assert "waiting for the first step" in text  # the live line was there
    # The live line never interrupts a line of the script, and it is erased before more is printed.
    assert "half line" in text.replace("yes\r\n", "")
    shown = re.sub(r"\r\x1b\[2K[^\r\n]*(?=\r\x1b\[2K)", "", text)
    assert "waiting for the first step" not in shown
    assert "ValueError: mine" in text and "\r\r\n" not in text


def test_ctrl_c_on_a_terminal_reaches_the_script_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import time\ntry:\n    print('half', flush=True)\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    print('caught', flush=True)\n    time.sleep(0.5)\n    raise SystemExit(7)\n"
    )
    code, output = run_on_terminal([sys.executable, "-m", "slipstream", "check", "train.py"], tmp_path, b"\x03")
    assert b"caught" in output and b"Traceback" not in output
    assert code == 7
