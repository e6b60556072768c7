"""The common part of the schedules of `check` and `memory`: the current state, the open block, and the end of the
trial. A subclass holds the plan: when a state is over, and which state follows."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, Protocol

from slipstream.observe.recorder import Recorder
from slipstream.observe.schedule.blocks import Blocks
from slipstream.records import BlockKind, Progress
from slipstream.seams.patching import Substitute
from slipstream.seams.stop import StopTrial

_WAITING = 0.5  # maximum share of the trial's time to wait for the first backward pass of a script with an optimizer
_NOT_YET = (
    "The script has made an optimizer, but no backward pass ran while it was observed. The observed calls of the model "
    "may all come before the training, as when a reinforcement learner collects experience. "
    "Give the script more time with --seconds."
)
_SHARES = {  # approximate share of the trial that has passed when a state begins
    "start": 0.0,
    "warmup": 0.05,
    "watch": 0.1,
    "replay": 0.4,
    "settle": 0.5,
    "excerpt": 0.93,
    "pause": 0.94,
    "dissect": 0.95,
}


class ScheduledSurvey(Protocol):
    """What a schedule needs to know of the script, and what it runs besides steps. See `observe.survey`."""

    def has_optimizer(self) -> bool:
        """Whether the script has made an optimizer, even one that has not stepped yet."""
        ...

    def at_first_step(self) -> None: ...

    def at_block(self) -> None:
        """Is called at the end of a block in which the script ran as it is."""
        ...

    def at_end(self) -> None: ...

    def tell_leaks(self) -> None:
        """Is called before the script may fail because of this trial."""
        ...

    def start_excerpt(self) -> bool:
        """Starts torch's own profiler. Returns whether it runs now."""
        ...

    def end_excerpt(self) -> None: ...

    def start_dissection(self) -> bool:
        """Starts to observe a step. Returns whether it is observed."""
        ...

    def end_dissection(self) -> bool:
        """Ends the dissection. Returns False if another step is to be observed."""
        ...


class Schedule(ABC):
    def __init__(self, recorder: Recorder, survey: ScheduledSurvey, seconds: float) -> None:
        self._recorder = recorder
        self._survey = survey
        self._clock = recorder.clock
        self._seconds = seconds
        self._most_ns = int(1.5e9 * seconds)
        self._state = "start"
        self._steps_in_state = 0
        self._state_ns = self._clock.now_ns()
        self._first_ns = 0  # when the first step ended; start-up does not count
        self._waiting_ns = 0  # time of the first step that was only a call of a model
        self._last_step_ns = 0
        self._recent_ns: deque[int] = deque(maxlen=8)
        self._blocks = Blocks(recorder.queue, self._clock, survey.at_block)
        self.is_done = False

    # --- the plan ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def _is_over(self, now: int) -> bool:
        """Whether the current state is over."""

    @abstractmethod
    def _advance(self) -> None:
        """Enters the next state."""

    @abstractmethod
    def supply(self, iterator: Any, loader: int) -> Substitute | None:
        """Returns a batch in place of a real one, or None. It may raise StopIteration."""

    @property
    def is_patient(self) -> bool:
        """Whether a step may be counted a few milliseconds late, because the current block does not end after an exact
        number of steps."""
        return self._state in ("warmup", "watch")

    @property
    def takes_blame(self) -> bool:
        """Whether an exception in the script would now be caused by this package."""
        return False

    @abstractmethod
    def rewind(self, iterator: Any) -> None:
        """Is called when an iterator is created or reset."""

    @abstractmethod
    def break_off(self) -> None:
        """Is called before processes are started."""

    def _waits_for_updates(self) -> bool:
        """Whether calls of a model count as steps only if the script makes no update."""
        return True

    def _share(self) -> float:
        """Returns the approximate share of the trial that has passed, by its state."""
        return _SHARES.get(self._state, 1.0)

    # --- called by the recorder -------------------------------------------------------------------------------------

    def on_steps(self, num: int) -> None:
        now = self._clock.now_ns()
        if self._state == "start" and self._is_waiting(now):
            return
        if self._last_step_ns:
            self._recent_ns.append((now - self._last_step_ns) // num)
        self._last_step_ns = now
        self._steps_in_state += num
        if self._state == "start":
            self._first_ns = now
            self._survey.at_first_step()
            self._enter("warmup", "warmup")
        elif self._is_over(now):
            self._advance()

    def _is_waiting(self, now: int) -> bool:
        """Whether to wait for the first update before calls of a model count as steps. A reinforcement learner collects
        experience, and a pretrained model may be evaluated, before the first update. These calls are steps only if no
        update follows."""
        is_calling = "forward" in self._recorder.steps.closers
        if not (is_calling and self._waits_for_updates() and self._survey.has_optimizer()):
            return False
        if not self._waiting_ns:
            self._waiting_ns = now
            self._blocks.begin("warmup")
        return (now - self._waiting_ns) / 1e9 < _WAITING * self._seconds

    def on_pulse(self) -> None:
        """Stops the script if the trial is over. This also works inside a long validation, in which no step ends."""
        if self._first_ns and not self.is_done and self._clock.now_ns() - self._first_ns > self._most_ns:
            self.finish()
        if self.is_done and threading.get_ident() == self._recorder.thread:
            raise StopTrial

    # --- state ------------------------------------------------------------------------------------------------------

    @property
    def block_index(self) -> int:
        return self._blocks.index

    def progress(self) -> Progress:
        elapsed = (self._clock.now_ns() - self._first_ns) / 1e9 if self._first_ns else 0.0
        return Progress(
            num_steps=self._recorder.steps.num_steps,
            block=self._blocks.kind,
            step_ms=self._step_ns() / 1e6,
            share=min(1.0, max(self._share(), elapsed / (1.5 * self._seconds))),
        )

    def finish(self) -> None:
        """Marks the trial as over and ends its last block. The next pulse stops the script."""
        if not self.is_done:
            self.is_done = True
            self._blocks.end()
            if self._waiting_ns and "forward" in self._recorder.steps.closers:
                self._recorder.note(_NOT_YET)
            self._survey.at_end()

    def _enter(self, state: str, block: BlockKind | None) -> None:
        self._state = state
        self._state_ns = self._clock.now_ns()
        self._steps_in_state = 0
        if block is not None:
            self._blocks.begin(block)

    def _step_ns(self) -> int:
        """Returns the median duration of recent steps."""
        recent = sorted(self._recent_ns)
        return max(1, recent[len(recent) // 2]) if recent else 10**9
