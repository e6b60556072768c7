"""The input path: how long the step waits for a batch, how long one process works on it, and on which lines.

This module also predicts the step after a change to the input. A prediction is never shorter than the step with free
input. With workers, a prediction accounts for the cores that input and compute share.
"""

from __future__ import annotations

import msgspec

from slipstream.diagnose.hotspots import FEWEST_SAMPLES, Hotspot, total, watched_stacks
from slipstream.diagnose.statistics import fmean
from slipstream.diagnose.steps.selection import batches_per_step, fetches_of, is_on_cpu, training_loader, watched_kinds
from slipstream.records import Ceilings, Loader, Session, Site, StackCount, Summary

# Ratio of a wait to the time that the drained loader needs for a batch. The part of a wait beyond this ratio is not
# attributed to input.
DRAINED = 1.5
LEAST_SHARE = 0.05  # Share of the step that input must cost before a fix for input is reported
# The cost of passing a batch from a worker to the main process, for each side. The values are rough and rather too
# high, so that workers are not recommended for steps that are too short for workers. `tune` measures the real gain.
SENDING_MS = 0.5
SENDING_MS_PER_BYTE = 0.6e-6
RECEIVING_MS = 0.4
RECEIVING_MS_PER_BYTE = 0.1e-6


class InputPath(msgspec.Struct, frozen=True):
    loader: Loader
    batches: float  # Batches per step
    wait_ms: float  # Time per step that the main process waits for batches
    work_ms: float  # Time that one process needs to build the batches of a step
    cpu_ms: float  # CPU time in `work_ms`
    waits: float  # Share of the work that is waiting (disk, network, sleep) and needs no core
    busy: float  # Share of the workers' time in which they build batches; 1.0 without workers
    stacks: list[StackCount]  # Stack samples of the processes that build batches

    def share(self, stacks: list[StackCount]) -> float:
        """The share of the work that these samples stand for."""
        count = total(self.stacks)
        return total(stacks) / count if count >= FEWEST_SAMPLES else 0.0


def input_path(session: Session, summary: Summary) -> InputPath | None:
    loader = training_loader(session)
    if loader is None or summary.step_ms <= 0:
        return None
    batches = max(1.0, batches_per_step(session))
    wait_ms = summary.phases.get("input", 0.0)
    walls = [fetch.wall_ns / 1e6 for fetch in fetches_of(session, loader, watched_kinds(session))]
    if loader.num_workers == 0:
        work_ms = _believed_ms(wait_ms, summary.ceilings)
    else:
        # While the loader is drained, the step does not use the cores, so the smaller of the two times is the work
        # itself.
        drained = [fetch.wall_ns / 1e6 for fetch in fetches_of(session, loader, ("drain",))]
        means = [fmean(times) for times in (walls, drained) if times]
        work_ms = min(means) * batches if means else wait_ms * loader.num_workers
    cpu_ms = summary.ceilings.input_cpu_ms
    cpu_ms = min(work_ms, cpu_ms) if cpu_ms is not None else work_ms
    stacks = _building_stacks(session, loader)
    return InputPath(
        loader=loader,
        batches=batches,
        wait_ms=wait_ms,
        work_ms=work_ms,
        cpu_ms=cpu_ms,
        waits=_waiting_share(session, summary, loader, cpu_ms / work_ms if work_ms > 0 else 1.0, stacks),
        busy=_busy(session, loader, walls),
        stacks=stacks,
    )


def _believed_ms(wait_ms: float, ceilings: Ceilings) -> float:
    """The part of the wait that input causes.

    Without workers the wait is the work. If the drained loader needed far less time, the rest of the wait has another
    cause: a queue for a core, or CPU caches that the computation had emptied. No fix for input removes this rest.
    """
    if ceilings.input_ms is None:
        return wait_ms
    return min(wait_ms, DRAINED * max(ceilings.input_ms, ceilings.input_cpu_ms or 0.0))


def data_site(loader: Loader, hot: Hotspot | None = None) -> Site | None:
    """The line that builds a batch: the sampled line of the user, else the dataset's method, else the loader's line."""
    if hot is not None:
        return hot.site
    return loader.getitem_site or building_site(loader)


def building_site(loader: Loader) -> Site | None:
    """The line that builds the loader; None if the Hugging Face Trainer builds it.

    The site of a Trainer's loader is the line that configures the Trainer. That line says nothing about the data.
    """
    return loader.site if loader.framework != "transformers" else None


def lost_ms(summary: Summary, path: InputPath) -> float:
    """The milliseconds that input costs the step.

    Without workers they are the work on batches. With workers they are the longer of two times: the wait, and the time
    by which the step is longer than with free data.
    """
    compute_ms = summary.ceilings.compute_ms
    if path.loader.num_workers == 0:
        return path.work_ms
    if compute_ms is None:
        return path.wait_ms
    # The compute ceiling was measured at another time. A difference below its noise is ignored.
    starved_ms = summary.step_low_ms - compute_ms
    return max(path.wait_ms, starved_ms if starved_ms > 0.1 * summary.step_ms else 0.0)


def costs_time(summary: Summary, path: InputPath | None) -> bool:
    return path is not None and lost_ms(summary, path) >= LEAST_SHARE * summary.step_ms


