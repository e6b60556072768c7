"""The track with real processes: riders of the user's script, each in a room of its own, one baton. Whoever does not
hold it stands still with all its processes. Decides nothing; which start is too slow is decided by slow_start.py."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from slipstream.launch.target import protected_folders
from slipstream.machine import free_memory
from slipstream.records import Entrant, Lap, Recipe, RiderRecord, Session, Tick
from slipstream.sandbox import overlay
from slipstream.sandbox.workspace import Room
from slipstream.supervise.fork_server import Stable
from slipstream.supervise.orphans import no_leftovers
from slipstream.supervise.signals import ended_by_signals, unbroken
from slipstream.supervise.slow_start import STEPS_BESIDE, SlowStart, is_suspect
from slipstream.supervise.trial_process import BATON, Lane, Ledger, OutError, UncoveredError, UnreadyError
from slipstream.trial.lifecycle import RideSettings
from slipstream.trial.main import Ticket
from slipstream.wire.backend import SLOWER
from slipstream.wire.protocol import Finished, Joined, Report, Standing, Ticked

MOST_RIDERS = 6
ENTRY = str(Path(__file__).parent.parent / "techniques" / "_core" / "__main__.py")
_START_FACTOR = 10  # times the base's start-up, before a rider without a step is ended
_STEP_FACTOR = 20  # times what a block should take
_BUSY_FACTOR = 10  # times that limit, for a rider that is silent and computes
_MOST_HELD_S = 5.0  # one that starts may hold a lock for which the one that warms up waits
COLD = "Riders started from nothing, which takes longer, because {}."
_LEAST_SNAPSHOTS = 3  # of the first steps, which are never timed


class _SlowAloneError(Exception):
    """A candidate's first steps were slow and no other trial was there to compare them with."""


