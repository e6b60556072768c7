"""Whether other programs disturbed a measurement."""

from __future__ import annotations

from bisect import bisect_right

from slipstream.records import Session, Step

# A block or step is not evidence if other programs used more cores than the larger of these two limits. A quarter of a
# core is three times the error of the shortest reading on two cores (machine/foreign_load.py), so a step does not count
# as disturbed because of this error alone. Other programs that use a quarter of a core slow down a step on two busy
# cores by an eighth, which is as much as a typical gain. On many cores the limit is a tenth of the cores. Other
# programs that use a tenth of the cores slow down a step that uses all cores by a tenth.
MOST_FOREIGN_CORES = 0.25
MOST_FOREIGN_SHARE = 0.1


def most_foreign(num_usable: float) -> float:
    """The number of cores that other programs may use before a measurement counts as disturbed.

    `num_usable` is the number of cores that this process may use.
    """
    return max(MOST_FOREIGN_CORES, MOST_FOREIGN_SHARE * num_usable)


def foreign_cores(session: Session, start_ns: int, end_ns: int) -> float | None:
    """The cores that other programs used in this interval, on average over the part that samples cover.

    None if no sample overlaps the interval.
    """
    seen_ns = used_ns = 0.0
    samples = session.foreign_load
    for at in range(bisect_right(samples, start_ns, key=lambda sample: sample.end_ns), len(samples)):
        overlap_ns = min(end_ns, samples[at].end_ns) - max(start_ns, samples[at].start_ns)
        if overlap_ns <= 0:
            break
        seen_ns += overlap_ns
        used_ns += overlap_ns * samples[at].cores
    return used_ns / seen_ns if seen_ns else None


def is_disturbed(session: Session, step: Step) -> bool:
    """Whether other programs used too many cores during this step. A step without a sample is not disturbed."""
    cores = foreign_cores(session, step.start_ns, step.end_ns)
    return cores is not None and cores > most_foreign(session.environment.num_usable)
