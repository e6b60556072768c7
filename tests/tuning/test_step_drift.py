from __future__ import annotations

import pytest

from slipstream.records import BlockTiming
from slipstream.tuning.step_drift import is_slowing


def _timings(*steps_ms: float) -> list[BlockTiming]:
    return [BlockTiming(0, at, 10 * at, 10, ms / 100, 0) for at, ms in enumerate(steps_ms)]


@pytest.mark.parametrize(
    ("steps_ms", "expected"),
    [
        ((1, 1.1, 1.3, 1.5, 1.8, 2), True),
        ((1, 1.02, 1.1, 1.15, 1.2, 1.25), False),  # as much as a machine's speed changes by itself
        ((2, 1.8, 1.5, 1.3, 1.1, 1), False),  # it becomes faster
        ((1, 1, 1, 1, 1, 9), False),  # one slow block
        ((1, 3, 1, 3, 1, 3, 1, 3), False),  # noise between neighbours
        ((1, 2, 3, 4), False),  # too few blocks
        ((), False),
    ],
)
def test_a_process_slows_down_if_its_last_blocks_take_longer_than_its_first(
    steps_ms: tuple[float, ...], expected: bool
) -> None:
    assert is_slowing(_timings(*steps_ms)) is expected
