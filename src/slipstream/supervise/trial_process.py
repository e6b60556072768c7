"""One trial of a race, seen from the backend.

`TrialProcess` is one start of the trial: its workspace, its processes and the connection to it. The trial's output goes
to files, whose length is limited. Closing it ends the trial and removes everything, whatever happened before.

`TrialLog` is what the backend knows of a trial over all its starts. Each start repeats the steps of the one before, so
that the log adds only steps that are new."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from slipstream.records import (
    BlockTiming,
    Edit,
    Ending,
    Failure,
    Fingerprint,
    Snapshot,
    TechniqueNote,
    Told,
    TrialRecord,
    TrialSpec,
)
from slipstream.sandbox.workspace import Workspace
from slipstream.supervise.fork_server import ForkedProcess, ForkServer
from slipstream.supervise.process_tree import ProcessTree
from slipstream.trial.forked import UNREADY
from slipstream.trial.main import EXIT_REFUSED, EXIT_UNCOVERED, REFUSED, UNCOVERED, Ticket, command, write_ticket
from slipstream.wire import protocol
from slipstream.wire.protocol import Finished, Go, Joined, Report, Stop, Tell, Ticked, Welcome, WireMessage
from slipstream.wire.spool import SpoolReader

BATON = "baton"  # name of the socket in the spool
_POLL_S = 0.1
_BUSY = 0.2  # of a core: a silent trial that uses less during the limit counts as hung
_POLITE_END_S = 2.0
_MEASURE_EVERY_S = 3.0
_MOST_OUTPUT_BYTES = 4 << 20
_TAIL_BYTES = 8192
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning|Iteration)\b.*|^[\w.]+: .+")


class OutError(Exception):
    """The trial has failed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class UncoveredError(Exception):
    """The overlay could not be created. The trial may start again without one."""


class UnreadyError(Exception):
    """A trial from a fork server would behave differently than in a new process. The message is the reason. The trial
    may start in a new process."""


