"""Which events end a step while the script runs."""

from __future__ import annotations

import pytest

from slipstream.observe.step_counter import Leader, StepCounter

CRITIC, GENERATOR = 1, 2


def seen(counter: StepCounter, *events: tuple[str, int]) -> list[int]:
    """The number of steps after each event."""
    counts = []
    for kind, ident in events:
        counter.see(kind, ident, samples=8 if kind == "input" else 0)
        counts.append(counter.num_steps)
    return counts


def test_stricter_kinds_take_over() -> None:
    counter = StepCounter()
    assert seen(counter, *[("forward", 0)] * 16)[-1] == 0, "a model that is only called may still train"
    assert seen(counter, ("forward", 0), ("forward", 0)) == [1, 2]
    assert seen(counter, ("backward", 0), ("forward", 0)) == [3, 3]
    assert seen(counter, ("optimizer", 1), ("backward", 0), ("optimizer", 1)) == [4, 4, 5]


@pytest.mark.parametrize("kind", ["optimizer", "backward", "forward", "input"])
def test_one_kind_alone_ends_steps_from_its_first_event(kind: str) -> None:
    counter = StepCounter((kind,))
    events = [(each, 1) for each in ("input", "forward", "backward", "optimizer")]
    assert seen(counter, *events, *events)[-1] == 2


@pytest.mark.parametrize(("leader", "first_cycle", "later_cycles"), [("first", 5, 15), ("rarest", 6, 3)])
def test_the_leader_ends_a_step(leader: Leader, first_cycle: int, later_cycles: int) -> None:
    """The rarest is known at its own first update. Until then the other one ends steps."""
    counter = StepCounter(("optimizer",), leader)
    cycle = [("optimizer", CRITIC)] * 5 + [("optimizer", GENERATOR)]
    counts = seen(counter, *cycle * 4)
    assert (counts[5], counts[-1] - counts[5]) == (first_cycle, later_cycles)


@pytest.mark.parametrize("leader", ["first", "rarest"])
def test_after_a_leader_that_has_finished_or_was_deleted_another_leads(leader: Leader) -> None:
    counter = StepCounter(("optimizer",), leader)
    seen(counter, *[("optimizer", 1)] * 3)
    before = seen(counter, *[("optimizer", 2)] * 250)[-1]
    assert seen(counter, *[("optimizer", 2)] * 7)[-1] == before + 7
    counter.forget(2)
    assert seen(counter, ("optimizer", 3))[-1] == before + 8


def test_samples_of_a_loader_without_training_do_not_count() -> None:
    counter = StepCounter()
    for _ in range(2):
        seen(counter, ("input", 1), ("optimizer", 1), ("input", 1), ("optimizer", 1))
        seen(counter, ("input", 2), ("input", 2))  # a validation
    assert counter.samples == 4 * 8
