"""The race backend with real processes. Each trial runs the user's script in its own workspace. During a block only the
trial that holds the baton runs, and all processes of the other trials are stopped. The backend ends trials that hang or
that no longer fit in memory. It makes no other decisions."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from slipstream.launch.target import protected_folders
from slipstream.machine import free_memory
from slipstream.machine.foreign_load import ForeignLoad
from slipstream.machine.gpu import load_nvml
from slipstream.records import BlockTiming, Failure, Recipe, Session, Tick, Told, TrialRecord, TrialSpec
from slipstream.sandbox import overlay
from slipstream.sandbox.shortages import full_disk, is_full, shortage
from slipstream.sandbox.uncovered_places import UncoveredPlaces
from slipstream.sandbox.workspace import Workspaces
from slipstream.supervise.fork_server import ForkServerPool
from slipstream.supervise.process_control import no_leftovers, own_processes
from slipstream.supervise.racing_trial import POLITE_END_S, RacingTrial, end_of_script
from slipstream.supervise.signals import ended_by_signals, unbroken
from slipstream.supervise.trial_log import TrialLog
from slipstream.supervise.trial_process import LateError, OutError, UncoveredError, UnreadyError
from slipstream.trial.lifecycle import TrialSettings
from slipstream.wire.protocol import Finished, Joined, Report, Standing, Ticked, WireMessage

MOST_TRIALS = 6
ENTRY = str(Path(__file__).parent.parent / "techniques" / "_core" / "__main__.py")
_START_FACTOR = 10  # a trial without a step is late after this many times the base's start-up
_STEP_FACTOR = 20  # a trial is late in a block after this many times the block's expected duration
_BUSY_FACTOR = 10  # a trial that is silent but uses CPU is late in a block after this many times the usual limit
# A held trial continues after this time, because it may have a lock that the trial in its warm-up needs.
_MOST_HELD_S = 5.0
COLD = "Each trial started in a new process, which takes longer, because {}."
_LEAST_SNAPSHOTS = 3  # the fingerprint needs the first steps, so they are always part of the warm-up
# After two seconds of steps, caches are warm, kernels are chosen and workers have started. A longer warm-up of slow
# steps only costs time.
_WARM_UP_S = 2.0
# A trial has fewer warm-up steps than the base only if it is clearly slower. Other trials have digests of the same
# steps as the base. A trial that is slower than its usual pace by this factor has not kept its pace.
_TIMES_SLOWER = 3.0
_NUM_TURNS = 2  # how often a trial must be late while another one keeps its pace, before it counts as hung
_STEPS_BESIDE = 3  # steps of the other trial in each turn; they take little time and are enough to see its pace


class ProcessBackend:
    """A `RaceBackend` with real processes. Use it as a context manager. At the end of the block it ends every trial."""

    def __init__(
        self,
        script: list[str],
        *,
        tick: Tick = "optimizer",
        environment_of: Callable[[Recipe], dict[str, str]] = lambda recipe: {},
        use_overlay: bool = True,
        is_offline: bool = False,
        seed: int = 0,
        warm_up: int = 5,
        limit_s: float = 60.0,
        start_limit_s: float = 600.0,
        entry: str = ENTRY,
        may_fork: bool = False,
    ) -> None:
        """`may_fork`: trials may be forked from a process that has already imported torch."""
        self._script, self._tick, self._seed, self._entry = script, tick, seed, entry
        self._environment_of = environment_of
        self._warm_up = max(_LEAST_SNAPSHOTS, warm_up)
        self._limit_s, self._start_limit_s = limit_s, start_limit_s
        self._use_overlay, self._is_offline = use_overlay, is_offline
        self._logs: dict[int, TrialLog] = {}
        self._over: dict[int, dict[str, bytes]] = {}
        self._limits: dict[int, int] = {}
        self._processes: dict[int, RacingTrial] = {}  # running processes by trial, the least recently used first
        # Processes that are started before their trial enters. They run the script's imports and wait at the first
        # step.
        self._ahead: dict[int, RacingTrial] = {}
        self._base: TrialLog | None = None
        self._device_free_bytes = 0
        self._shared_before = free_memory.shared_bytes()[0]
        self._shared_each = 0
        self._may_fork = may_fork
        self._fork_servers = ForkServerPool(entry, is_open=False)
        self._load = ForeignLoad(nvml=load_nvml())
        self._stack = contextlib.ExitStack()
        self._signals = contextlib.ExitStack()  # closed last, because `unbroken` restores the handlers that it found
        self.notes: list[str] = []
        self.written: list[str] = []  # files that trials without an overlay wrote

    def __enter__(self) -> ProcessBackend:
        try:
            self._enter()
        except BaseException:  # for example from a signal; Python calls no `__exit__` if this function raises
            self.__exit__()
            raise
        return self

    def _enter(self) -> None:
        self._signals.enter_context(ended_by_signals())
        is_adopting = self._stack.enter_context(no_leftovers())
        self._fork_servers = ForkServerPool(self._entry, self._may_fork and is_adopting)
        self._stack.callback(self._fork_servers.close)
        if self._use_overlay:
            self._stack.enter_context(overlay.shared_caches(protected_folders(Path.cwd(), self._script)))
        self._stack.callback(self._list_new_files, UncoveredPlaces())
        self._stack.callback(self._end_all)
        self._workspaces = Workspaces(self._script, self._use_overlay, self._is_offline)

    def _list_new_files(self, places: UncoveredPlaces) -> None:
        if not self.no_overlay:  # without an overlay the trials list what they write
            self.written += [path for path in places.new_files() if path not in self.written]

    def __exit__(self, *_: object) -> None:
        with self._signals, unbroken():
            self._stack.close()

    @property
    def no_overlay(self) -> str:
        """Why trials ran without an overlay, or "" if all trials had one. Available after the backend has been
        entered."""
        return self._workspaces.no_overlay

    def lay_over(self, trial: int, files: Mapping[str, bytes]) -> None:
        """Replaces the contents of these files for one trial that enters later. The real files are not changed. The
        trial cannot start without an overlay."""
        self._over[trial] = dict(files)

    def bound(self, trial: int, limit_bytes: int) -> None:
        """Limits the memory of one trial of a memory fit that enters later. The limit holds from the start of the
        trial's training."""
        self._limits[trial] = limit_bytes

    # --- RaceBackend --------------------------------------------------------------------------------------------------

    def enter(self, spec: TrialSpec) -> Failure | None:
        log = self._logs[spec.ident] = TrialLog(spec)
        if spec.role == "base" and self._base is None:
            self._base = log
        self._launch(log)
        return log.failure

    def expect(self, spec: TrialSpec) -> None:
        is_known = self._base is not None and self._base.peak_bytes > 0  # whether the memory of a trial is known
        num_starting = len(self._ahead) or 1  # the trial that enters now
        if not is_known or num_starting > 1 or len(self._processes) + num_starting + 1 > self.capacity():
            return
        if not self._starts_cold(spec) and not self._fork_servers.has(self._variables(spec)):
            return
        with contextlib.suppress(OSError):  # the error is reported when the trial enters
            self._ahead[spec.ident] = self._start(TrialLog(spec))

    def run_block(self, trial: int, round: int, num_steps: int, lead_in: int, limit_s: float = math.inf) -> BlockTiming:
        self._end_ahead()
        log = self._logs[trial]
        if trial not in self._processes and not log.failure:
            self._launch(log)
        timing = BlockTiming(trial, round, 0, 0, 0.0, time.perf_counter_ns(), failure=log.failure)
        if not log.failure:
            # There is no lead-in if a single step takes longer than the limit of the block.
            timing = self._run_block(log, timing, num_steps, 0 if log.step_s > limit_s else lead_in, limit_s)
        log.timings.append(timing)
        return timing

    def wait(self, seconds: float) -> float | None:
        self._load.begin(own_processes())
        time.sleep(seconds)
        return self._load.end(own_processes())

    def record(self, trial: int) -> TrialRecord:
        return self._logs[trial].record()

    def leave(self, trial: int) -> TrialRecord:
        self._end(trial)
        return self._logs[trial].record()

    def capacity(self) -> int:
        base = self._base or self._heaviest()
        if base is None or not base.peak_bytes:
            return 2
        num_free = min(
            free_memory.num_fitting(free_memory.free_bytes(), max(base.peak_bytes, base.held_bytes)),
            free_memory.num_fitting(free_memory.shared_bytes()[1], self._shared_each),
            free_memory.num_on_device(self._device_free_bytes, base.device_peak_bytes),
        )
        return max(1, min(MOST_TRIALS, len(self._processes) + num_free))

    def _heaviest(self) -> TrialLog | None:
        """Returns the trial with the most memory. A memory fit has no base, and the batch sizes of its trials
        differ."""
        return max(self._logs.values(), key=lambda log: max(log.peak_bytes, log.held_bytes), default=None)

    def now_s(self) -> float:
        return time.monotonic()

    # --- launching ----------------------------------------------------------------------------------------------------

    def _launch(self, log: TrialLog, is_repetition: bool = False) -> None:
        """Starts a trial. Returns when the trial is paused after its warm-up, or when it has failed. A start that hangs
        is repeated once."""
        while len(self._processes) >= self.capacity():
            self._end(next(iter(self._processes)))
        process = self._ahead.pop(log.spec.ident, None)
        try:
            if process is None:
                process = self._start(log)
            else:
                log.launch()
        except OSError as error:
            log.failure = Failure(shortage(error) or str(error))
            return
        try:
            with self._alone():
                self._warm(process, log)
        except UncoveredError as uncovered:  # overlays do not work on this system, so all trials run without one
            self._close(process)
            log.num_launches -= 1
            self._workspaces.go_uncovered(str(uncovered))
            self._launch(log)
        except UnreadyError as unready:  # the script would behave differently in a forked process
            self._launch_cold(process, log, str(unready))
        except OutError as out:
            if process.is_forked and not process.holder and log is self._base:  # forking may be the cause
                self._launch_cold(process, log, f"a process forked after torch's import did not reach a step ({out})")
                return
            is_disk_full = is_full(process.workspace.path)
            self._close(process)
            if is_disk_full:
                log.failure = Failure(full_disk(process.workspace.path))
            elif isinstance(out, LateError) and not is_repetition:
                log.num_launches -= 1
                self._launch(log, is_repetition=True)
            else:
                log.failure = out.failure
        except BaseException:
            self._close(process)
            raise
        else:
            self._processes[log.spec.ident] = process

    def _launch_cold(self, process: RacingTrial, log: TrialLog, why: str) -> None:
        """Starts this trial again in a new process. All later trials start in new processes, too."""
        self._close(process)
        log.num_launches -= 1
        self._fork_servers.close()
        self._end_ahead()
        self.notes.append(COLD.format(why))
        self._launch(log)

    def _start(self, log: TrialLog) -> RacingTrial:
        spec = log.spec
        log.launch()
        settings = TrialSettings(
            mode="race",
            script=self._script,
            recipe=spec.recipe,
            role=spec.role,
            precision=spec.precision,
            draw=spec.draw,
            tick=self._tick,
            seed=self._seed,
            warm_up=self._warm_up,
            limit_bytes=self._limits.get(spec.ident, 0),
        )
        environment = self._variables(spec)
        server = None if self._starts_cold(spec) else self._fork_servers.of(environment)
        workspace = self._workspaces.make(self._over.get(spec.ident, {}))
        try:
            return RacingTrial(workspace, settings, self._entry, environment, server, self._let_go_late)
        except BaseException:
            workspace.remove()
            raise

    def _starts_cold(self, spec: TrialSpec) -> bool:
        return spec.is_cold or spec.role == "fit"

    def _variables(self, spec: TrialSpec) -> dict[str, str]:
        hashing = {} if os.environ.get("PYTHONHASHSEED", "").isdigit() else {"PYTHONHASHSEED": "0"}
        return {**hashing, **self._environment_of(spec.recipe)}

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """At the end of the block, continues the processes that were held while another process warmed up."""
        try:
            yield
        finally:
            for other in self._ahead.values():
                other.let_go()

    def _let_go_late(self) -> None:
        """Continues the processes that have been held for too long."""
        for other in self._ahead.values():
            other.let_go(_MOST_HELD_S)

    def _warm(self, process: RacingTrial, log: TrialLog) -> None:
        base = self._base
        limit_s = self._start_limit_s
        if base is not None and base is not log and base.startup_s:
            limit_s = max(self._limit_s, _START_FACTOR * base.startup_s)
        while True:
            message = self._receive(process, limit_s, self._start_limit_s, num_turns=1)
            if isinstance(message, Joined):
                log.startup_s = message.at_s - process.start_s
                for other in self._ahead.values():
                    other.hold()  # short steps may take ten times as long while another trial starts
            elif isinstance(message, Ticked):
                log.warm.append(message)
                process.go_on(self._is_warm(log))
            elif isinstance(message, Standing):
                self._collect(process, log)
                return
            elif isinstance(message, Finished):
                log.take(message.report)
                raise OutError(end_of_script(message.ending, len(log.warm)))

    def _is_warm(self, log: TrialLog) -> bool:
        """Whether the warm-up ends early with this step, because the steps of this trial or of the base are slow."""
        if len(log.warm) != _LEAST_SNAPSHOTS:
            return False
        limit_s, base = _WARM_UP_S, self._base
        if base is not None and base is not log and len(base.warm) >= _LEAST_SNAPSHOTS:
            if len(base.warm) == _LEAST_SNAPSHOTS:
                return True
            limit_s = max(limit_s, _TIMES_SLOWER * _warm_s(base))
        return _warm_s(log) > limit_s

    # --- hanging ------------------------------------------------------------------------------------------------------

    def _receive(self, process: RacingTrial, limit_s: float, most_s: float, num_turns: int) -> WireMessage:
        """Returns the next message. A trial that is late, as `wait_for` decides, may continue until another trial has
        kept its usual pace `num_turns` times. If another trial is delayed at the same time, the machine may be the
        cause."""
        start_s, longest_s = time.monotonic(), most_s + self._start_limit_s
        while True:
            try:
                return process.receive(limit_s, most_s)
            except LateError:
                num_turns -= self._is_machine_fast(process)
                late_s = time.monotonic() - start_s
                if num_turns <= 0 or late_s > longest_s:
                    raise LateError(Failure(f"had not reached a step after {late_s:.0f} s, and was ended")) from None
                most_s = limit_s

    def _is_machine_fast(self, process: RacingTrial) -> bool:
        """Holds the trial while another trial, if possible the base, runs a few steps. Returns whether these steps took
        their usual time. Returns True if there is no other trial."""
        others = [self._logs[ident] for ident, other in self._processes.items() if other is not process]
        beside = next(reversed([log for log in others if log.spec.role == "base"] or others), None)
        if beside is None:
            return True
        usual_s = beside.step_s
        process.hold()
        try:
            empty = BlockTiming(beside.spec.ident, -1, 0, 0, 0.0, time.perf_counter_ns())
            timing = self._run_block(beside, empty, _STEPS_BESIDE, 1, is_judged=False)
        finally:
            process.let_go()
        return 0 < timing.step_s < _TIMES_SLOWER * usual_s

    # --- blocks -------------------------------------------------------------------------------------------------------

    def _run_block(
        self,
        log: TrialLog,
        empty: BlockTiming,
        num_steps: int,
        lead_in: int,
        limit_s: float = math.inf,
        is_judged: bool = True,
    ) -> BlockTiming:
        """Runs a block and returns its timing. `is_judged`: the trial is ended if it hangs, as `_receive` decides."""
        process = self._processes.pop(empty.trial)
        self._processes[empty.trial] = process  # now the most recently used
        expected_s = min((num_steps + lead_in) * log.step_s, limit_s + 2 * log.step_s)
        late_s, num_holds = max(self._limit_s, _STEP_FACTOR * expected_s), process.num_holds
        try:
            self._load.begin([os.getpid(), *process.pids()])
            process.go(num_steps, lead_in, limit_s)
            if is_judged:
                message = self._receive(process, late_s, _BUSY_FACTOR * late_s, _NUM_TURNS)
            else:
                message = process.receive(self._start_limit_s)
            if isinstance(message, Standing):
                foreign_cores = self._load.end([os.getpid(), *process.pids()])
                self._collect(process, log)
                timing = msgspec.structs.replace(empty, **msgspec.structs.asdict(message), foreign_cores=foreign_cores)
                return msgspec.structs.replace(timing, is_disturbed=True) if process.num_holds > num_holds else timing
            assert isinstance(message, Finished), message
        except OutError as out:
            log.failure = out.failure
        else:
            log.take(message.report)
            reached = max((step for step, _ in message.report.digests), default=0)
            empty = msgspec.structs.replace(empty, first_step=reached)
            if message.ending.exit_code:
                code = message.ending.exit_code
                log.failure = Failure(message.ending.message or f"ended with exit code {code}")
        self._end(empty.trial, is_polite=False)
        return msgspec.structs.replace(empty, is_last=True, failure=log.failure)

    def _collect(self, process: RacingTrial, log: TrialLog) -> None:
        report: Report = process.ask(self._limit_s)
        log.take(report)
        log.peak_bytes = max(log.peak_bytes, process.memory_bytes())
        if report.device_free_bytes:
            self._device_free_bytes = report.device_free_bytes
        if log is self._base and not self._shared_each:
            grown = free_memory.shared_bytes()[0] - self._shared_before
            self._shared_each = grown if grown > 1 << 20 else 0

    # --- ending -------------------------------------------------------------------------------------------------------

    def _end(self, trial: int, is_polite: bool = True) -> None:
        process = self._processes.pop(trial, None)
        if process is not None:
            self._close(process, is_polite)

    def _end_ahead(self) -> None:
        while self._ahead:
            self._close(self._ahead.popitem()[1])

    def _end_all(self) -> None:
        self._end_ahead()
        for trial in list(self._processes):
            self._end(trial, is_polite=False)

    def _close(self, process: RacingTrial, is_polite: bool = False) -> None:
        with unbroken():
            process.end(POLITE_END_S if is_polite else 0.0)
            for told in (message for _, message in process.messages() if isinstance(message, Told)):
                self.notes += [told.note] if told.note and told.note not in self.notes else []
                self.written += [path for path in told.written if path not in self.written]
            process.close()


def tick_of(session: Session) -> Tick:
    """Returns the event that trials of this script count as a step, according to its check."""
    if session.optimizers or any(step.num_updates for step in session.steps):
        return "optimizer"
    if any(step.num_backwards for step in session.steps):
        return "backward"
    return "forward" if any(step.num_forwards for step in session.steps) else "input"


def _warm_s(log: TrialLog) -> float:
    """Returns the time of the steps that every warm-up has. The first step is left out, because it contains the trial's
    start."""
    return sum(tick.seconds for tick in log.warm[1:_LEAST_SNAPSHOTS])
