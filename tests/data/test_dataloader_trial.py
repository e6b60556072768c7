from __future__ import annotations

from math import nan

import pytest

from slipstream.data.dataloader import LOOKED_AT, SETTLING, LoaderTrial, num_wanted


@pytest.mark.parametrize(
    ("load_ms", "step_ms", "cores", "count"),
    [(1, 99, 8, 0), (30, 100, 8, 1), (100, 30, 8, 4), (100, 1, 8, 8), (100, 0, 2, 2), (0, 0, 4, 0), (100, 30, 1, 1)],
)
def test_num_wanted(load_ms: float, step_ms: float, cores: int, count: int) -> None:
    assert num_wanted(load_ms / 1e3, step_ms / 1e3, cores)[0] == count


def fed(load_s: float, step_s: float, cores: int = 4) -> LoaderTrial:
    """Notes plain batches until the choice is made."""
    trial = LoaderTrial("", cores)
    assert not trial.note(5.0, nan, False), "the first has none before it"
    loads = [5.0] * SETTLING + [load_s] * LOOKED_AT
    changed = [trial.note(one, step_s, False) for one in loads]
    assert changed == [False] * (LOOKED_AT + SETTLING - 1) + [True]
    return trial


def test_the_choice_is_made_after_a_fixed_number_of_batches() -> None:
    trial = fed(0.03, 0.01)
    assert (trial.choice.how, trial.choice.num_workers) == ("workers", 3)
    assert (round(trial.choice.load_ms), round(trial.choice.step_ms)) == (30, 10)
    assert "30 ms" in trial.choice.reason and not trial.is_open
    assert trial.wants_workers(12) and not trial.wants_workers(11), "too few are left to be worth starting them"
    assert not trial.note(9.0, 9.0, False)


def test_a_fast_loader_gets_no_workers() -> None:
    assert fed(0.0001, 0.01).choice.how == "plain"


def test_workers_that_do_not_help_are_removed() -> None:
    for trip_s, how in ((0.041, "plain"), (0.012, "workers")):
        trial = fed(0.03, 0.01)
        changes = [trial.note(trip_s / 2, trip_s / 2, True) for _ in range(4 * 3 + 2 * LOOKED_AT)]
        assert trial.choice.how == how and changes[-1] == (how == "plain") and not any(changes[:-1])


def test_a_refusal_is_the_reason() -> None:
    trial = LoaderTrial("num_workers is given", 8)
    assert (trial.choice.how, trial.choice.reason, trial.is_open) == ("plain", "num_workers is given", False)