class TrialProcess:
    """One start of a trial, with all its processes."""

    def __init__(
        self,
        workspace: Workspace,
        ticket: Ticket,
        entry: str,
        environment: dict[str, str],
        server: ForkServer | None = None,
    ) -> None:
        """`server` forks the process. Without it, the trial starts in a new process."""
        self.workspace = workspace
        self.holder = 0  # the process that holds the baton
        self.on_wait: Callable[[], None] = lambda: None
        self._wire: protocol.Wire | None = None
        self._listener = protocol.listen(Path(ticket.settings.baton))
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._stdout, self._stderr = (os.open(workspace.path / name, flags, 0o600) for name in ("stdout", "stderr"))
        self._measured_s = -_MEASURE_EVERY_S
        self._measured_bytes = 0
        self.start_s = time.monotonic()  # moved forward by the time that the process was held
        self._held_since_s: float | None = None
        forked = server.fork(write_ticket(ticket), self._stdout, self._stderr) if server is not None else None
        self._process: subprocess.Popen[bytes] | ForkedProcess = forked or subprocess.Popen(
            command(ticket, entry),
            stdin=subprocess.DEVNULL,
            stdout=self._stdout,
            stderr=self._stderr,
            env={**os.environ, **environment},
        )
        self._tree = ProcessTree(self._process.pid)

    # --- messages ---------------------------------------------------------------------------------------------------

    def receive(self, limit_s: float, most_s: float = 0.0) -> WireMessage:
        """The next message. Raises OutError if the trial ends without one, or sends nothing for `limit_s`. A trial that
        is silent but uses CPU (an evaluation, a long compilation) gets the longer timeout `most_s`."""
        start_s = window_s = time.monotonic()
        used_s: float | None = None
        while True:
            message = self._listen(min(_POLL_S, limit_s))
            if message is not None:
                return message
            if self._process.poll() is not None:
                if (message := self._listen(0.0)) is not None:  # its last message
                    return message
                raise self._end_reason()
            now_s = time.monotonic()
            if used_s is None:
                # Not at once: most messages arrive soon, and reading the CPU time takes CPU from the trial.
                used_s = self._tree.cpu_s()
            if now_s - window_s >= limit_s:
                is_busy = self._tree.cpu_s() - used_s > _BUSY * (now_s - window_s)
                if not is_busy or now_s - start_s >= most_s:
                    raise OutError(Failure(f"had not reached a step after {now_s - start_s:.0f} s, and was ended"))
                window_s, used_s = now_s, None
            self.on_wait()

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
                self._process.wait(_POLITE_END_S)
            raise self._end_reason()
        if isinstance(message, Joined):
            self.holder = message.process
            self._wire.send(Welcome())
        return message

    def go(self, num_steps: int, lead_in: int) -> None:
        """Passes the baton to the trial and continues all its processes."""
        assert self._wire is not None
        self._wire.send(Go(num_steps, lead_in))
        self._tree.resume()

    def go_on(self) -> None:
        """Lets the trial run the next step of its warm-up."""
        assert self._wire is not None
        self._wire.send(Welcome())

    @property
    def is_forked(self) -> bool:
        return isinstance(self._process, ForkedProcess)

    @property
    def is_held(self) -> bool:
        return self._held_since_s is not None

    def hold(self) -> None:
        """Stops all its processes where they are, before its first step or between two steps of its warm-up."""
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
        """The report of a paused trial. Its workers are stopped before it makes the report, and the process itself is
        stopped afterwards."""
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
        """The trial's memory, at most a few seconds old: for a large process the system takes long to compute it."""
        if time.monotonic() - self._measured_s > _MEASURE_EVERY_S:
            self._measured_bytes = self._tree.memory_bytes(self.holder or self._process.pid)
            self._measured_s = time.monotonic()
        return self._measured_bytes

    def told(self) -> list[Told]:
        """The messages in its spool: folders that the overlay does not cover, and files that the script opened."""
        return [message for _, message in SpoolReader(self.workspace.spool).read() if isinstance(message, Told)]

    # --- end --------------------------------------------------------------------------------------------------------

    def close(self, is_polite: bool) -> None:
        """Ends the trial. If `is_polite`, a paused script is first stopped by an exception and has a moment to clean
        up."""
        if is_polite and self._wire is not None and self._process.poll() is None:
            self._wire.send(Stop())
            self._tree.resume()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_POLITE_END_S)
        self._tree.kill()
        self._process.wait()
        if self._wire is not None:
            self._wire.close()
        self._listener.close()
        for descriptor in (self._stdout, self._stderr):
            os.close(descriptor)
        self.workspace.remove()

    def _end_reason(self) -> Exception:
        """Why the process has ended, as an exception."""
        code, spool = self._process.poll(), self.workspace.spool
        if code == EXIT_UNCOVERED and (spool / UNCOVERED).exists():
            return UncoveredError((spool / UNCOVERED).read_text())
        if self.is_forked and (spool / UNREADY).exists():
            return UnreadyError((spool / UNREADY).read_text())
        if code == EXIT_REFUSED and (spool / REFUSED).exists():
            return OutError(Failure((spool / REFUSED).read_text()))
        last = self._last_line()
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
            return OutError(Failure(f"ended by {name}" + (f": {last}" if last else ""), signal=name))
        if not code:
            return OutError(Failure("the script ended" + ("" if self.holder else " before its first step"), "ended"))
        return OutError(Failure(last or f"ended with exit code {code}"))

    def _last_line(self) -> str:
        """The last line on stderr that shows an exception, or else the last line."""
        size = os.fstat(self._stderr).st_size
        text = os.pread(self._stderr, _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
        raised = [line for line in lines if _EXCEPTION.match(line)]
        return (raised or lines or [""])[-1][:300]

    def _shorten_output(self) -> None:
        """Empties the output files if they are too long. The trial is stopped. It opened them for appending, so that it
        continues at the new end."""
        for descriptor in (self._stdout, self._stderr):
            if os.fstat(descriptor).st_size > _MOST_OUTPUT_BYTES:
                os.ftruncate(descriptor, 0)


def end_of_script(ending: Ending, num_steps: int | None = None) -> Failure:
    """The failure of a trial whose script ended by itself before it was paused. `num_steps`: how far it came."""
    if ending.message:
        return Failure(ending.message)
    steps = "" if num_steps is None else f" after {num_steps} steps"
    return Failure(f"the script ended{steps}", "ended", num_steps)


class TrialLog:
    """What is known of one trial over all its starts."""

    def __init__(self, spec: TrialSpec) -> None:
        self.spec = spec
        self.timings: list[BlockTiming] = []
        self.warm: list[Ticked] = []  # of the last start
        self.startup_s = 0.0
        self.peak_bytes = 0
        self.device_peak_bytes = 0
        self.start_bytes = self.held_bytes = 0
        self.limit_fault = ""
        self.failure: Failure | None = None
        self.num_launches = 0
        self.has_started_again = False  # because its first start was slow
        self._num_between = 0  # steps of this start outside rounds, since the last block in a round
        self._losses: list[tuple[int, float]] = []
        self._snapshots: list[Snapshot] = []
        self._digests: list[tuple[int, str]] = []
        self._metrics: list[tuple[int, str, float]] = []
        self._changes: list[TechniqueNote] = []
        self._declined: list[TechniqueNote] = []
        self._complaints: list[str] = []
        self._edits: list[Edit] = []
        self._num_known = 0  # number of steps whose losses earlier starts reported

    def launch(self) -> None:
        self.num_launches += 1
        self.warm = []
        self._num_between = 0
        self._num_known = max((step + 1 for step, _ in self._losses), default=0)

    def add_between(self, timing: BlockTiming, num_steps: int) -> None:
        """Adds a block that belongs to no round. `num_steps` includes its lead-in."""
        self.timings.append(timing)
        self._num_between += num_steps

    def steps_to_catch_up(self, num_steps: int) -> int:
        """The number of steps to run before the next block of `num_steps`, so that it ends at a step at which a block
        would have ended without the steps outside rounds. The reason is that the digests of two trials are compared at
        the ends of their blocks, and a block may be a whole epoch."""
        num_between, self._num_between = self._num_between, 0
        return -num_between % num_steps

    def take(self, report: Report) -> None:
        self._losses += [(step, loss) for step, loss in report.losses if step >= self._num_known]
        if not self._snapshots:
            self._snapshots = list(report.snapshots)
        last = self._digests[-1][0] if self._digests else -1
        self._digests += [(step, digest) for step, digest in report.digests if step > last]
        self._metrics += [found for found in report.metrics if found[0] >= self._num_known]
        self.device_peak_bytes = max(self.device_peak_bytes, report.device_peak_bytes)
        self.start_bytes = report.start_bytes
        self.held_bytes = max(self.held_bytes, report.held_bytes)
        self.limit_fault = report.limit_fault
        self._changes, self._declined, self._edits = report.changes, report.declined, report.edits
        self._complaints = report.complaints

    @property
    def steady(self) -> list[Ticked]:
        """Steps of the warm-up that can be compared: all but the first, and without compilation."""
        return [tick for tick in self.warm[1:] if not tick.is_disturbed]

    @property
    def step_s(self) -> float:
        """The approximate step time, or 0.0 while it is unknown. Blocks outside rounds do not count: they were run
        because the machine may have been busy."""
        timings = [timing.step_s for timing in self.timings if timing.num_steps and timing.round >= 0][-5:]
        warm = [tick.seconds for tick in self.steady]
        return max(statistics.median(timings) if timings else 0.0, statistics.median(warm) if warm else 0.0)

    def record(self) -> TrialRecord:
        return TrialRecord(
            spec=self.spec,
            timings=list(self.timings),
            fingerprint=Fingerprint(
                list(self._losses), list(self._snapshots), list(self._digests), list(self._metrics)
            ),
            startup_s=self.startup_s,
            peak_bytes=self.peak_bytes,
            device_peak_bytes=self.device_peak_bytes,
            start_bytes=self.start_bytes,
            held_bytes=self.held_bytes,
            changes=list(self._changes),
            declined=list(self._declined),
            complaints=list(self._complaints),
            edits=list(self._edits),
            failure=self.failure,
            limit_fault=self.limit_fault,
            num_launches=max(1, self.num_launches),
        )
