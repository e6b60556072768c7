from __future__ import annotations

import pytest

from slipstream.records import BlockTiming
from slipstream.tuning.block_length import BlockPlan, block, evened, typical_step_s


@pytest.mark.parametrize("step_ms", [0.5, 1, 5, 20, 50, 90])
def test_a_block_takes_about_a_quarter_of_a_second(step_ms: float) -> None:
    assert 0.2 <= block(BlockPlan(step_ms / 1e3, at_once=2))[0] * step_ms / 1e3 <= 0.3


def test_a_block_includes_a_burst_of_batches() -> None:
    assert [block(BlockPlan(0.08, at_once=number))[0] for number in (0, 2, 3, 16)] == [3, 3, 3, 4]


@pytest.mark.parametrize(("step_s", "num_steps"), [(0.06, 4), (0.12, 4), (0.17, 3), (0.25, 2), (1.0, 2)])
def test_blocks_of_longer_steps_have_fewer_steps(step_s: float, num_steps: int) -> None:
    assert block(BlockPlan(step_s)) == (num_steps, 1)


@pytest.mark.parametrize("step_s", [1.1, 3.0, 30.0])
def test_a_long_step_is_a_block_of_its_own(step_s: float) -> None:
    assert block(BlockPlan(step_s)) == (1, 0)


def test_the_lead_in_is_a_share_of_the_block() -> None:
    assert [block(BlockPlan(step_s)) for step_s in (0.1, 0.01, 0.001)] == [(4, 1), (25, 1), (250, 15)]


@pytest.mark.parametrize(("step_s", "epoch_steps"), [(0.1, 10), (0.02, 30), (0.001, 7), (0.5, 1), (0.004, 250)])
def test_blocks_are_whole_epochs_if_epochs_are_short(step_s: float, epoch_steps: int) -> None:
    num_steps, lead_in = block(BlockPlan(step_s, epoch_steps))
    assert (num_steps + lead_in) % epoch_steps == 0
    assert num_steps >= block(BlockPlan(step_s))[0]


def test_blocks_are_not_whole_epochs_if_epochs_are_long() -> None:
    assert block(BlockPlan(0.2, epoch_steps=13)) == block(BlockPlan(0.2))


def test_the_typical_step_ignores_disturbed_blocks() -> None:
    timings = [
        BlockTiming(0, 0, 0, 10, 1.0, 0),
        BlockTiming(0, 1, 0, 10, 9.0, 0, is_disturbed=True),
        BlockTiming(0, 2, 0, 0, 0.0, 0),
    ]
    assert typical_step_s(timings) == 0.1
    assert typical_step_s(timings[1:]) is None


@pytest.mark.parametrize(("step_s", "training_steps", "epoch_steps"), [(0.001, 60, 0), (0.02, 30, 15), (1.0, 6, 0)])
def test_a_block_is_at_most_a_third_of_the_training(step_s: float, training_steps: int, epoch_steps: int) -> None:
    num_steps, lead_in = block(BlockPlan(step_s, epoch_steps, training_steps))
    assert num_steps >= 1 and lead_in == 1 and num_steps + lead_in <= training_steps // 3
    assert block(BlockPlan(step_s, epoch_steps, 10**6)) == block(BlockPlan(step_s, epoch_steps))


def _timing(seconds: float, starts_s: float = 0.0) -> BlockTiming:
    return BlockTiming(0, 1, 0, 4, seconds, 0, starts_s=starts_s, epoch_start_s=0.5)


def test_the_cost_of_an_epoch_start_is_spread_over_its_steps() -> None:
    with_start, without = (
        evened(_timing(0.9, starts_s=0.5), BlockPlan(0.1, 100)),
        evened(_timing(0.4), BlockPlan(0.1, 100)),
    )
    assert with_start.step_s == pytest.approx(without.step_s) == pytest.approx(0.1 + 0.5 / 100)


@pytest.mark.parametrize("epoch_steps", [0, 10])
def test_it_is_not_spread_if_blocks_are_whole_epochs_or_the_length_is_unknown(epoch_steps: int) -> None:
    assert evened(_timing(0.9, starts_s=0.5), BlockPlan(0.1, epoch_steps)).seconds == 0.9
