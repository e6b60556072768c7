"""Detects memory that grows with every step until the end. The growth of warm-up, caches and page-ins ends earlier."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from slipstream.diagnose.statistics import rising_share, robust_slope
from slipstream.diagnose.steps.selection import is_on_accelerator
from slipstream.diagnose.steps.training_time import training_length
from slipstream.records import Leak, Memory, Session

FEWEST_POINTS = 12
LEAST_GRAPHS = 0.25  # Graphs per step. A script that keeps graphs less often is taken to do so on purpose.
LEAST_TENSORS = 0.25  # Tensors per step
LEAST_BYTES = 20_000.0  # Bytes per step. slipstream's own records and a list of floats stay below this value.
_FEWEST_OBSERVATIONS = 4
_STOPPED = 0.1  # Share of the fastest growth per step. Growth below this share has stopped.
ASSUMED_STEPS = 20_000  # Assumed length of a training whose length is unknown


class GrowthTrend(msgspec.Struct, frozen=True):
    graphs_per_step: float
    tensors_per_step: float
    bytes_per_step: float
    num_steps: int  # Number of steps during which the growth was observed
    steps_until_full: float | None

    @property
    def is_fatal(self) -> bool:
        return self.steps_until_full is not None


def find_growth(session: Session) -> GrowthTrend | None:
    """The growth, or None if nothing grows."""
    series = sorted(session.memory, key=lambda point: point.step)
    if len(series) < 2 or series[-1].step <= series[0].step:
        return None
    held = max(_held_slope(session, series), _leaked(session.leaks, series[-1].step))
    counted = [point for point in series if point.num_tensors >= 0]
    graphs = _rising([(point.step, point.num_graphs) for point in counted])
    tensors = _rising([(point.step, point.num_tensors) for point in counted])
    if len(counted) < 3 and not _is_filled(session.leaks, series[-1].step):
        # Two observations are not a trend, unless one of the user's containers has grown at about the same rate.
        graphs = tensors = 0.0
    graphs = max(graphs, _added_up(session.leaks, series[-1].step))
    # Only a growing number of live tensors is reported. Without it, growing bytes are pages of a memory map, or a
    # cache.
    if graphs < LEAST_GRAPHS and (tensors < LEAST_TENSORS or held < LEAST_BYTES):
        return None
    return GrowthTrend(graphs, tensors, held, series[-1].step - series[0].step, _until_full(session, series[-1], held))


def was_followed(memory: list[Memory]) -> bool:
    """Whether live tensors were counted often enough to distinguish a leak from a cache."""
    return len(_counted(memory)) >= _FEWEST_OBSERVATIONS


def _counted(memory: list[Memory]) -> list[tuple[int, int]]:
    return _spaced(sorted((point.step, point.num_tensors) for point in memory if point.num_tensors >= 0))


def has_stopped(memory: list[Memory]) -> int | None:
    """The observed step after which the number of live tensors no longer grew.

    None if the number still grows, or if there were too few observations.
    """
    counted = _counted(memory)
    rises = [(right[1] - left[1]) / (right[0] - left[0]) for left, right in pairwise(counted)]
    if not was_followed(memory) or rises[-1] > _STOPPED * max(rises):
        return None
    return min(step for step, count in counted if count >= counted[-1][1])


def _spaced(points: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The observations, without each one that follows its predecessor too soon to show growth."""
    widest = max((right[0] - left[0] for left, right in pairwise(points)), default=0)
    kept = points[:1]
    for point in points[1:]:
        if point[0] - kept[-1][0] >= max(1, 0.5 * widest):
            kept.append(point)
    return kept


def _rising(points: list[tuple[int, int]]) -> float:
    """Growth per step from the first observation to the last.

    0 unless every observation is larger than the one before it, and the last rise is at least half as fast as the
    first.
    """
    slopes = [(right[1] - left[1]) / (right[0] - left[0]) for left, right in pairwise(points) if right[0] > left[0]]
    if not slopes or min(slopes) <= 0 or slopes[-1] < 0.5 * slopes[0]:
        return 0.0
    return (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])


def _added_up(leaks: list[Leak], num_steps: int) -> float:
    """The graphs per step that a single tensor holds, because the script adds every step's loss to it.

    The number of live tensors does not include the tensors inside this graph, although they use memory.
    """
    most = max((leak.num_tensors for leak in leaks if leak.is_sum), default=0)
    return most / num_steps if most >= 0.7 * num_steps else 0.0


def _leaked(leaks: list[Leak], num_steps: int) -> float:
    """Bytes per step in the leaked tensors that have no graph."""
    return sum(leak.num_bytes for leak in leaks if not leak.has_graph) / num_steps


def _is_filled(leaks: list[Leak], num_steps: int) -> bool:
    return any(leak.num_tensors >= 0.7 * num_steps for leak in leaks)


def _held_slope(session: Session, series: list[Memory]) -> float:
    """The growth of the used memory, in bytes per step.

    0 unless the second half rises at least half as fast as the first, and the memory rises in nearly all intervals.
    """
    late = series[len(series) // 4 :]  # At the beginning allocators, caches and cuDNN plans fill.
    if len(late) < FEWEST_POINTS:
        return 0.0
    points = [(float(point.step), float(_held_bytes(session, point))) for point in late]
    half = len(points) // 2
    first, second = robust_slope(points[:half]), robust_slope(points[half:])
    lasts = min(first, second) > 0 and second >= 0.5 * first and rising_share([value for _, value in points]) >= 0.8
    return robust_slope(points) if lasts else 0.0


def _held_bytes(session: Session, point: Memory) -> int:
    return point.device_bytes if is_on_accelerator(session) else point.resident_bytes


def _until_full(session: Session, last: Memory, held: float) -> float | None:
    """Steps until memory is full; None if the training ends before that, or if the size of the memory is unknown."""
    machine = session.environment
    limit = machine.memory_limit_bytes or machine.memory_bytes
    if is_on_accelerator(session):
        limit = machine.gpus[0].memory_bytes if machine.gpus else 0
    if held <= 0 or limit <= 0:
        return None
    left = max(0.0, (limit - _held_bytes(session, last)) / held)
    num_steps, _ = training_length(session)
    return left if left < (num_steps or ASSUMED_STEPS) else None
