import pytest

from slipstream.diagnose.steps.typical_step import typical_step
from slipstream.records import Step


def step(index: int, input_ms: float, forward_ms: float = 10.0, block: int = 0, first: bool = False) -> Step:
    phases = {"input": input_ms, "forward": forward_ms}
    return Step(index, block, 0, 0, input_ms + forward_ms, phases, 8, 1, 1, 1, 1, is_first_of_epoch=first)


def test_bursts_of_workers_do_not_fool_the_median():
    # Three workers deliver together: two of three steps do not wait, the third waits for all of them.
    steps = [step(i, 30.0 if i % 3 == 0 else 0.0) for i in range(60)]
    assert typical_step(steps, 1).step_ms == 10.0
    typical = typical_step(steps, 3)
    assert typical.step_ms == pytest.approx(20.0)
    assert typical.phases["input"] == pytest.approx(10.0)
    assert sum(typical.phases.values()) == pytest.approx(typical.step_ms, rel=1e-12)


def test_steps_that_open_an_epoch_stay_out():
    steps = [step(i, 500.0 if i % 5 == 0 else 1.0, first=i % 5 == 0) for i in range(20)]
    assert typical_step(steps, 1).step_ms == 11.0
    assert typical_step([step(0, 500.0, first=True)], 1).step_ms == 510.0


def test_groups_do_not_reach_across_blocks():
    steps = [step(i, 0.0, block=i // 3) for i in range(9)]
    assert typical_step(steps, 2).step_ms == 10.0
    assert typical_step(steps, 2).num_steps == 9


def test_no_steps_no_answer():
    assert typical_step([], 4) is None


def test_a_step_without_phases_is_other():
    bare = Step(0, 0, 0, 0, 7.0, {}, 0, 0, 0, 0, 0)
    assert typical_step([bare]).phases["other"] == 7.0
