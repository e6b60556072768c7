"""What the race backend knows of one trial over all its starts. Each start repeats the steps of the previous start, so
the log adds only new steps."""

from __future__ import annotations

import statistics

from slipstream.records import (
    BlockTiming,
    Edit,
    Failure,
    Fingerprint,
    Precision,
    Snapshot,
    TechniqueNote,
    TrialRecord,
    TrialSpec,
)
from slipstream.wire.protocol import Report, Ticked


class TrialLog:
    def __init__(self, spec: TrialSpec) -> None:
        self.spec = spec
        self.timings: list[BlockTiming] = []
        self.warm: list[Ticked] = []  # steps of the last start's warm-up
        self.startup_s = 0.0
        self.peak_bytes = 0
        self.device_peak_bytes = 0
        self.start_bytes = self.held_bytes = 0
        self.limit_fault = ""
        self.failure: Failure | None = None
        self.num_launches = 0
        self._losses: list[tuple[int, float]] = []
        self._snapshots: list[Snapshot] = []
        self._digests: list[tuple[int, str]] = []
        self._metrics: list[tuple[int, str, float]] = []
        self._own_precision: Precision = "fp32"
        self._changes: list[TechniqueNote] = []
        self._declined: list[TechniqueNote] = []
        self._complaints: list[str] = []
        self._edits: list[Edit] = []
        self._num_known = 0  # number of steps whose losses earlier starts reported

    def launch(self) -> None:
        self.num_launches += 1
        self.warm = []
        self._num_known = max((step + 1 for step, _ in self._losses), default=0)

    def take(self, report: Report) -> None:
        self._losses += [(step, loss) for step, loss in report.losses if step >= self._num_known]
        known = {snapshot.step for snapshot in self._snapshots}
        self._snapshots += [snapshot for snapshot in report.snapshots if snapshot.step not in known]
        last = self._digests[-1][0] if self._digests else -1
        self._digests += [(step, digest) for step, digest in report.digests if digest is not None and step > last]
        self._own_precision = report.own_precision
        self._metrics += [found for found in report.metrics if found[0] >= self._num_known]
        self.device_peak_bytes = max(self.device_peak_bytes, report.device_peak_bytes)
        self.start_bytes = report.start_bytes
        self.held_bytes = max(self.held_bytes, report.held_bytes)
        self.limit_fault = report.limit_fault
        self._changes, self._declined, self._edits = report.changes, report.declined, report.edits
        self._complaints = report.complaints

    @property
    def steady(self) -> list[Ticked]:
        """The steps of the warm-up that can be compared: all except the first step and disturbed steps."""
        return [tick for tick in self.warm[1:] if not tick.is_disturbed]

    @property
    def step_s(self) -> float:
        """The approximate step time, or 0.0 while it is unknown."""
        timings = [timing.step_s for timing in self.timings if timing.num_steps][-5:]
        warm = [tick.seconds for tick in self.steady]
        return max(statistics.median(timings) if timings else 0.0, statistics.median(warm) if warm else 0.0)

    def record(self) -> TrialRecord:
        return TrialRecord(
            spec=self.spec,
            timings=list(self.timings),
            fingerprint=Fingerprint(
                list(self._losses), list(self._snapshots), list(self._digests), list(self._metrics), self._own_precision
            ),
            startup_s=self.startup_s,
            peak_bytes=self.peak_bytes,
            device_peak_bytes=self.device_peak_bytes,
            start_bytes=self.start_bytes,
            held_bytes=self.held_bytes,
            changes=list(self._changes),
            declined=list(self._declined),
            complaints=list(self._complaints),
            edits=list(self._edits),
            failure=self.failure,
            limit_fault=self.limit_fault,
            num_launches=max(1, self.num_launches),
        )