class Relay:
    """Use as a context manager: leaving it ends every rider."""

    def __init__(
        self,
        script: list[str],
        *,
        tick: Tick = "optimizer",
        environment_of: Callable[[Recipe], dict[str, str]] = lambda recipe: {},
        use_overlay: bool = True,
        seed: int = 0,
        warm_up: int = 5,
        limit_s: float = 60.0,
        start_limit_s: float = 600.0,
        entry: str = ENTRY,
        may_fork: bool = False,
    ) -> None:
        """`may_fork`: riders may come from a process that has imported torch before them."""
        self._script, self._tick, self._seed, self._entry = script, tick, seed, entry
        self._environment_of = environment_of
        self._warm_up = max(_LEAST_SNAPSHOTS, warm_up)
        self._limit_s, self._start_limit_s = limit_s, start_limit_s
        self._use_overlay = use_overlay
        self._cwd = Path.cwd()
        self._ledgers: dict[int, Ledger] = {}
        self._over: dict[int, dict[str, bytes]] = {}
        self._limits: dict[int, int] = {}
        self._lanes: dict[int, Lane] = {}  # who is there, the one that rode longest ago first
        self._ahead: dict[int, Lane] = {}  # launched before they entered: they import, and wait at their first step
        self._base: Ledger | None = None
        self._device_free_bytes = 0
        self._shared_before = free_memory.shared_bytes()[0]
        self._shared_each = 0
        self._parent: Path = overlay.temporary_directory()
        self._own_user: bool | None = None
        self._may_fork = may_fork
        self._stable = Stable(entry, is_open=False)
        self._stack = contextlib.ExitStack()
        self.notes: list[str] = []
        self.written: list[str] = []  # by riders without an overlay
        self.on_wait: Callable[[], None] = lambda: None

    def __enter__(self) -> Relay:
        self._stack.enter_context(ended_by_signals())
        is_adopting = self._stack.enter_context(no_leftovers())
        self._stable = Stable(self._entry, self._may_fork and is_adopting)
        self._stack.callback(self._stable.close)
        if self._use_overlay:
            self._stack.enter_context(overlay.shared_caches(protected_folders(self._cwd, self._script)))
        self._stack.callback(self._end_all)
        parent, own_user, reason = overlay.probe() if self._use_overlay else (None, False, "--no-overlay")
        if parent is not None:
            self._parent, self._own_user = parent, own_user
        else:
            self._go_uncovered(reason)
        return self

    def __exit__(self, *_: object) -> None:
        with unbroken():
            self._stack.close()

    def lay_over(self, rider: int, files: Mapping[str, bytes]) -> None:
        """This rider, when it enters, finds these files with another text. The real ones are not touched; without an
        overlay it cannot start."""
        self._over[rider] = dict(files)

    def bound(self, rider: int, limit_bytes: int) -> None:
        """This rider, when it enters for a fit, is held to so many bytes from where its training begins."""
        self._limits[rider] = limit_bytes

    # --- the track ----------------------------------------------------------------------------------------------------

    def enter(self, entrant: Entrant) -> str:
        ledger = self._ledgers[entrant.ident] = Ledger(entrant)
        if entrant.role == "base" and self._base is None:
            self._base = ledger
        self._launch(ledger)
        return ledger.failure

    def expect(self, entrant: Entrant) -> None:
        is_known = self._base is not None and self._base.entrant.ident in self._lanes  # how much memory a rider takes
        num_starting = len(self._ahead) or 1  # the one that enters now
        if not is_known or num_starting > 1 or len(self._lanes) + num_starting + 1 > self.capacity():
            return
        if not self._stable.has(self._variables(entrant)):
            return
        with contextlib.suppress(OSError):  # it will be told when it enters
            self._ahead[entrant.ident] = self._start(Ledger(entrant))

    def lap(self, rider: int, round: int, num_steps: int, lead_in: int) -> Lap:
        self._end_ahead()
        ledger = self._ledgers[rider]
        if rider not in self._lanes and not ledger.failure:
            self._launch(ledger)
        lap = Lap(rider, round, 0, 0, 0.0, time.perf_counter_ns(), failure=ledger.failure)
        if not ledger.failure:
            lap = self._ride_block(ledger, lap, num_steps, lead_in + ledger.steps_to_catch_up(num_steps + lead_in))
        ledger.laps.append(lap)
        return lap

    def record(self, rider: int) -> RiderRecord:
        return self._ledgers[rider].record()

    def leave(self, rider: int) -> RiderRecord:
        self._end(rider)
        return self._ledgers[rider].record()

    def renew(self) -> None:
        self._end_ahead()
        self._stable.renew()

    def capacity(self) -> int:
        base = self._base or self._heaviest()
        if base is None or not base.peak_bytes:
            return 2
        num_free = min(
            free_memory.num_fitting(free_memory.free_bytes(), max(base.peak_bytes, base.held_bytes)),
            free_memory.num_fitting(free_memory.shared_bytes()[1], self._shared_each),
            free_memory.num_on_device(self._device_free_bytes, base.device_peak_bytes),
        )
        return max(1, min(MOST_RIDERS, len(self._lanes) + num_free))

    def _heaviest(self) -> Ledger | None:
        """Of a fit, which has no base: batches of all sizes ride."""
        return max(self._ledgers.values(), key=lambda ledger: max(ledger.peak_bytes, ledger.held_bytes), default=None)

    def now_s(self) -> float:
        return time.monotonic()

    # --- launching ----------------------------------------------------------------------------------------------------

    def _launch(self, ledger: Ledger) -> None:
        """Until it stands after its warm-up, or is out."""
        while len(self._lanes) >= self.capacity():
            self._end(next(iter(self._lanes)))
        lane = self._ahead.pop(ledger.entrant.ident, None)
        try:
            if lane is None:
                lane = self._start(ledger)
            else:
                ledger.launch()
        except OSError as error:
            ledger.failure = f"could not be started: {error}"
            return
        try:
            with self._alone(lane):
                self._warm(lane, ledger)
        except UncoveredError as uncovered:  # this system has no overlay after all: all riders do without
            self._close(lane)
            ledger.num_launches -= 1
            self._go_uncovered(str(uncovered))
            self._launch(ledger)
        except UnreadyError as unready:  # this script is not the same in a process that has imported torch before
            self._launch_cold(lane, ledger, str(unready))
        except _SlowAloneError:
            self._launch_again(lane, ledger)
        except OutError as out:
            if lane.is_forked and not lane.holder and ledger is self._base:  # it may be us
                self._launch_cold(lane, ledger, f"a copy of a process with torch in it did not come to a step ({out})")
                return
            ledger.failure = str(out)
            self._close(lane)
        except BaseException:
            self._close(lane)
            raise
        else:
            self._lanes[ledger.entrant.ident] = lane

    def _launch_cold(self, lane: Lane, ledger: Ledger, why: str) -> None:
        """Once more, and all that follow."""
        self._close(lane)
        ledger.num_launches -= 1
        self._stable.close()
        self._end_ahead()
        self.notes.append(COLD.format(why))
        self._launch(ledger)

    def _launch_again(self, lane: Lane, ledger: Ledger) -> None:
        """The base starts in between: its first steps are what the second start is compared with."""
        assert self._base is not None
        self._close(lane)
        ledger.has_started_again = True
        self._launch(self._base)
        self._end(self._base.entrant.ident)
        self._launch(ledger)

    def _start(self, ledger: Ledger) -> Lane:
        entrant = ledger.entrant
        ledger.launch()
        room = Room(self._parent)
        try:
            plan = None
            if self._own_user is not None:
                plan = room.cover(self._cwd, self._script, own_user=self._own_user)
            plan = room.lay_over(plan, self._over.get(entrant.ident, {}))
            settings = RideSettings(
                mode="race",
                spool=str(room.spool),
                script=self._script,
                recipe=entrant.recipe,
                role=entrant.role,
                baton=str(room.spool / BATON),
                tick=self._tick,
                seed=self._seed,
                warm_up=self._warm_up,
                limit_bytes=self._limits.get(entrant.ident, 0),
            )
            environment = self._variables(entrant)
            ready = self._stable.of(environment, self.on_wait) if entrant.role != "fit" else None
            lane = Lane(room, Ticket(settings, str(room.scratch), plan), self._entry, environment, ready)
        except BaseException:
            room.remove()
            raise
        lane.on_wait = self.on_wait
        return lane

    def _variables(self, entrant: Entrant) -> dict[str, str]:
        hashing = {} if os.environ.get("PYTHONHASHSEED", "").isdigit() else {"PYTHONHASHSEED": "0"}
        return {**hashing, **self._environment_of(entrant.recipe)}

    @contextlib.contextmanager
    def _alone(self, lane: Lane) -> Iterator[None]:
        """Whoever was held for this one goes on in the end."""

        def wait() -> None:
            self.on_wait()
            for other in self._ahead.values():
                other.let_go(_MOST_HELD_S)

        lane.on_wait = wait
        try:
            yield
        finally:
            lane.on_wait = self.on_wait
            for other in self._ahead.values():
                other.let_go()

    def _warm(self, lane: Lane, ledger: Ledger) -> None:
        base, slow_start = self._base, SlowStart()
        limit_s = self._start_limit_s
        if base is not None and base is not ledger and base.startup_s:
            limit_s = max(self._limit_s, _START_FACTOR * base.startup_s)
        while True:
            word = lane.hear(limit_s, self._start_limit_s)
            if isinstance(word, Joined):
                ledger.startup_s = word.at_s - lane.start_s
                for other in self._ahead.values():
                    other.hold()  # beside another's start short steps may take ten times as long
            elif isinstance(word, Ticked):
                ledger.warm.append(word)
                self._judge_pace(lane, ledger, slow_start)
                lane.go_on()
            elif isinstance(word, Standing):
                self._collect(lane, ledger)
                return
            elif isinstance(word, Finished):
                ledger.take(word.report)
                raise OutError(word.ending.message or f"the script ended after {len(ledger.warm)} steps")

    def _judge_pace(self, lane: Lane, ledger: Ledger, slow_start: SlowStart) -> None:
        """Raises OutError for a candidate that is too slow to be raced. Once it has been timed in a round, only rounds
        tell."""
        beside = self._other_trial()
        base = beside if beside is not None and beside.entrant.role == "base" else self._base
        base_s = base.step_s if base is not None else 0.0
        if ledger.entrant.role != "candidate" or not base_s or any(lap.num_steps for lap in ledger.laps):
            return
        if beside is not None:
            too_slow = slow_start.judge(ledger.steady, base_s, lambda: self._time_beside(lane))
            if too_slow is not None:
                raise OutError(_too_slow(ledger, too_slow.step_s, too_slow.beside_s))
        elif is_suspect(ledger.steady, base_s):
            if not ledger.has_started_again:
                raise _SlowAloneError
            raise OutError(_too_slow(ledger, ledger.steady[-1].seconds, base_s))

    def _other_trial(self) -> Ledger | None:
        """One that stands on the track: the base if it does, else the one that ran last."""
        there = [self._ledgers[ident] for ident in self._lanes]
        bases = [ledger for ledger in there if ledger.entrant.role == "base"]
        return next(reversed(bases or there), None)

    def _time_beside(self, lane: Lane) -> float:
        """While the candidate of this lane is held, another trial runs a few steps: the seconds of one of them. 0.0:
        they could not be timed."""
        beside = self._other_trial()
        if beside is None:  # it has ended
            return 0.0
        lane.hold()
        try:
            empty = Lap(beside.entrant.ident, -1, 0, 0, 0.0, time.perf_counter_ns())
            lap = self._ride_block(beside, empty, STEPS_BESIDE, lead_in=1)
        finally:
            lane.let_go()
        beside.add_between(lap, STEPS_BESIDE + 1)
        return lap.step_s if lap.num_steps and not lap.is_disturbed else 0.0

    # --- blocks -------------------------------------------------------------------------------------------------------

    def _ride_block(self, ledger: Ledger, empty: Lap, num_steps: int, lead_in: int) -> Lap:
        lane = self._lanes.pop(empty.rider)
        self._lanes[empty.rider] = lane  # the last to have ridden
        lane.on_wait = self.on_wait
        limit_s = max(self._limit_s, _STEP_FACTOR * (num_steps + lead_in) * ledger.step_s)
        try:
            lane.go(num_steps, lead_in)
            word = lane.hear(limit_s, _BUSY_FACTOR * limit_s)
            if isinstance(word, Standing):
                self._collect(lane, ledger)
                return _timed(empty, word)
            assert isinstance(word, Finished), word
        except OutError as out:
            ledger.failure = str(out)
        else:
            ledger.take(word.report)
            reached = max((step for step, _ in word.report.digests), default=0)
            empty = msgspec.structs.replace(empty, first_step=reached)
            if word.ending.exit_code:
                ledger.failure = word.ending.message or f"ended with exit code {word.ending.exit_code}"
        self._end(empty.rider, is_polite=False)
        return msgspec.structs.replace(empty, is_last=True, failure=ledger.failure)

    def _collect(self, lane: Lane, ledger: Ledger) -> None:
        report: Report = lane.ask(self._limit_s)
        ledger.take(report)
        ledger.peak_bytes = max(ledger.peak_bytes, lane.memory_bytes())
        if report.device_free_bytes:
            self._device_free_bytes = report.device_free_bytes
        if ledger is self._base and not self._shared_each:
            grown = free_memory.shared_bytes()[0] - self._shared_before
            self._shared_each = grown if grown > 1 << 20 else 0

    # --- ending -------------------------------------------------------------------------------------------------------

    def _end(self, rider: int, is_polite: bool = True) -> None:
        lane = self._lanes.pop(rider, None)
        if lane is not None:
            self._close(lane, is_polite)

    def _end_ahead(self) -> None:
        while self._ahead:
            self._close(self._ahead.popitem()[1])

    def _end_all(self) -> None:
        self._end_ahead()
        for rider in list(self._lanes):
            self._end(rider, is_polite=False)

    def _close(self, lane: Lane, is_polite: bool = False) -> None:
        with unbroken():
            for told in lane.told():
                self.notes += [told.note] if told.note and told.note not in self.notes else []
                self.written += [path for path in told.written if path not in self.written]
            lane.close(is_polite)

    def _go_uncovered(self, reason: str) -> None:
        self._parent, self._own_user = overlay.temporary_directory(), None
        self.notes.append(
            f"No throw-away file system ({reason}): checkpoints and logs of known libraries were redirected and"
            " deleted; other files that the script wrote are real."
        )


