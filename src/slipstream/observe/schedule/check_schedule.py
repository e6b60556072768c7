"""The schedule of a trial of `check`. After a warm-up there are two rounds, if there is time: watch the script, drain
the loader, replay stored batches. Then torch's profiler records a few steps if the user wants its trace, one step is
dissected, and the trial stops."""

from __future__ import annotations

from typing import Any

from slipstream.observe.recorder import Recorder
from slipstream.observe.schedule.base import Schedule, ScheduledSurvey
from slipstream.observe.schedule.replay import LEAST_BATCHES, MOST_DRAINING, Replay
from slipstream.records import BlockKind
from slipstream.seams.patching import Substitute

_ROUNDS = 2
_EXCERPT_STEPS = 3
_ROUND_STEPS = 5  # minimum number of steps to settle and to watch
_LAST_STEPS = 2  # number of steps that are needed to dissect one
_BLOCK_OF_STATE: dict[str, BlockKind] = {"warmup": "warmup", "settle": "warmup", "watch": "watch"}


class CheckSchedule(Schedule):
    """With `watch_only` (`watch` inside a program) nothing is replaced and the program is not stopped."""

    def __init__(
        self,
        recorder: Recorder,
        survey: ScheduledSurvey,
        seconds: float,
        num_steps: int = 0,
        watch_only: bool = False,
    ) -> None:
        super().__init__(recorder, survey, seconds)
        self._asked_steps = num_steps
        self._watch_only = watch_only
        self._replay = Replay(recorder, self._blocks, seconds)
        self._round = 0

    @property
    def is_patient(self) -> bool:
        return super().is_patient and not self._asked_steps

    def _waits_for_updates(self) -> bool:
        return not self._watch_only

    def supply(self, iterator: Any, loader: int) -> Substitute | None:
        """Returns a replayed batch, or None if the script gets a real one."""
        return self._replay.supply(iterator, loader, _BLOCK_OF_STATE.get(self._state))

    def rewind(self, iterator: Any) -> None:
        self._replay.forget(iterator)

    def break_off(self) -> None:
        """This schedule has nothing to release."""

    # --- the plan ---------------------------------------------------------------------------------------------------

    def _is_over(self, now: int) -> bool:
        elapsed_s = (now - self._state_ns) / 1e9
        steps = self._steps_in_state
        if self._state == "warmup":
            return (steps >= 3 and elapsed_s >= 1.0) or elapsed_s > 0.1 * self._seconds
        if self._state == "watch":
            if self._watch_only:
                return False
            is_long = self._asked_steps > 0 or elapsed_s >= self._watch_s()
            return (is_long and steps >= self._watch_steps()) or (elapsed_s > 0.3 * self._seconds and steps >= 3)
        if self._state == "replay":
            enough = self._replay.is_enough or elapsed_s > 0.3 * self._seconds
            return enough and (not self._replay.credit() or elapsed_s > 0.6 * self._seconds)
        if self._state == "settle":
            return steps >= self._prefetched() + 2 or elapsed_s > 0.1 * self._seconds
        if self._state == "excerpt":
            return steps >= _EXCERPT_STEPS or elapsed_s > 0.1 * self._seconds
        return True

    def _advance(self) -> None:
        state, survey = self._state, self._survey
        if state in ("warmup", "settle"):
            self._round += 1
            self._enter("watch", "watch")
        elif state == "watch" and self._recorder.steps.learnt_from and self._has_time(LEAST_BATCHES, MOST_DRAINING):
            self._replay.begin(self._replay_batches())  # the number is computed while steps have their real length
            self._enter("replay", None)
        elif state in ("replay", "watch") and self._round < _ROUNDS and self._has_time(_ROUND_STEPS):
            self._enter("settle", "warmup")
        elif state == "dissect" and survey.end_dissection():
            self.finish()
        elif state == "dissect":
            self._enter("pause", "dissect")
        elif state == "excerpt":
            survey.end_excerpt()
            self._enter("pause", "dissect")  # two profilers in immediate succession crash, see QuietProfile
        elif state != "pause" and survey.start_excerpt():
            self._enter("excerpt", "dissect")
        elif survey.start_dissection():
            self._enter("dissect", "dissect")
        else:
            self.finish()

    def _enter(self, state: str, block: BlockKind | None) -> None:
        if state != "replay":
            self._replay.end()
        super()._enter(state, block)

    def _has_time(self, num_steps: int, share: float = 0.0) -> bool:
        """Whether there is still time to dissect a step after this number of steps and this share of the trial. If a
        step takes seconds, dissecting one step is worth more than watching further ones."""
        busy_ns = share * 1e9 * self._seconds + (num_steps + _LAST_STEPS) * self._step_ns()
        return bool(self._asked_steps) or self._clock.now_ns() - self._first_ns + busy_ns < self._most_ns

    def _watch_steps(self) -> int:
        if self._asked_steps:
            return max(1, -(-self._asked_steps // _ROUNDS))
        return _clamp(int(0.2 * self._seconds * 1e9 / self._step_ns()), 5, 150)

    def _watch_s(self) -> float:
        """Returns the minimum duration of a watch block. A shorter block would contain too few stack samples."""
        return min(3.0, 0.1 * self._seconds)

    def _replay_batches(self) -> int:
        """Returns the number of batches to replay, a multiple of the batches per step. The steps are enough to be
        timed, and the batches use up little of the epoch."""
        batches = self._recorder.steps.batches_per_step()
        steps = int(min(1.0, 0.06 * self._seconds) * 1e9 / self._step_ns())
        return batches * _clamp(steps, -(-LEAST_BATCHES // batches), -(-1000 // batches))

    def _prefetched(self) -> int:
        """Returns the number of batches that the training's loader may have prefetched."""
        learnt = self._recorder.steps.learnt_from
        return self._recorder.known.count_prefetched(learnt.most_common(1)[0][0]) if learnt else 0

    def _share(self) -> float:
        return super()._share() + 0.45 * max(self._round - 1, 0)


def _clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))
