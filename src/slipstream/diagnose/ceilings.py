"""Ceilings: the step time if one resource were free, for a step with the usual number of batches.

`compute` is the step with free data. It is measured in the blocks of kind `kept`, which replay stored batches. `input`
is the step with free compute. It is measured while the loader is drained. `shared` is the CPU time that input and
compute need for a step, divided by the number of cores.
"""

from __future__ import annotations

from slipstream.diagnose.foreign_load import is_disturbed
from slipstream.diagnose.statistics import fmean, group_means, median
from slipstream.diagnose.steps.selection import (
    alike,
    batches_per_step,
    blocks_of,
    fetches_of,
    is_on_cpu,
    training_loader,
    watched_kinds,
)
from slipstream.diagnose.steps.typical_step import typical_step
from slipstream.records import Block, Ceilings, Loader, Session, Step

FREE = 0.02  # A step has free data if its wait for data takes at most this share of the step.
# Steps with free data must take at least this share of a block's time. If they take less, most of the block's CPU time
# belongs to other work.
MOSTLY = 0.5


def find_ceilings(session: Session) -> Ceilings:
    loader = training_loader(session)
    notes: list[str] = []
    if loader is None and session.command == "check":
        notes.append(
            "No DataLoader feeds the steps, so the step could not be timed with free data: there are no ceilings."
        )
    compute_ms = _compute_ms(session, loader)
    if compute_ms is None and loader is not None and session.command == "check":
        who = "The check" if session.ending.reason == "stopped" else "The script"
        notes.append(f"{who} ended before the step could be timed with free data: there is no compute ceiling.")
    input_ms = _input_ms(session, loader)
    if input_ms is None and loader is not None and session.command == "check":
        notes.append("The loader was not drained: there is no input ceiling.")
    input_cpu_ms = _input_cpu_ms(session, loader)
    compute_cpu_ms = _compute_cpu_ms(session, compute_ms)
    shared_ms = None
    if _shares_cores(session, loader) and input_cpu_ms is not None and compute_cpu_ms is not None:
        shared_ms = (input_cpu_ms + compute_cpu_ms) / max(1.0, session.environment.num_usable)
    return Ceilings(compute_ms, input_ms, shared_ms, input_cpu_ms, compute_cpu_ms, notes)


def kept_steps(session: Session, block: Block, loader: Loader | None) -> list[Step]:
    """The undisturbed steps of a block of kind `kept` that did not wait for data.

    Steps that waited are returned if all steps waited. Disturbed steps are returned if all steps were disturbed. The
    first steps are left out if enough steps remain, because workers still fill their buffers during the first steps
    and use the cores.
    """
    steps = alike(session, [step for step in session.steps if step.block == block.index])
    steps = [step for step in steps if step.phases.get("input", 0.0) <= FREE * step.step_ms] or steps
    steps = [step for step in steps if not is_disturbed(session, step)] or steps
    filling = max(2, (loader.prefetch_factor or 2) if loader and loader.num_workers else 2)
    return steps[filling:] if len(steps) >= filling + 3 else steps


def _compute_ms(session: Session, loader: Loader | None) -> float | None:
    steps = [step for block in blocks_of(session, ("kept",)) for step in kept_steps(session, block, loader)]
    typical = typical_step(steps)
    if typical is None:
        return None
    # Copying a replayed batch is part of the measurement and not of the script, so its time is subtracted.
    return max(0.0, typical.step_ms - typical.phases["input"])


def _input_ms(session: Session, loader: Loader | None) -> float | None:
    if loader is None:
        return None
    means = [
        mean
        for block in blocks_of(session, ("drain",))
        if block.loader in (-1, loader.ident)
        for mean in group_means([ns / 1e6 for ns in block.batch_ns], max(1, loader.num_workers))
    ]
    return median(means) * max(1.0, batches_per_step(session)) if means else None


def _input_cpu_ms(session: Session, loader: Loader | None) -> float | None:
    if loader is None:
        return 0.0
    kinds = (*watched_kinds(session), "drain")
    batches = max(1.0, batches_per_step(session))
    fetches = [fetch.cpu_ns for fetch in fetches_of(session, loader, kinds)]
    if fetches:
        return fmean(fetches) / 1e6 * batches
    asked = [
        event.cpu_ns
        for event in session.events
        if event.kind == "input" and event.ident == loader.ident and event.cpu_ns and not event.kept
    ]
    return fmean(asked) / 1e6 * batches if asked and loader.num_workers == 0 else None


def _compute_cpu_ms(session: Session, compute_ms: float | None) -> float | None:
    """CPU milliseconds of a step with free data, from the CPU time of the trial's process in blocks of kind `kept`."""
    if compute_ms is None:
        return None
    blocks = [block for block in blocks_of(session, ("kept",)) if block.cpu_ns > 0 and _is_mostly_free(session, block)]
    elapsed_ns = sum(block.end_ns - block.start_ns for block in blocks)
    if elapsed_ns > 0:
        return compute_ms * sum(block.cpu_ns for block in blocks) / elapsed_ns
    # The CPU time was not measured, so all threads are taken to be busy all the time. This upper bound of the CPU time
    # predicts the smallest gain.
    facts, usable = session.environment.torch, max(1.0, session.environment.num_usable)
    return compute_ms * (min(facts.num_threads, usable) if facts and is_on_cpu(session) else 1.0)


def _is_mostly_free(session: Session, block: Block) -> bool:
    steps = [step for step in session.steps if step.block == block.index]
    free_ms = sum(step.step_ms for step in steps if step.phases.get("input", 0.0) <= FREE * step.step_ms)
    return free_ms >= MOSTLY * (block.end_ns - block.start_ns) / 1e6


def _shares_cores(session: Session, loader: Loader | None) -> bool:
    return loader is not None and (is_on_cpu(session) or loader.num_workers == 0)
