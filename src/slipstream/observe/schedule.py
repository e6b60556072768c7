"""The schedule of a trial of `check`: warm up, watch, drain the loader, replay stored batches, watch again, dissect a
step, stop. The schedule decides when a block ends; the recorder and the seams do the rest."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from slipstream.observe.recorder import Recorder
from slipstream.observe.replayed_batches import ReplayedBatches
from slipstream.records import Block, BlockEnded, BlockKind, Loader, Progress
from slipstream.seams.patching import Substitute
from slipstream.seams.stop import StopTrial

_ROUNDS = 2
_EXCERPT_STEPS = 3
_REPLAY_STEPS = 5  # minimum with replayed batches
_ROUND_STEPS = 5  # minimum to settle and to watch
_LAST_STEPS = 2  # needed to dissect one
_DRAINING = 0.15  # maximum share of the trial's time
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
_BLOCK_OF_STATE: dict[str, BlockKind] = {"warmup": "warmup", "settle": "warmup", "watch": "watch"}


class Schedule:
    def __init__(self, recorder: Recorder, seconds: float, num_steps: int = 0, watch_only: bool = False) -> None:
        self._recorder = recorder
        self._clock = recorder.clock
        self._seconds = seconds
        self._most_ns = int(1.5e9 * seconds)
        self._asked_steps = num_steps
        self._watch_only = watch_only  # `watch` inside a program: nothing is replaced and the program is not stopped
        self._kept = ReplayedBatches(recorder.clock)
        self._state = "start"
        self._round = 0
        self._steps_in_state = 0
        self._state_ns = self._clock.now_ns()
        self._first_ns = 0  # when the first step ended; start-up does not count
        self._waiting_ns = 0  # since when a model is called without a backward pass
        self._last_step_ns = 0
        self._recent_ns: deque[int] = deque(maxlen=8)
        self._handed_out = 0
        self._replay_target = 0
        self._block = _open_block(0, "start", self._state_ns, self._clock.cpu_ns())
        self.is_done = False
        self.will_train: Callable[[], bool] = lambda: False
        self.on_first_step: Callable[[], None] = lambda: None
        self.on_block: Callable[[], None] = lambda: None
        self.on_done: Callable[[], None] = lambda: None
        self.excerpt_start: Callable[[], Any] = lambda: False  # true: torch's own profiler now runs
        self.excerpt_stop: Callable[[], Any] = lambda: None
        self.tell_leaks: Callable[[], Any] = lambda: None  # called once, when the script may not get any further
        self.probe_start: Callable[[], Any] = lambda: False  # true: the profiler now observes a step
        self.probe_stop: Callable[[], Any] = lambda: None

    @property
    def takes_blame(self) -> bool:
        """Whether an exception in the script would now be caused by this package."""
        return False

    @property
    def block_index(self) -> int:
        return self._block.index

    # --- called by the recorder ----------------------------------------------------------------------------------

    @property
    def is_patient(self) -> bool:
        """Whether a step may be counted a few milliseconds late, because the current block does not end after an exact
        number of steps."""
        return self._state in _BLOCK_OF_STATE and self._state != "settle" and not self._asked_steps

    def on_step(self, num: int = 1) -> None:
        now = self._clock.now_ns()
        if self._state == "start" and self._is_waiting(now):
            return
        if self._last_step_ns:
            self._recent_ns.append((now - self._last_step_ns) // num)
        self._last_step_ns = now
        self._steps_in_state += num
        if self._state == "start":
            self._first_ns = now
            self.on_first_step()
            self._enter("warmup", "warmup")
        elif not (self._watch_only and self._state == "watch") and self._is_over(now):
            self._advance()

    def _is_waiting(self, now: int) -> bool:
        """Whether to wait for the first update before calls of a model count as steps. A reinforcement learner collects
        experience, and a pretrained model may be evaluated, before the first update. Such calls are steps only if no
        update follows."""
        if self._watch_only or "forward" not in self._recorder.pace.closers or not self.will_train():
            return False
        if not self._waiting_ns:
            self._waiting_ns = now
            self._begin_block("warmup")
        return (now - self._waiting_ns) / 1e9 < _WAITING * self._seconds

    def on_pulse(self) -> None:
        """Stops the script if the trial is over. This also works inside a long validation, in which no step ends."""
        if self._first_ns and not self.is_done and self._clock.now_ns() - self._first_ns > self._most_ns:
            self.finish()
        if self.is_done and threading.get_ident() == self._recorder.thread:
            raise StopTrial

    def supply(self, iterator: Any, loader: int) -> Substitute | None:
        """Returns a replayed batch in place of a real one, during the measurement without data loading."""
        recorder = self._recorder
        if self._state == "replay" and not self._kept.owes(iterator) and self._is_trained(loader):
            self._drain(iterator, loader)
        if not self._kept.owes(iterator):
            if self._block.kind == "kept" and self._state in _BLOCK_OF_STATE:
                self._begin_block(_BLOCK_OF_STATE[self._state])
            recorder.shortcut.is_supplying = self._state == "replay" or self._kept.owes_any()
            return None
        if self._block.kind in _BLOCK_OF_STATE.values():
            self._begin_block("kept")  # steps with replayed batches are not the script as it is
        token = recorder.enter("input")
        try:
            batch, samples = self._kept.hand_out(iterator)
        except StopIteration:
            recorder.abandon(token)
            raise
        recorder.leave(token, "input", loader, samples=samples, kept=True)
        self._handed_out += 1
        return Substitute(batch)

    def rewind(self, iterator: Any) -> None:
        self._kept.forget(iterator)

    def keep_at(self, path: str) -> None:
        """Sets where to store what torch itself records. This schedule stores nothing."""

    def break_off(self) -> None:
        """Is called before processes are started. This schedule has nothing to release."""

    def finish(self) -> None:
        """Ends the trial and its last block, for whatever reason."""
        if not self.is_done:
            self.is_done = True
            self._end_block()
            if self._waiting_ns and "forward" in self._recorder.pace.closers:
                self._recorder.note(_NOT_YET)
            self.on_done()

    def progress(self) -> Progress:
        elapsed = (self._clock.now_ns() - self._first_ns) / 1e9 if self._first_ns else 0.0
        share = _SHARES.get(self._state, 1.0) + 0.45 * max(self._round - 1, 0)
        return Progress(
            num_steps=self._recorder.pace.num_steps,
            block=self._block.kind,
            step_ms=self._step_ns() / 1e6,
            share=min(1.0, max(share, elapsed / (1.5 * self._seconds))),
        )

    # --- the plan --------------------------------------------------------------------------------------------------

    def _is_over(self, now: int) -> bool:
        elapsed_s = (now - self._state_ns) / 1e9
        steps = self._steps_in_state
        if self._state == "warmup":
            return (steps >= 3 and elapsed_s >= 1.0) or elapsed_s > 0.1 * self._seconds
        if self._state == "watch":
            is_long = self._asked_steps > 0 or elapsed_s >= self._watch_s()
            return (is_long and steps >= self._watch_steps()) or (elapsed_s > 0.3 * self._seconds and steps >= 3)
        if self._state == "replay":
            enough = self._handed_out >= self._replay_target or elapsed_s > 0.3 * self._seconds
            return enough and (not self._kept.credit() or elapsed_s > 0.6 * self._seconds)
        if self._state == "settle":
            return steps >= self._buffered() + 2 or elapsed_s > 0.1 * self._seconds
        if self._state == "excerpt":
            return steps >= _EXCERPT_STEPS or elapsed_s > 0.1 * self._seconds
        return True

    def _advance(self) -> None:
        state = self._state
        if state in ("warmup", "settle"):
            self._round += 1
            self._enter("watch", "watch")
        elif state == "watch" and self._recorder.pace.learnt_from and self._has_time(_REPLAY_STEPS, _DRAINING):
            self._handed_out = 0
            self._replay_target = self._replay_steps()  # computed while steps still have their real length
            self._enter("replay", None)
        elif state in ("replay", "watch") and self._round < _ROUNDS and self._has_time(_ROUND_STEPS):
            self._enter("settle", "warmup")
        elif state == "dissect" and self.probe_stop() is not False:
            self.finish()
        elif state == "dissect":
            self._enter("pause", "dissect")
        elif state == "excerpt":
            self.excerpt_stop()
            self._enter("pause", "dissect")  # two profilers in immediate succession crash, see QuietProfile
        elif state != "pause" and self.excerpt_start():
            self._enter("excerpt", "dissect")
        else:
            self._enter("dissect", "dissect") if self.probe_start() else self.finish()

    def _has_time(self, num_steps: int, share: float = 0.0) -> bool:
        """Whether there is still time to dissect a step after this number of steps and this share of the trial. Where
        a step takes seconds, dissecting one is worth more than watching it again."""
        busy_ns = share * 1e9 * self._seconds + (num_steps + _LAST_STEPS) * self._step_ns()
        return bool(self._asked_steps) or self._clock.now_ns() - self._first_ns + busy_ns < self._most_ns

    def _watch_steps(self) -> int:
        if self._asked_steps:
            return max(1, -(-self._asked_steps // _ROUNDS))
        return _clamp(int(0.2 * self._seconds * 1e9 / self._step_ns()), 5, 150)

    def _watch_s(self) -> float:
        """Returns the minimum duration of a watch block: very short steps contain few stack samples."""
        return min(3.0, 0.1 * self._seconds)

    def _replay_steps(self) -> int:
        """Returns the number of replayed steps: enough to be timed, and few enough to use up little of the epoch."""
        return _clamp(int(min(1.0, 0.06 * self._seconds) * 1e9 / self._step_ns()), _REPLAY_STEPS, 1000)

    def _step_ns(self) -> int:
        recent = sorted(self._recent_ns)
        return max(1, recent[len(recent) // 2]) if recent else 10**9

    def _enter(self, state: str, block: BlockKind | None) -> None:
        self._state = state
        self._recorder.shortcut.is_supplying |= state == "replay"
        self._state_ns = self._clock.now_ns()
        self._steps_in_state = 0
        if block is not None:
            self._begin_block(block)

    # --- draining ---------------------------------------------------------------------------------------------------

    def _drain(self, iterator: Any, loader: int) -> None:
        buffered = self._buffered(loader)
        late_ns = self._clock.now_ns() + int(_DRAINING * 1e9 * self._seconds)
        self._begin_block("drain")
        token = self._recorder.enter("input")
        wanted = max(_REPLAY_STEPS, self._replay_target - self._handed_out) + buffered
        times = self._kept.drain(iterator, wanted, lambda: self._clock.now_ns() > late_ns)
        self._recorder.abandon(token)
        usable = times[buffered:] if len(times) >= buffered + 3 else []
        self._block = msgspec.structs.replace(self._block, batch_ns=usable, loader=loader)
        self._begin_block("kept")

    def _is_trained(self, loader: int) -> bool:
        learnt = self._recorder.pace.learnt_from
        return learnt[loader] * 10 >= max(learnt.values(), default=1)

    def _buffered(self, loader: int | None = None) -> int:
        """Returns the number of batches that may already be prefetched. They would be drained at once."""
        learnt = self._recorder.pace.learnt_from
        ident = loader if loader is not None else (learnt.most_common(1)[0][0] if learnt else -1)
        facts = self._recorder.subjects.get((Loader, ident))
        if not isinstance(facts, Loader) or not facts.num_workers:
            return 0
        return facts.num_workers * (facts.prefetch_factor or 2)

    # --- blocks ----------------------------------------------------------------------------------------------------

    def _begin_block(self, kind: BlockKind) -> None:
        self._end_block()
        self._block = _open_block(self._block.index + 1, kind, self._clock.now_ns(), self._clock.cpu_ns())

    def _end_block(self) -> None:
        block = msgspec.structs.replace(
            self._block, end_ns=self._clock.now_ns(), cpu_ns=self._clock.cpu_ns() - self._block.cpu_ns
        )
        self._recorder.write(BlockEnded(block))
        if block.kind in ("warmup", "watch"):
            self.on_block()


def _open_block(index: int, kind: BlockKind, start_ns: int, cpu_ns: int) -> Block:
    return Block(index=index, kind=kind, start_ns=start_ns, end_ns=start_ns, cpu_ns=cpu_ns)


def _clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))
