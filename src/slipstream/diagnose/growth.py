"""Memory that grows step by step, told apart from warm-up, caches and page-ins by a slope that lasts."""

from __future__ import annotations

import msgspec

from slipstream.diagnose.outlook import training_length
from slipstream.diagnose.statistics import rising_share, robust_slope
from slipstream.diagnose.training import is_on_accelerator
from slipstream.records import Memory, Session

FEWEST_POINTS = 12
LEAST_TENSORS = 0.05  # a tensor kept every twenty steps is kept on purpose (a log), and cheap
LEAST_BYTES = 20_000.0  # per step; our own records and a list of floats stay below
UNTOLD_STEPS = 20_000  # a training whose length nobody knows


class Growth(msgspec.Struct, frozen=True):
    graphs_per_step: float
    tensors_per_step: float
    bytes_per_step: float
    num_steps: int  # over which it was seen
    steps_until_full: float | None

    @property
    def is_fatal(self) -> bool:
        return self.steps_until_full is not None


def find_growth(session: Session) -> Growth | None:
    """None where nothing grows."""
    series = sorted(session.memory, key=lambda point: point.step)
    series = series[len(series) // 4 :]  # allocators, caches and cuDNN plans fill in the beginning
    if len(series) < FEWEST_POINTS or series[-1].step <= series[0].step:
        return None
    graphs = _lasting_slope(series, [point.num_graphs for point in series])
    tensors = _lasting_slope(series, [point.num_tensors for point in series])
    held = _lasting_slope(series, [_held_bytes(session, point) for point in series])
    if not _is_growing(series, graphs, tensors, held):
        return None
    num_steps = series[-1].step - series[0].step
    return Growth(graphs, tensors, held, num_steps, _steps_until_full(session, series[-1], held))


def _is_growing(series: list[Memory], graphs: float, tensors: float, held: float) -> bool:
    if series[-1].num_tensors >= 0 or series[-1].num_graphs >= 0:
        # Live tensors were counted: bytes that grow without them are pages of a memory map, or a cache.
        return graphs >= LEAST_TENSORS or (tensors >= LEAST_TENSORS and held >= LEAST_BYTES)
    return held >= 10 * LEAST_BYTES


def _lasting_slope(series: list[Memory], values: list[int]) -> float:
    """Per step; 0 unless both halves rise alike and hardly a stretch goes down."""
    if values[-1] < 0:
        return 0.0
    points = [(float(point.step), float(value)) for point, value in zip(series, values, strict=True)]
    half = len(points) // 2
    early, late, whole = robust_slope(points[:half]), robust_slope(points[half:]), robust_slope(points)
    lasts = late > 0 and early > 0 and late >= 0.5 * early and rising_share([value for _, value in points]) >= 0.8
    return whole if lasts else 0.0


def _held_bytes(session: Session, point: Memory) -> int:
    return point.device_bytes if is_on_accelerator(session) else point.resident_bytes


def _steps_until_full(session: Session, last: Memory, held: float) -> float | None:
    """Steps until memory runs out, if that is before the training ends."""
    if held <= 0:
        return None
    machine = session.environment
    limit = machine.memory_limit_bytes or machine.memory_bytes
    if is_on_accelerator(session):
        limit = machine.gpus[0].memory_bytes if machine.gpus else 0
    if limit <= 0:
        return None
    left = max(0.0, (limit - _held_bytes(session, last)) / held)
    num_steps, _ = training_length(session)
    return left if left < (num_steps or UNTOLD_STEPS) else None
