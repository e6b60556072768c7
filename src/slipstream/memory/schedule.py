"""The schedule of the command `memory`: warm up, observe a step with the script's own batch, observe steps with smaller
batches, and stop. If memory grew in the first observed step, the schedule follows the growth before it cuts batches.
The results of the run are discarded, so a step on fewer samples does no harm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from slipstream.memory.cut_batch import cut_batch
from slipstream.memory.observer import Observer
from slipstream.observe.leaks import LeakFollowUp
from slipstream.observe.recorder import Recorder
from slipstream.observe.schedule.base import Schedule, ScheduledSurvey
from slipstream.records import Footprint, Told
from slipstream.seams.batches import count_samples
from slipstream.seams.modules.module import ModuleSeam
from slipstream.seams.patching import Substitute
from slipstream.seams.training import OptimizerSeam

_WARM_UP = 3  # steps; the first creates the optimizer state, the others create buffers of libraries
_ATTEMPTS = 4  # attempts to observe a step with a whole batch that does not contain the end of an epoch
_CUTS = (2, 4)  # one half, one quarter
_MAX_ENTRIES = 1_000_000  # allocations and releases in a snapshot; older ones are dropped


class MemorySchedule(Schedule):
    def __init__(
        self,
        recorder: Recorder,
        survey: ScheduledSurvey,
        seconds: float,
        modules: ModuleSeam,
        optimizers: OptimizerSeam,
        snapshot_path: str = "",
    ) -> None:
        """The allocator's snapshot is written to `snapshot_path`, unless it is ""."""
        super().__init__(recorder, survey, seconds)
        self._modules = modules
        self._optimizers = optimizers
        self._observer: Observer | None = None
        self._footprints: list[Footprint] = []
        self._num_attempts = 0
        self._wanted = 0  # samples to which batches are cut; 0: batches are not cut
        self._cannot_cut = ""
        self._loader = -1
        self._snapshot = AllocatorSnapshot(snapshot_path)
        self._following: LeakFollowUp | None = None

    # --- the plan ---------------------------------------------------------------------------------------------------

    def _is_over(self, now: int) -> bool:
        if self._state == "warmup":
            return self._steps_in_state >= _WARM_UP or (now - self._state_ns) / 1e9 > 0.3 * self._seconds
        if self._state == "follow" and self._following is not None:
            return self._steps_in_state >= self._following.every
        return True

    def _advance(self) -> None:
        if self._state in ("warmup", "pause"):
            self._begin()
        elif self._state == "lead":
            self._guarded(self._begin_observed_step)
        elif self._state == "follow":
            self._follow()
        else:
            footprint = self._guarded(self._end)
            self._use_footprint(footprint)

    def _begin(self) -> None:
        self._num_attempts += 1
        if self._guarded(self._start):
            self._enter("lead", "dissect")
        else:
            self.finish()

    def _begin_again(self) -> None:
        """Waits for one step before the next profiler starts, because torch may crash otherwise (see QuietProfile)."""
        self._enter("pause", None)

    def _start(self) -> bool:
        observer = Observer(_alive(self._modules.models), _alive(self._optimizers.optimizers))
        self._snapshot.start(observer.device)
        if not observer.start():
            self._recorder.note(f"no footprint: {observer.reason}")
            return False
        self._observer = observer
        self._modules.observe_calls(self)
        return True

    def _begin_observed_step(self) -> None:
        if self._observer is not None:
            self._observer.turn()
        self._enter("observe", None)

    def _end(self) -> Footprint | None:
        observer, self._observer = self._observer, None
        self._modules.observe_calls(None)
        footprint = observer.stop() if observer is not None else None
        if observer is not None and observer.reason:
            self._recorder.note(f"no footprint: {observer.reason}")
        return footprint

    def _use_footprint(self, footprint: Footprint | None) -> None:
        is_usable = footprint is not None and footprint.batch_size >= self._expected()
        if footprint is None or (not is_usable and self._num_attempts < _ATTEMPTS):
            self._begin_again() if self._num_attempts < _ATTEMPTS else self.finish()
            return
        self._footprints.append(footprint)
        self._guarded(self._snapshot.keep)
        self._recorder.queue.write(Told(footprint=footprint))
        if footprint.growth is not None and self._following is None:
            self._follow()  # this comes before batches are cut, because the script may also keep cut batches
        else:
            self._cut_next()

    def _cut_next(self) -> None:
        first, num_cuts = self._footprints[0].batch_size, len(self._footprints) - 1
        if self._loader < 0:
            self._cannot_cut = "the script has no DataLoader"
        if self._cannot_cut or num_cuts >= len(_CUTS) or first < _CUTS[num_cuts]:
            self._wanted = 0
            self.finish()
            return
        self._survey.tell_leaks()  # a script that fails on a smaller batch ends now, and its variables are lost
        self._wanted, self._num_attempts = first // _CUTS[num_cuts], 0
        self._begin_again()

    def _follow(self) -> None:
        """Checks whether what the observed step left behind continues to grow."""
        if self._following is None:
            facts = self._recorder.known.loader(self._loader)
            self._following = LeakFollowUp(facts.num_batches if facts is not None else None)
        following, recorder = self._following, self._recorder
        self._guarded(
            lambda: recorder.queue.add_memory(following.look(recorder.steps.num_steps, recorder.clock.now_ns()))
        )
        if following.is_over or self._is_late():
            self._cut_next()
        else:
            self._enter("follow", None)

    def _is_late(self) -> bool:
        return self._first_ns > 0 and (self._clock.now_ns() - self._first_ns) / 1e9 > self._seconds

    def _expected(self) -> int:
        """Returns the usual number of samples. The last batch of an epoch may be short and is not representative."""
        if self._wanted:
            return self._wanted
        facts = self._recorder.known.loader(self._loader)
        return (facts.batch_size or 0) if facts is not None else 0

    def finish(self) -> None:
        if not self.is_done:
            self._guarded(self._end)
            self._guarded(self._snapshot.end)
            if self._cannot_cut or (self.takes_blame and len(self._footprints) < 2):
                self._recorder.note(f"no forecast for other batch sizes: {self._cannot_cut or self._why_not_cut()}")
        super().finish()

    def _why_not_cut(self) -> str:
        """Returns why no smaller batch was observed. Either this schedule or the script may have ended the run."""
        if self._is_late():
            return f"the {self._seconds:g} seconds ended before a smaller batch was observed; use a larger --seconds"
        return "the script ended when it received a smaller batch"

    def break_off(self) -> None:
        """Stops the observation before the script starts processes, because a fork under the profiler may crash. The
        next step is observed instead."""
        if self._observer is not None:
            self._guarded(self._end)

    @property
    def takes_blame(self) -> bool:
        """Whether an exception of the script is our fault, because it received a smaller batch than it expects."""
        return self._wanted > 0 and not self.is_done

    def _guarded(self, task: Callable[[], Any]) -> Any:
        """Runs `task`. A failure is recorded in the session, and the script continues."""
        token = self._recorder.enter("other")
        try:
            return task()
        except Exception as fault:
            self._recorder.note(f"the memory of the step could not be read: {type(fault).__name__}: {fault}")
            return None
        finally:
            self._recorder.leave(token, "aside", -1)

    # --- batches ----------------------------------------------------------------------------------------------------

    def supply(self, iterator: Any, loader: int) -> Substitute | None:
        """Returns the script's own next batch, cut if a smaller batch is to be observed, and records it."""
        if self._observer is None or not self._recorder.steps.is_trained(loader):
            return None
        recorder = self._recorder
        token = recorder.enter("input")
        try:
            batch = next(iterator)
        except BaseException:
            recorder.abandon(token)
            raise
        self._loader = loader
        if self._wanted:
            batch = self._cut(batch)
        self._observer.see_batch(batch)
        recorder.leave(token, "input", loader, samples=count_samples(batch))
        return Substitute(batch)

    def rewind(self, iterator: Any) -> None:
        """Does nothing, because this schedule stores no batches."""

    def _cut(self, batch: Any) -> Any:
        cut = cut_batch(batch, self._wanted)
        if cut is None:
            self._cannot_cut = "the batches cannot be cut: they do not consist of tensors with one row per sample"
            return batch
        return cut

    def on_call(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._observer is not None and model.training:
            self._observer.see_call([args, kwargs], next(model.parameters(), None) is not None)


def _alive(references: list[Any]) -> list[Any]:
    return [thing for thing in (reference() for reference in references) if thing is not None]


class AllocatorSnapshot:
    """Records PyTorch's own snapshot of the caching allocator over the observed step, for the viewer at
    pytorch.org/memory_viz. The snapshot contains every segment, every block, and the stack that requested the block.
    Only CUDA has such a snapshot. The recording has not been run on a GPU yet.

    Call `start` before the observed steps and `keep` after them. Without a path nothing is recorded."""

    def __init__(self, path: str, history: Any = None) -> None:
        self.path = path
        self._history: Any = history if history is not None else torch.cuda.memory
        self._is_recording = False

    def start(self, device: str) -> None:
        if self.path and device.startswith("cuda") and not self._is_recording:
            self._history._record_memory_history(max_entries=_MAX_ENTRIES)
            self._is_recording = True

    def keep(self) -> None:
        if self._is_recording:
            self._history._dump_snapshot(self.path)
            self.end()
            self.path = ""  # only the script's own batch gets a snapshot

    def end(self) -> None:
        if self._is_recording:
            self._is_recording = False
            self._history._record_memory_history(enabled=None)