def step_after(
    session: Session,
    summary: Summary,
    path: InputPath,
    *,
    work_ms: float | None = None,
    cpu_ms: float | None = None,
    num_workers: int | None = None,
) -> float:
    """The predicted step if its batches took `work_ms` of work and `num_workers` workers built them."""
    work_ms = path.work_ms if work_ms is None else work_ms
    cpu_ms = path.cpu_ms * (work_ms / path.work_ms if path.work_ms > 0 else 1.0) if cpu_ms is None else cpu_ms
    workers = path.loader.num_workers if num_workers is None else num_workers
    floor_ms = floor_of(summary, path)
    if workers == 0:
        return min(summary.step_ms, max(floor_ms, summary.step_ms - (path.work_ms - work_ms)))
    if path.loader.num_workers == 0:
        sending_ms, receiving_ms = handover_ms(path)
        floor_ms, work_ms, cpu_ms = floor_ms + receiving_ms, work_ms + sending_ms, cpu_ms + sending_ms + receiving_ms
        return min(summary.step_ms, _overlapped_ms(session, summary, floor_ms, work_ms, cpu_ms, workers))
    then_ms = _overlapped_ms(session, summary, floor_ms, work_ms, cpu_ms, workers)
    now_ms = _overlapped_ms(session, summary, floor_ms, path.work_ms, path.cpu_ms, path.loader.num_workers)
    # The prediction gives the ratio by which the step changes. The measurement gives the step's length now.
    scaled_ms = summary.step_ms * then_ms / now_ms if now_ms > 0 else summary.step_ms
    return min(summary.step_ms, max(floor_ms, scaled_ms))


def floor_of(summary: Summary, path: InputPath) -> float:
    """The step if input were free: the compute ceiling or, if there is no ceiling, the step without its wait.

    Without workers, free input removes at most the part of the wait that input causes.
    """
    least_ms = summary.ceilings.compute_ms
    if path.loader.num_workers == 0:
        return max(summary.step_ms - path.work_ms, least_ms or 0.0)
    return summary.step_ms - path.wait_ms if least_ms is None else least_ms


def batch_bytes(loader: Loader) -> int:
    return sum(facts.num_bytes for facts in loader.tensor_facts)


def handover_ms(path: InputPath) -> tuple[float, float]:
    """The milliseconds that a worker needs to send the batches of a step, and the main process to receive them."""
    num_bytes = batch_bytes(path.loader)
    return (
        path.batches * (SENDING_MS + num_bytes * SENDING_MS_PER_BYTE),
        path.batches * (RECEIVING_MS + num_bytes * RECEIVING_MS_PER_BYTE),
    )


def _overlapped_ms(
    session: Session, summary: Summary, floor_ms: float, work_ms: float, cpu_ms: float, workers: int
) -> float:
    compute_cpu_ms = summary.ceilings.compute_cpu_ms
    if compute_cpu_ms is None:
        compute_cpu_ms = floor_ms
    shared_ms = (cpu_ms + compute_cpu_ms) / max(1.0, session.environment.num_usable)
    return max(floor_ms, work_ms / max(1, workers), shared_ms)


def _waiting_share(
    session: Session, summary: Summary, loader: Loader, on_cpu: float, stacks: list[StackCount]
) -> float:
    """The share of the work that is waiting.

    On a quiet machine, time off the CPU is waiting. On a busy machine, or with more workers than cores, a process may
    also be off the CPU because it has no core. Then the result is at most the share of the samples that wait or read.
    """
    off_cpu = 1 - min(1.0, on_cpu / granted_share(session, summary.ceilings))
    count = total(stacks)
    is_busy = session.environment.load >= 0.7 * session.environment.num_usable
    if not (is_busy or loader.num_workers > session.environment.num_usable) or count < FEWEST_SAMPLES:
        return off_cpu
    return min(off_cpu, total(stacks, lambda stack: stack.stage in ("wait", "read")) / count)


def granted_share(session: Session, ceilings: Ceilings) -> float:
    """The share of a core that each computing thread received.

    On the CPU, a step with free data computes all the time. If its CPU time is shorter than the step, other programs
    used the cores.
    """
    if not is_on_cpu(session) or not ceilings.compute_ms or not ceilings.compute_cpu_ms:
        return 1.0
    return max(0.05, min(1.0, ceilings.compute_cpu_ms / ceilings.compute_ms))


def _busy(session: Session, loader: Loader, walls: list[float]) -> float:
    if loader.num_workers == 0:
        return 1.0
    kinds = watched_kinds(session)
    elapsed_ms = sum((block.end_ns - block.start_ns) / 1e6 for block in session.blocks if block.kind in kinds)
    return min(1.0, sum(walls) / (loader.num_workers * elapsed_ms)) if elapsed_ms > 0 else 0.0


def _building_stacks(session: Session, loader: Loader) -> list[StackCount]:
    if loader.num_workers == 0:
        return watched_stacks(session, "main", ("input",))
    # A worker that waits, without a line of the user's on its stack, waits for its next task. This wait is not work.
    return [stack for stack in watched_stacks(session, "worker", ("input",)) if stack.stage != "wait" or stack.file]
