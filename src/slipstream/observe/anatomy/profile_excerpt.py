"""Records a few steps with torch's own profiler, without our hooks, and stores the profiler's Chrome trace. The trace
contains a mark at a known time of the trial's clock, so that the two timelines can be aligned."""

from __future__ import annotations

from torch._C._profiler import _RecordFunctionFast as Range

from slipstream.observe.anatomy.quiet_profiler import IN_USE, QuietProfile, device_in_use, is_profiler_in_use
from slipstream.records import TorchProfile
from slipstream.seams.host_clock import Clock

MARK = "slipstream::mark"


class ProfileExcerpt:
    """Records the steps between `start` and `stop`. Call both in the thread that runs the script. If `stop` returns
    None, `reason` says why."""

    def __init__(self, path: str, clock: Clock) -> None:
        self.reason = ""
        self._path = path
        self._clock = clock
        self._mark_ns = 0
        self._profile = QuietProfile(device_in_use())

    def start(self) -> bool:
        if is_profiler_in_use():
            self.reason = IN_USE
            return False
        try:
            self._profile.start()
        except Exception as error:
            self.reason = f"the profiler did not start: {type(error).__name__}: {error}"
            return False
        self._profile.give_way(self._abandon)
        self._mark_ns = self._clock.now_ns()
        with Range(MARK):
            pass
        return True

    def stop(self, num_steps: int) -> TorchProfile | None:
        self._profile.end()
        if not self.reason and not num_steps:
            self.reason = "the trial ended before a step ran under the profiler; give it more time with --seconds"
        if self.reason or self._profile.results is None:
            return None
        self._profile.results.save(self._path)
        return TorchProfile(self._path, MARK, self._mark_ns, num_steps)

    def _abandon(self, reason: str) -> None:
        self.reason = reason
        self._profile.end()
