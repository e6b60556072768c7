from __future__ import annotations

from slipstream.records import Sketch, Snapshot, TrialSpec
from slipstream.supervise.trial_log import TrialLog
from slipstream.wire.protocol import Report


def _snapshot(step: int, value: float) -> Snapshot:
    return Snapshot(step, [Sketch("weight", 1, value, [value])])


def test_snapshots_of_later_reports_are_added_and_those_of_a_repeated_start_are_not() -> None:
    """An optimizer may take its first steps late. A trial that is started again repeats its first steps."""
    log = TrialLog(TrialSpec(0, "base"))
    log.take(Report(snapshots=[_snapshot(0, 1.0), _snapshot(1, 2.0)]))
    log.take(Report(snapshots=[_snapshot(9, 3.0)]))
    log.launch()
    log.take(Report(snapshots=[_snapshot(0, 4.0), _snapshot(1, 5.0)]))
    assert log.record().fingerprint.snapshots == [_snapshot(0, 1.0), _snapshot(1, 2.0), _snapshot(9, 3.0)]
