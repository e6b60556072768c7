"""One start of a trial in a race. It gets the baton over a socket, and its output goes to files of limited length."""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import subprocess
import time
from collections.abc import Callable, Mapping

import msgspec

from slipstream.numbers import plural
from slipstream.records import Ending, Failure
from slipstream.sandbox.workspace import Workspace
from slipstream.supervise.fork_server import ForkServer
from slipstream.supervise.trial_process import OutError, TrialProcess, signal_name
from slipstream.trial.lifecycle import TrialSettings
from slipstream.wire import protocol
from slipstream.wire.protocol import Finished, Go, Joined, Report, Stop, Tell, Welcome, WireMessage

POLITE_END_S = 2.0
_BATON = "baton"  # name of the socket in the spool
_MEASURE_EVERY_S = 3.0
_MOST_OUTPUT_BYTES = 4 << 20
_TAIL_BYTES = 8192
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning|Iteration)\b.*|^[\w.]+: .+")


class RacingTrial(TrialProcess):
    def __init__(
        self,
        workspace: Workspace,
        settings: TrialSettings,
        entry: str,
        environment: Mapping[str, str],
        server: ForkServer | None,
        on_wait: Callable[[], None],
    ) -> None:
        """`on_wait` is called repeatedly while this process waits for a message of the trial."""
        self.num_holds = 0
        self.holder = 0  # the process that holds the baton
        self._on_wait = on_wait
        self._wire: protocol.Wire | None = None
        self._listener = protocol.listen(workspace.spool / _BATON)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._stdout, self._stderr = (os.open(workspace.path / name, flags, 0o600) for name in ("stdout", "stderr"))
        self._measured_s = -_MEASURE_EVERY_S
        self._measured_bytes = 0
        self._held_since_s: float | None = None
        super().__init__(
            workspace,
            msgspec.structs.replace(settings, baton=str(workspace.spool / _BATON)),
            stdin=subprocess.DEVNULL,
            stdout=self._stdout,
            stderr=self._stderr,
            entry=entry,
            environment=environment,
            server=server,
        )

    # --- messages ---------------------------------------------------------------------------------------------------

    def receive(self, limit_s: float, most_s: float = 0.0) -> WireMessage:
        """Returns the next message. Raises OutError if the trial ends without a message, or sends none in time (see
        `wait_for`)."""
        message = self.wait_for(self._look, limit_s, most_s)
        if message is None:
            raise self._end_reason()
        return message

    def _look(self, timeout_s: float) -> WireMessage | None:
        message = self._listen(timeout_s)
        if message is None:
            self._on_wait()
        return message

    def _listen(self, timeout_s: float) -> WireMessage | None:
        if self._wire is None:
            if not select.select([self._listener], [], [], timeout_s)[0]:
                return None
            self._wire = protocol.Wire(self._listener.accept()[0])
            self._listener.close()  # processes that connect later get no answer and run without the baton
        try:
            message = self._wire.receive(timeout_s)
        except TimeoutError:
            return None
        if message is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(POLITE_END_S)
            raise self._end_reason()
        if isinstance(message, Joined):
            self.holder = message.process
            self._wire.send(Welcome())
        return message

    def go(self, num_steps: int, lead_in: int, limit_s: float = math.inf) -> None:
        """Passes the baton to the trial and continues all its processes."""
        assert self._wire is not None
        self._wire.send(Go(num_steps, lead_in, limit_s))
        self._tree.resume()

    def go_on(self, is_warm: bool) -> None:
        """Lets the trial run the next step of its warm-up, or end its warm-up."""
        assert self._wire is not None
        self._wire.send(Welcome(is_warm))

    @property
    def is_held(self) -> bool:
        return self._held_since_s is not None

    def hold(self) -> None:
        """Stops all processes of the trial at any point of their code."""
        self.num_holds += 1
        self._held_since_s = time.monotonic()
        self._tree.stop()

    def let_go(self, after_s: float = 0.0) -> None:
        """Continues the processes if they have been held for at least `after_s`."""
        if self._held_since_s is None or (held_s := time.monotonic() - self._held_since_s) < after_s:
            return
        self.start_s += held_s
        self._held_since_s = None
        self._tree.resume()

    def ask(self, limit_s: float) -> Report:
        """Returns the report of a paused trial. The workers are stopped first. The process with the baton is stopped
        after it has sent the report."""
        assert self._wire is not None
        self._tree.stop(spared=self.holder)
        self._wire.send(Tell())
        report = self.receive(limit_s)
        if isinstance(report, Finished):
            raise OutError(end_of_script(report.ending))
        assert isinstance(report, Report), report
        self._tree.stop()
        self._shorten_output()
        return report

    def memory_bytes(self) -> int:
        """Returns the trial's memory. The figure may be a few seconds old, because the system takes long to compute it
        for a large process."""
        if time.monotonic() - self._measured_s > _MEASURE_EVERY_S:
            self._measured_bytes = self._tree.memory_bytes(self.holder or self._process.pid)
            self._measured_s = time.monotonic()
        return self._measured_bytes

    # --- end --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Removes everything that the trial used. Call it after `end`."""
        if self._wire is not None:
            self._wire.close()
        self._listener.close()
        for descriptor in (self._stdout, self._stderr):
            os.close(descriptor)
        self.workspace.remove()

    def _ask_to_end(self) -> bool:
        """Makes a paused script end by an exception. Returns False if the trial has not connected."""
        if self._wire is None:
            return False
        self._wire.send(Stop())
        self._tree.resume()
        return True

    def _end_reason(self) -> OutError:
        """Returns why the process has ended. If the process did not run the script, the reason is raised instead."""
        self.raise_refusal()
        code, last = self.poll(), self._last_line()
        if code is not None and code < 0:
            name = signal_name(code)
            return OutError(Failure(f"ended by {name}" + (f": {last}" if last else ""), signal=name))
        if not code:
            return OutError(Failure("the script ended" + ("" if self.holder else " before its first step"), "ended"))
        return OutError(Failure(last or f"ended with exit code {code}"))

    def _last_line(self) -> str:
        """Returns the last line on stderr that shows an exception, or else the last line."""
        size = os.fstat(self._stderr).st_size
        text = os.pread(self._stderr, _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
        raised = [line for line in lines if _EXCEPTION.match(line)]
        return (raised or lines or [""])[-1][:300]

    def _shorten_output(self) -> None:
        """Empties the output files if they are too long. The trial is stopped meanwhile. The files are open for
        appending, so the trial continues at their new end."""
        for descriptor in (self._stdout, self._stderr):
            if os.fstat(descriptor).st_size > _MOST_OUTPUT_BYTES:
                os.ftruncate(descriptor, 0)


def end_of_script(ending: Ending, num_steps: int | None = None) -> Failure:
    """Returns the failure of a trial whose script ended by itself before it was paused. `num_steps` is the number of
    steps that it had run, if this is known."""
    if ending.message:
        return Failure(ending.message)
    steps = "" if num_steps is None else f" after {plural(num_steps, 'step')}"
    return Failure(f"the script ended{steps}", "ended", num_steps)
