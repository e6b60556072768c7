"""Decides which findings are shown, and in which order."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from slipstream.diagnose.causes import catalogue
from slipstream.diagnose.flags import offered
from slipstream.diagnose.gain import LEAST_GAIN, largest_gain
from slipstream.diagnose.memory_growth import find_growth
from slipstream.records import Finding, Session, Summary

# Causes that also cost memory. Their findings are shown even if their predicted gain in time is small.
RISKS = ("growing_memory", "grad_in_evaluation", "worker_memory")
# Groups of causes whose fixes concern the same argument or the same milliseconds. Of two findings of a group only the
# better one is shown, unless they name different lines.
RIVALS = (("worker_count", "shallow_prefetch"), ("slow_read", "slow_transform"), ("cpu_threads", "worker_count"))


def find_all(session: Session, summary: Summary) -> tuple[list[Finding], list[str]]:
    """Return the findings, best first, and sentences about causes that could not be checked."""
    found: list[Finding] = []
    notes: list[str] = []
    for cause, find in catalogue().items():
        try:
            found += [_bounded(finding, summary) for finding in find(session, summary)]
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            # A cause that fails on unusual records must not prevent the others, and the failure must be reported.
            notes.append(f"The cause {cause} could not be checked: {type(error).__name__}: {error}.")
    worth = [finding for finding in found if finding.predicted_gain >= LEAST_GAIN or finding.cause in RISKS]
    ranked = sorted(worth, key=lambda finding: _urgency(session, finding))
    return [offered(session, finding) for finding in _without_rivals(ranked)], notes


def _bounded(finding: Finding, summary: Summary) -> Finding:
    """Limits the gain of a finding to what the ceilings allow, because a report prints the ceilings above the findings.

    A gain may exceed a ceiling because they were measured at different times.
    """
    gain = min(finding.predicted_gain, largest_gain(finding.cause, summary))
    return msgspec.structs.replace(finding, predicted_gain=gain)


def _urgency(session: Session, finding: Finding) -> tuple[bool, float, str]:
    """The sort key.

    Growing memory comes first if memory will run out, or if at least every second step keeps a graph.
    """
    growth = find_growth(session) if finding.cause == "growing_memory" else None
    is_first = growth is not None and (growth.is_fatal or growth.graphs_per_step >= 0.5)
    return not is_first, -finding.predicted_gain, finding.cause


def _without_rivals(ranked: Iterable[Finding]) -> list[Finding]:
    kept: list[Finding] = []
    for finding in ranked:
        rivals = {cause for group in RIVALS if finding.cause in group for cause in group if cause != finding.cause}
        if not any(better.cause in rivals and _same_place(better, finding) for better in kept):
            kept.append(finding)
    return kept


def _same_place(one: Finding, other: Finding) -> bool:
    return (
        one.site is None or other.site is None or (one.site.file, one.site.line) == (other.site.file, other.site.line)
    )