def tick_of(session: Session) -> Tick:
    """What the riders of this script count as a step, from what its check saw."""
    if session.optimizers or any(step.num_updates for step in session.steps):
        return "optimizer"
    if any(step.num_backwards for step in session.steps):
        return "backward"
    return "forward" if any(step.num_forwards for step in session.steps) else "input"


def _too_slow(ledger: Ledger, step_s: float, base_s: float) -> str:
    """Why it leaves; its first steps are kept as a block of no round."""
    times = f"{1e3 * step_s:.1f} ms a step instead of {1e3 * base_s:.1f} ms"
    reason = f"{SLOWER} {times}: {step_s / base_s:.0f}x slower"
    seconds = sum(tick.seconds for tick in ledger.steady)
    lap = Lap(ledger.entrant.ident, -1, 1, len(ledger.steady), seconds, time.perf_counter_ns(), failure=reason)
    ledger.laps.append(lap)
    return reason


def _timed(lap: Lap, word: Standing) -> Lap:
    return msgspec.structs.replace(
        lap,
        first_step=word.first_step,
        num_steps=word.num_steps,
        seconds=word.seconds,
        time_ns=word.time_ns,
        num_samples=word.num_samples,
        starts_s=word.starts_s,
        epoch_start_s=word.epoch_start_s,
        is_disturbed=word.is_disturbed,
    )
