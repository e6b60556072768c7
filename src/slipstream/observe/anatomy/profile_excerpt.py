"""A few steps under torch's own profiler, without hooks of ours, kept as the Chrome trace that it writes. A mark in it
lies at a known moment of the ride's clock, so that the two can be laid over each other."""

from __future__ import annotations

from torch._C._profiler import _RecordFunctionFast as Range

from slipstream.observe.anatomy.quiet_profiler import IN_USE, QuietProfile, device_in_use, is_profiler_in_use
from slipstream.records import TorchProfile
from slipstream.seams.host_clock import Clock

MARK = "slipstream::mark"


class ProfileExcerpt:
    """`start` before the first step and `stop` after the last, both in the thread that runs the script. Where `stop`
    gives None, `reason` says why."""

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
            self.reason = (
                "the ride was over before a step had run under the profiler; a longer --seconds leaves time for it"
            )
        if self.reason or self._profile.results is None:
            return None
        self._profile.results.save(self._path)
        return TorchProfile(self._path, MARK, self._mark_ns, num_steps)

    def _abandon(self, reason: str) -> None:
        self.reason = reason
        self._profile.end()
