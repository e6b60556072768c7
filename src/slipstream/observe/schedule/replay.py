"""The part of a check in which the script trains on stored batches. The first request drains the loader. This request
and the following ones get copies of drained batches."""

from __future__ import annotations

from typing import Any

from slipstream.observe.recorder import Recorder
from slipstream.observe.schedule.blocks import Blocks
from slipstream.observe.schedule.replayed_batches import ReplayedBatches
from slipstream.records import BlockKind
from slipstream.seams.patching import Substitute

LEAST_BATCHES = 5
MOST_DRAINING = 0.15  # maximum share of the trial's time for one draining


class Replay:
    def __init__(self, recorder: Recorder, blocks: Blocks, seconds: float) -> None:
        self._recorder = recorder
        self._blocks = blocks
        self._seconds = seconds
        self._clock = recorder.clock
        self._batches = ReplayedBatches(recorder.clock)
        self._target = 0  # batches to hand out
        self._handed_out = 0
        self._is_on = False

    def begin(self, num_batches: int) -> None:
        """Hands out about this number of stored batches from now on."""
        self._target, self._handed_out, self._is_on = num_batches, 0, True
        self._recorder.shortcut.is_supplying = True

    def end(self) -> None:
        """Stops draining. Batches that are still owed to the script are handed out."""
        self._is_on = False

    @property
    def is_enough(self) -> bool:
        return self._handed_out >= self._target

    def credit(self) -> int:
        """Returns the number of drained batches that were not handed out yet."""
        return self._batches.credit()

    def forget(self, iterator: Any) -> None:
        self._batches.forget(iterator)

    def supply(self, iterator: Any, loader: int, plain: BlockKind | None) -> Substitute | None:
        """Returns a stored batch, or None for a real one. `plain` is the kind of block that the schedule's state has
        while the script gets real batches, or None if the state needs no change of block."""
        recorder, batches, blocks = self._recorder, self._batches, self._blocks
        if self._is_on and not batches.owes(iterator) and recorder.steps.is_trained(loader):
            self._drain(iterator, loader)
        if not batches.owes(iterator):
            if blocks.kind == "kept" and plain is not None:
                blocks.begin(plain)
            recorder.shortcut.is_supplying = self._is_on or batches.owes_any()
            return None
        if blocks.kind in ("warmup", "watch"):
            blocks.begin("kept")  # steps with replayed batches are not the script as it is
        token = recorder.enter("input")
        try:
            batch, samples = batches.hand_out(iterator)
        except StopIteration:
            recorder.abandon(token)
            raise
        recorder.leave(token, "input", loader, samples=samples, kept=True)
        self._handed_out += 1
        return Substitute(batch)

    def _drain(self, iterator: Any, loader: int) -> None:
        prefetched = self._recorder.known.count_prefetched(loader)
        late_ns = self._clock.now_ns() + int(MOST_DRAINING * 1e9 * self._seconds)
        self._blocks.begin("drain")
        token = self._recorder.enter("input")
        wanted = max(LEAST_BATCHES, self._target - self._handed_out) + prefetched
        times = self._batches.drain(iterator, wanted, lambda: self._clock.now_ns() > late_ns)
        self._recorder.abandon(token)
        self._blocks.add_drained(loader, times[prefetched:] if len(times) >= prefetched + 3 else [])
        self._blocks.begin("kept")
