"""One racing rider seen from outside: its room, its processes, its end of the wire. Its output goes to files of ours
that are kept short. Ends it and leaves nothing, however it went.

What the relay knows of one rider, over all its launches. A launch repeats the steps of the one before, so that only
what goes beyond is added."""

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

from slipstream.records import BlockTiming, Edit, Fingerprint, Snapshot, Told, TrialRecord, TrialSpec
from slipstream.sandbox.workspace import Workspace
from slipstream.supervise.fork_server import ForkedProcess, ForkServer
from slipstream.supervise.process_tree import ProcessTree
from slipstream.trial.forked import UNREADY
from slipstream.trial.main import EXIT_REFUSED, EXIT_UNCOVERED, REFUSED, UNCOVERED, Ticket, command, write_ticket
from slipstream.wire import protocol
from slipstream.wire.protocol import Finished, Go, Joined, Report, Stop, Tell, Ticked, Welcome, Word
from slipstream.wire.spool import SpoolReader

BATON = "baton"  # the socket's name in the spool
_POLL_S = 0.1
_BUSY = 0.2  # of a core, over the limit: who uses less waits for something that does not come
_FAREWELL_S = 2.0
_WEIGHING_S = 3.0
_MOST_OUTPUT_BYTES = 4 << 20
_TAIL_BYTES = 8192
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning|Iteration)\b.*|^[\w.]+: .+")


class OutError(Exception):
    """The rider is out: why, in one line."""


class UncoveredError(Exception):
    """Its view of the file system could not be made: it may try again without."""


class UnreadyError(Exception):
    """It was forked from a process that had imported torch, and would not be the same, because of this: it may start by
    itself."""


