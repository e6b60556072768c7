"""The loader has too few workers for its work, or so many that they take the cores that the step needs."""

from __future__ import annotations

import math

from slipstream.diagnose.ceilings import kept_steps
from slipstream.diagnose.gain import gain_of
from slipstream.diagnose.input_path import InputPath, costs_time, floor_of, input_path, step_after
from slipstream.diagnose.source_hints import with_loader_argument
from slipstream.diagnose.steps.selection import blocks_of
from slipstream.diagnose.steps.typical_step import typical_step
from slipstream.diagnose.worker_count import best_num_workers, worker_advice
from slipstream.numbers import in_ms, in_percent, part_of_ms, plural
from slipstream.records import Finding, Session, Summary

COMPUTE = ("forward", "backward", "optimizer")
BUSY = 0.85


def find(session: Session, summary: Summary) -> list[Finding]:
    path = input_path(session, summary)
    if path is None or path.loader.num_workers == 0 or not costs_time(summary, path):
        return []
    if path.loader.num_workers > session.environment.num_usable + 1 and path.waits < 0.5:
        return _too_many(session, summary, path)
    return _too_few(session, summary, path)


def _too_few(session: Session, summary: Summary, path: InputPath) -> list[Finding]:
    workers, now = best_num_workers(session, summary, path), path.loader.num_workers
    if workers <= now or path.busy < BUSY or path.wait_ms < 0.05 * summary.step_ms:
        return []
    then_ms = step_after(session, summary, path, num_workers=workers)
    return [
        Finding(
            cause="worker_count",
            title=f"Too few workers: {now}",
            evidence=f"The step waits {part_of_ms(path.wait_ms, summary.step_ms)} for data; "
            f"{plural(now, 'worker')} built batches {in_percent(path.busy)} of the time, "
            f"and this machine has {plural(session.environment.num_usable, 'usable core')}.",
            predicted_gain=gain_of(summary.step_ms, then_ms),
            change=with_loader_argument(session, path.loader, "num_workers", str(workers)),
            settings={"num_workers": str(workers)},
            site=path.loader.site,
            techniques=["workers", "prefetch"],
            advice=worker_advice(session, path.loader, workers),
        )
    ]


def _too_many(session: Session, summary: Summary, path: InputPath) -> list[Finding]:
    alone_ms, beside_ms = _compute_alone_ms(session, path), sum(summary.phases.get(phase, 0.0) for phase in COMPUTE)
    if alone_ms is None or beside_ms < 1.15 * alone_ms:
        # The step computes equally fast with busy workers and with idle ones, so workers do not slow it down.
        return []
    workers = max(1, math.floor(session.environment.num_usable))
    if path.loader.num_workers * path.busy < 1:
        return []  # On average less than one worker is active, so fewer workers would not change the step.
    # Fewer workers save at most the time by which busy workers slow down the step.
    given_back_ms = beside_ms - alone_ms
    model_ms = max(floor_of(summary, path), path.work_ms / workers, _shared_ms(summary))
    then_ms = max(model_ms, summary.step_ms - given_back_ms)
    return [
        Finding(
            cause="worker_count",
            title=f"Too many workers: {path.loader.num_workers}",
            evidence=f"Forward, backward and optimizer take {in_ms(beside_ms)} beside "
            f"{plural(path.loader.num_workers, 'worker')} and {in_ms(alone_ms)} while they are idle, "
            f"on {plural(session.environment.num_usable, 'usable core')}.",
            predicted_gain=gain_of(summary.step_ms, then_ms),
            change=with_loader_argument(session, path.loader, "num_workers", str(workers)),
            settings={"num_workers": str(workers)},
            site=path.loader.site,
            techniques=["workers"],
        )
    ]


def _shared_ms(summary: Summary) -> float:
    return summary.ceilings.shared_ms or 0.0


def _compute_alone_ms(session: Session, path: InputPath) -> float | None:
    blocks = blocks_of(session, ("kept",))
    typical = typical_step([step for block in blocks for step in kept_steps(session, block, path.loader)])
    return sum(typical.phases[phase] for phase in COMPUTE) if typical else None
