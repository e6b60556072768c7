"""The way of a batch: how long the step waits for it, how long one process works on it, on which lines; and the
step that a change to it would leave. Predicts no better than the compute ceiling and the shared cores allow."""

from __future__ import annotations

import msgspec

from slipstream.diagnose.hotspots import FEWEST_SAMPLES, total, watched_stacks
from slipstream.diagnose.selection import batches_per_step, fetches_of, is_on_cpu, training_loader, watched_kinds
from slipstream.diagnose.statistics import fmean
from slipstream.records import Ceilings, Loader, Session, StackCount, Summary

DRAINED = 1.5  # times what the drained loader needs for a batch; more than that is not believed
LEAST_SHARE = 0.05  # of the step that must be lost to input before any cure for it is worth a word
# Handing a batch from a worker to the main process, on both sides. Rough and on the high side, so that workers are not
# promised to steps too light for them; what they really give, tune measures.
SENDING_MS = 0.5
SENDING_MS_PER_BYTE = 0.6e-6
RECEIVING_MS = 0.4
RECEIVING_MS_PER_BYTE = 0.1e-6


class InputPath(msgspec.Struct, frozen=True):
    loader: Loader
    batches: float  # per step
    wait_ms: float  # per step, of the main process
    work_ms: float  # per step, of one process that builds batches
    cpu_ms: float  # of that work
    waits: float  # share of the work that is waiting (disk, network, sleep) and needs no core
    busy: float  # share of their time that workers build batches; 1.0 without workers
    stacks: list[StackCount]  # where the building process was

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
        # While the loader is drained nothing else takes the cores: the smaller of the two is the work itself.
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
    """Without workers the wait is the work. Where the drained loader needed far less, the rest was a queue for a core
    (or for a cache that compute had emptied), which no cure for input takes away."""
    if ceilings.input_ms is None:
        return wait_ms
    return min(wait_ms, DRAINED * max(ceilings.input_ms, ceilings.input_cpu_ms or 0.0))


def lost_ms(summary: Summary, path: InputPath) -> float:
    """What input costs the step: the wait, and with workers also what they take from the cores of the step."""
    compute_ms = summary.ceilings.compute_ms
    if path.loader.num_workers == 0:
        return path.work_ms
    if compute_ms is None:
        return path.wait_ms
    # The compute ceiling is another stretch of time: below its noise only the wait itself is believed.
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
    """The step if a batch took this much work, by this many workers."""
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
    # The model says how the step changes; the run says how long it is now.
    scaled_ms = summary.step_ms * then_ms / now_ms if now_ms > 0 else summary.step_ms
    return min(summary.step_ms, max(floor_ms, scaled_ms))


def floor_of(summary: Summary, path: InputPath) -> float:
    """The step if input were free: what is left of it without its wait. With workers it may be less, since workers
    that rest give their cores back; the compute ceiling shows that. A ceiling above the rest of the step is noise."""
    if path.loader.num_workers == 0:
        return summary.step_ms - path.work_ms
    without_ms = summary.step_ms - path.wait_ms
    compute_ms = summary.ceilings.compute_ms
    if compute_ms is None:
        return without_ms
    return min(compute_ms, without_ms)


def batch_bytes(loader: Loader) -> int:
    return sum(facts.num_bytes for facts in loader.tensor_facts)


def handover_ms(path: InputPath) -> tuple[float, float]:
    """What a step's batches would cost the worker and the main process to pass on."""
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
    """Time off the CPU is waiting on a quiet machine. On a busy one, or with more workers than cores, it may be a queue
    for a core, and only lines that were seen to wait or read are believed."""
    off_cpu = 1 - min(1.0, on_cpu / granted_share(session, summary.ceilings))
    count = total(stacks)
    is_busy = session.environment.load >= 0.7 * session.environment.num_usable
    if not (is_busy or loader.num_workers > session.environment.num_usable) or count < FEWEST_SAMPLES:
        return off_cpu
    return min(off_cpu, total(stacks, lambda stack: stack.stage in ("wait", "read")) / count)


def granted_share(session: Session, ceilings: Ceilings) -> float:
    """On the CPU a step that has its data computes all the time: CPU time short of that was given to others."""
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
    # A worker that waits with none of the user's lines on its stack waits for its next task: that is no work.
    return [stack for stack in watched_stacks(session, "worker", ("input",)) if stack.stage != "wait" or stack.file]