class TrialProcess:
    def __init__(
        self, room: Workspace, ticket: Ticket, entry: str, environment: dict[str, str], ready: ForkServer | None = None
    ) -> None:
        """`ready` may fork it; else it starts from nothing."""
        self.room = room
        self.holder = 0  # the process that holds the baton
        self.on_wait: Callable[[], None] = lambda: None
        self._wire: protocol.Wire | None = None
        self._listener = protocol.listen(Path(ticket.settings.baton))
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._stdout, self._stderr = (os.open(room.path / name, flags, 0o600) for name in ("stdout", "stderr"))
        self._weighed_s = -_WEIGHING_S
        self._weight_bytes = 0
        self.start_s = time.monotonic()  # later by what it was held for
        self._held_since_s: float | None = None
        forked = ready.fork(write_ticket(ticket), self._stdout, self._stderr) if ready is not None else None
        self._process: subprocess.Popen[bytes] | ForkedProcess = forked or subprocess.Popen(
            command(ticket, entry),
            stdin=subprocess.DEVNULL,
            stdout=self._stdout,
            stderr=self._stderr,
            env={**os.environ, **environment},
        )
        self._tree = ProcessTree(self._process.pid)

    # --- words ------------------------------------------------------------------------------------------------------

    def hear(self, limit_s: float, most_s: float = 0.0) -> Word:
        """The next word. Raises OutError if the rider ended without one, or said nothing for so long; one that computes
        all the while (an evaluation, a long compilation) is waited for up to `most_s`."""
        start_s = window_s = time.monotonic()
        used_s: float | None = None
        while True:
            word = self._listen(min(_POLL_S, limit_s))
            if word is not None:
                return word
            if self._process.poll() is not None:
                if (word := self._listen(0.0)) is not None:  # its last one
                    return word
                raise self._verdict()
            now_s = time.monotonic()
            if used_s is None:  # not at once: most words come soon, and looking costs the rider's cores
                used_s = self._tree.cpu_s()
            if now_s - window_s >= limit_s:
                is_busy = self._tree.cpu_s() - used_s > _BUSY * (now_s - window_s)
                if not is_busy or now_s - start_s >= most_s:
                    raise OutError(f"had not reached a step after {now_s - start_s:.0f} s, and was ended")
                window_s, used_s = now_s, None
            self.on_wait()

    def _listen(self, timeout_s: float) -> Word | None:
        if self._wire is None:
            if not select.select([self._listener], [], [], timeout_s)[0]:
                return None
            self._wire = protocol.Wire(self._listener.accept()[0])
            self._listener.close()  # who comes later hears nothing and rides on unheld
        try:
            word = self._wire.receive(timeout_s)
        except TimeoutError:
            return None
        if word is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_FAREWELL_S)
            raise self._verdict()
        if isinstance(word, Joined):
            self.holder = word.process
            self._wire.send(Welcome())
        return word

    def go(self, num_steps: int, lead_in: int) -> None:
        """Passes the baton: everything of the rider's runs again."""
        assert self._wire is not None
        self._wire.send(Go(num_steps, lead_in))
        self._tree.resume()

    def go_on(self) -> None:
        """With the next step of its warm-up."""
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
        """If it was held, for so long at the least."""
        if self._held_since_s is None or (held_s := time.monotonic() - self._held_since_s) < after_s:
            return
        self.start_s += held_s
        self._held_since_s = None
        self._tree.resume()

    def ask(self, limit_s: float) -> Report:
        """Of a rider that stands: what it has to report. Its workers stand still before it looks for it, and it stands
        still itself afterwards."""
        assert self._wire is not None
        self._tree.stop(spared=self.holder)
        self._wire.send(Tell())
        report = self.hear(limit_s)
        if isinstance(report, Finished):
            raise OutError(report.ending.message or "the script ended")
        assert isinstance(report, Report), report
        self._tree.stop()
        self._shorten_output()
        return report

    def memory_bytes(self) -> int:
        """As of now or a moment ago: for a large process the system takes its time to tell."""
        if time.monotonic() - self._weighed_s > _WEIGHING_S:
            self._weight_bytes = self._tree.memory_bytes(self.holder or self._process.pid)
            self._weighed_s = time.monotonic()
        return self._weight_bytes

    def told(self) -> list[Told]:
        """What is written in its spool: where it could not be covered, which files it opened."""
        return [message for _, message in SpoolReader(self.room.spool).read() if isinstance(message, Told)]

    # --- its end ----------------------------------------------------------------------------------------------------

    def close(self, is_polite: bool) -> None:
        """Politely: a script that stands is stopped by an exception and may clean up, for a moment."""
        if is_polite and self._wire is not None and self._process.poll() is None:
            self._wire.send(Stop())
            self._tree.resume()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_FAREWELL_S)
        self._tree.kill()
        self._process.wait()
        if self._wire is not None:
            self._wire.close()
        self._listener.close()
        for descriptor in (self._stdout, self._stderr):
            os.close(descriptor)
        self.room.remove()

    def _verdict(self) -> Exception:
        """Why it is gone."""
        code, spool = self._process.poll(), self.room.spool
        if code == EXIT_UNCOVERED and (spool / UNCOVERED).exists():
            return UncoveredError((spool / UNCOVERED).read_text())
        if self.is_forked and (spool / UNREADY).exists():
            return UnreadyError((spool / UNREADY).read_text())
        if code == EXIT_REFUSED and (spool / REFUSED).exists():
            return OutError((spool / REFUSED).read_text())
        last = self._last_line()
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
            return OutError(f"ended by {name}" + (f": {last}" if last else ""))
        if not code:
            return OutError("the script ended" + ("" if self.holder else " before its first step"))
        return OutError(last or f"ended with exit code {code}")

    def _last_line(self) -> str:
        """Of what it said on stderr: the exception, if it says one."""
        size = os.fstat(self._stderr).st_size
        text = os.pread(self._stderr, _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
        raised = [line for line in lines if _EXCEPTION.match(line)]
        return (raised or lines or [""])[-1][:300]

    def _shorten_output(self) -> None:
        """While it stands still. It appends, so that what follows begins at the start again."""
        for descriptor in (self._stdout, self._stderr):
            if os.fstat(descriptor).st_size > _MOST_OUTPUT_BYTES:
                os.ftruncate(descriptor, 0)


class TrialLog:
    def __init__(self, spec: TrialSpec) -> None:
        self.spec = spec
        self.timings: list[BlockTiming] = []
        self.warm: list[Ticked] = []  # of the last launch
        self.startup_s = 0.0
        self.peak_bytes = 0
        self.device_peak_bytes = 0
        self.start_bytes = self.held_bytes = 0
        self.failure = ""
        self.num_launches = 0
        self.has_started_again = False  # because its first start was slow
        self._num_between = 0  # steps of this launch that belong to no round, since the last block of one
        self._losses: list[tuple[int, float]] = []
        self._snapshots: list[Snapshot] = []
        self._digests: list[tuple[int, str]] = []
        self._changes: list[str] = []
        self._declined: list[str] = []
        self._edits: list[Edit] = []
        self._num_known = 0  # steps whose losses earlier launches told

    def launch(self) -> None:
        self.num_launches += 1
        self.warm = []
        self._num_between = 0
        self._num_known = max((step + 1 for step, _ in self._losses), default=0)

    def add_between(self, timing: BlockTiming, num_steps: int) -> None:
        """A block that belongs to no round; `num_steps` include its lead-in."""
        self.timings.append(timing)
        self._num_between += num_steps

    def steps_to_catch_up(self, num_steps: int) -> int:
        """Steps to run ahead of the next block of so many, so that it ends at a step at which a block would have ended
        without the steps between. The digests of two trials are compared at the ends of their blocks, and a block may
        be a whole epoch."""
        num_between, self._num_between = self._num_between, 0
        return -num_between % num_steps

    def take(self, report: Report) -> None:
        self._losses += [(step, loss) for step, loss in report.losses if step >= self._num_known]
        if not self._snapshots:
            self._snapshots = list(report.snapshots)
        last = self._digests[-1][0] if self._digests else -1
        self._digests += [(step, digest) for step, digest in report.digests if step > last]
        self.device_peak_bytes = max(self.device_peak_bytes, report.device_peak_bytes)
        self.start_bytes = report.start_bytes
        self.held_bytes = max(self.held_bytes, report.held_bytes)
        self._changes, self._declined, self._edits = report.changes, report.declined, report.edits

    @property
    def steady(self) -> list[Ticked]:
        """Steps of the warm-up that can be compared: not the first, nothing compiled."""
        return [tick for tick in self.warm[1:] if not tick.is_disturbed]

    @property
    def step_s(self) -> float:
        """Roughly; 0.0 while it is not known. Blocks outside rounds do not count: they were run because the machine may
        have been busy."""
        timings = [timing.step_s for timing in self.timings if timing.num_steps and timing.round >= 0][-5:]
        warm = [tick.seconds for tick in self.steady]
        return max(statistics.median(timings) if timings else 0.0, statistics.median(warm) if warm else 0.0)

    def record(self) -> TrialRecord:
        return TrialRecord(
            spec=self.spec,
            timings=list(self.timings),
            fingerprint=Fingerprint(list(self._losses), list(self._snapshots), list(self._digests)),
            startup_s=self.startup_s,
            peak_bytes=self.peak_bytes,
            device_peak_bytes=self.device_peak_bytes,
            start_bytes=self.start_bytes,
            held_bytes=self.held_bytes,
            changes=list(self._changes),
            declined=list(self._declined),
            edits=list(self._edits),
            failure=self.failure,
            num_launches=max(1, self.num_launches),
        )
