"""The step waits for batches although the workers are idle part of the time. Batches take different times to build, and
too few finished batches are held.
"""

from __future__ import annotations

from statistics import pstdev

from slipstream.diagnose.gain import gain_of
from slipstream.diagnose.input_path import input_path, step_after
from slipstream.diagnose.source_hints import with_loader_argument
from slipstream.diagnose.statistics import fmean
from slipstream.diagnose.steps.selection import fetches_of, watched_kinds
from slipstream.diagnose.steps.undisturbed import counted_steps
from slipstream.numbers import in_ms, in_percent, part_of_ms
from slipstream.records import Finding, Session, Summary

UNEVEN = 0.4  # Standard deviation of the batches' times, divided by their mean
DEEP = 8


def find(session: Session, summary: Summary) -> list[Finding]:
    path = input_path(session, summary)
    if path is None or path.loader.num_workers == 0 or (path.loader.prefetch_factor or 2) >= DEEP:
        return []
    steps = [step for step in counted_steps(session) if not step.is_first_of_epoch]
    walls = [fetch.wall_ns / 1e6 for fetch in fetches_of(session, path.loader, watched_kinds(session))]
    if len(steps) < 10 or len(walls) < 10 or path.busy > 0.85:
        return []
    # The median hides rare long batches, so the cost is taken from the mean.
    wait_ms = fmean([step.phases.get("input", 0.0) for step in steps])
    step_ms = fmean([step.step_ms for step in steps])
    spread = pstdev(walls) / fmean(walls) if fmean(walls) > 0 else 0.0
    # A long batch costs time only if it takes longer than the step needs for the batches that were built in parallel.
    long_ms = sorted(walls)[int(0.95 * (len(walls) - 1))]
    if wait_ms < 0.08 * step_ms or spread < UNEVEN or long_ms < path.loader.num_workers * (step_ms - wait_ms):
        return []
    even_ms = step_after(session, summary, path, work_ms=path.work_ms)
    then_ms = max(step_ms - 0.8 * wait_ms, path.work_ms / path.loader.num_workers, min(even_ms, step_ms - wait_ms))
    then_ms = max(then_ms, summary.ceilings.compute_ms or 0.0)
    return [
        Finding(
            cause="shallow_prefetch",
            title="Too few batches are held ready",
            evidence=f"The mean step waits {part_of_ms(wait_ms, step_ms)} although workers are idle "
            f"{in_percent(1 - path.busy)} of the time: batches take {in_ms(min(walls))} to {in_ms(max(walls))}.",
            predicted_gain=gain_of(step_ms, then_ms),
            change=with_loader_argument(session, path.loader, "prefetch_factor", str(DEEP)),
            settings={"prefetch_factor": str(DEEP)},
            site=path.loader.site,
            techniques=["prefetch"],
        )
    ]
