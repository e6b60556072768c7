"""Large objects are pickled in a worker and unpickled in the training process."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.diagnose.gain import gain_of
from slipstream.diagnose.hotspots import FEWEST_SAMPLES, total, watched_stacks
from slipstream.diagnose.input_path import InputPath, batch_bytes, costs_time, floor_of, input_path
from slipstream.diagnose.speedtest_context import about_handing_over
from slipstream.numbers import in_percent, part_of_ms
from slipstream.records import Finding, Session, StackCount, Summary

SAVED = 0.8  # Share saved by tensors in shared memory, or by reused buffers
LEAST_SHARE = 0.25
LARGE = 1_000_000  # Bytes
# Frames in which the main process reads the bytes that a worker writes, after it has waited for the first byte.
RECEIVING = ("connection.py:_recv", "connection.py:recv_bytes")
# The frame of the queue. If it is inside a call, it builds objects from the bytes. Tensors are received in other
# frames.
UNPICKLING = "multiprocessing/queues.py:get"


def find(session: Session, summary: Summary) -> list[Finding]:
    path = input_path(session, summary)
    if path is None or path.loader.num_workers == 0 or not costs_time(summary, path):
        return []
    if path.loader.num_workers > session.environment.num_usable + 1:
        return []  # There are more processes than cores, so every handover looks slow.
    in_main, in_worker = _share_in_main(session, _is_handover), _share_in_workers(path)
    unpickles = _share_in_main(session, _unpickles) >= LEAST_SHARE
    if max(in_main, in_worker) < LEAST_SHARE or (0 < batch_bytes(path.loader) < LARGE and not unpickles):
        # The copy of a small batch of tensors is fast, so the time has another cause, unless objects are unpickled.
        return []
    # The step is blocked while the main process unpickles, so this part of the wait goes away. The workers' part of the
    # cost goes away only as far as the step waits for the workers.
    share = min(1.0, in_main + (1 - in_main) * in_worker)
    then_ms = max(min(floor_of(summary, path), summary.step_ms), summary.step_ms - SAVED * share * path.wait_ms)
    arrays = "" if path.loader.tensor_facts else "; the batch holds no tensors, so all of it is pickled through a pipe"
    # If workers have too few samples, nothing is known about their time.
    is_known = total(path.stacks) >= FEWEST_SAMPLES
    beside = f" and {in_percent(in_worker)} of the workers' time" if is_known else ""
    return [
        Finding(
            cause="heavy_handover",
            title="Batches are expensive to pass between processes",
            evidence=f"The step waits {part_of_ms(path.wait_ms, summary.step_ms)} for data; pickling and copying "
            f"between processes is {in_percent(in_main)} of it{beside}{arrays}.",
            predicted_gain=gain_of(summary.step_ms, then_ms),
            change="return tensors from the collate function (they travel in shared memory), and only what is used",
            site=path.loader.site,
            techniques=["buffer_reuse", "thread_workers"],
            advice=about_handing_over(session, batch_bytes(path.loader), in_worker * path.work_ms / path.batches),
        )
    ]


def _share_in_main(session: Session, is_meant: Callable[[StackCount], bool]) -> float:
    stacks = watched_stacks(session, "main", ("input",))
    count = total(stacks)
    return total(stacks, is_meant) / count if count >= FEWEST_SAMPLES else 0.0


def _share_in_workers(path: InputPath) -> float:
    return path.share([stack for stack in path.stacks if stack.stage == "handover"])


def _is_handover(stack: StackCount) -> bool:
    return stack.stage == "handover" or stack.leaf.endswith(RECEIVING)


def _unpickles(stack: StackCount) -> bool:
    return stack.in_call and stack.leaf == UNPICKLING
