from __future__ import annotations

import random
from typing import Any

import pytest
from slipstream.tuning.comparison import CLEAR, FEW, MIN_ROUNDS, UNPROMISING_ROUNDS, Comparison

from slipstream.records import (
    BlockTiming,
    Choice,
    Failure,
    Recipe,
    TechniqueNote,
    TrialRecord,
    TrialSpec,
)
from slipstream.tuning.trials import RecipeTrials

BASE = RecipeTrials("base", Recipe())
TRIALS = RecipeTrials("candidate", Recipe((Choice("a"),)))

CASES = ((1.06, 0.05), (1.2, 0.05), (1.0, 0.05))  # gain and noise


def _comparison(**how: Any) -> Comparison:
    settings: dict[str, Any] = {"alpha": 0.01, "margin": 0.01, "floor": lambda: 0.0}
    return Comparison(TRIALS, BASE, **{**settings, **how})


def _race(
    comparison: Comparison, ratio: float, num_rounds: int = 60, spread: float = 0.01, **timing: Any
) -> Comparison:
    draws = random.Random(1)
    for round in range(num_rounds):
        if comparison.is_over():
            break
        timings = {
            id(BASE): BlockTiming(0, round, 0, 10, draws.gauss(1.0, spread), 0),
            id(TRIALS): BlockTiming(1, round, 0, 10, draws.gauss(1.0, spread) / ratio, 0, **timing),
        }
        comparison.add(timings)
    return comparison


@pytest.mark.parametrize(
    ("ratio", "outcome"), [(1.3, "faster"), (1.05, "faster"), (0.9, "not_faster"), (1.0, "not_faster"), (0.2, "slower")]
)
def test_a_comparison_ends_as_soon_as_it_is_decided(ratio: float, outcome: str) -> None:
    comparison = _race(_comparison(), ratio)
    assert comparison.outcome == outcome
    assert comparison.sequence.num_rounds < 60


def test_a_whole_recipe_lacks_proof_until_it_is_certainly_faster() -> None:
    assert _race(_comparison(goal="measure"), 1.2, num_rounds=3, spread=0.05).lacks_proof()
    assert not _race(_comparison(goal="measure"), 1.2, num_rounds=30, spread=0.05).lacks_proof()
    assert not _race(_comparison(goal="measure"), 0.9, num_rounds=3).lacks_proof(), "more rounds would not help"
    assert not _race(_comparison(), 1.2, num_rounds=3).lacks_proof()


def test_a_whole_recipe_is_unpromising_if_even_an_upper_estimate_is_small() -> None:
    assert _race(_comparison(goal="measure"), 1.0, num_rounds=UNPROMISING_ROUNDS, spread=0.03).is_unpromising()
    assert not _race(
        _comparison(goal="measure"), 1.0, num_rounds=UNPROMISING_ROUNDS - 1, spread=0.03
    ).is_unpromising(), "too few rounds"
    assert not _race(_comparison(goal="measure"), 1.0, num_rounds=UNPROMISING_ROUNDS, spread=0.2).is_unpromising(), (
        "it may gain much"
    )
    assert not _race(_comparison(goal="measure"), 1.1, num_rounds=UNPROMISING_ROUNDS, spread=0.03).is_unpromising()
    assert not _race(_comparison(), 1.0, num_rounds=UNPROMISING_ROUNDS, spread=0.03).is_unpromising(), (
        "it is no whole recipe"
    )


def test_after_a_restart_the_last_start_counts() -> None:
    comparison = _race(_comparison(goal="measure"), 1.3, num_rounds=40)
    assert comparison.outcome == "measured"
    comparison.start_again()
    assert comparison.outcome is None and comparison.promise_of_last_start() > 1.2, "nothing else is known yet"
    _race(comparison, 0.98, num_rounds=8)
    assert comparison.promise() > 1.2 > 1.0 > comparison.promise_of_last_start()


def test_a_much_slower_candidate_is_ended_after_two_rounds() -> None:
    comparison = _race(_comparison(), 0.1)
    assert comparison.sequence.num_rounds == 2
    assert comparison.failure.endswith("times the step of as it is, and far behind in 2 rounds in a row")
    assert comparison.failure[:2] in ("9.", "10")


def test_a_gain_within_the_machines_noise_is_not_believed() -> None:
    assert _race(_comparison(floor=lambda: 0.08), 1.05).outcome != "faster"


def test_noise_never_rejects_a_possible_gain() -> None:
    """The floor only makes keeping harder."""
    assert _race(_comparison(floor=lambda: 0.5), 1.2).outcome is None


def test_disturbed_rounds_are_ignored() -> None:
    comparison = _race(_comparison(), 1.5, num_rounds=30, is_disturbed=True)
    assert comparison.outcome is None and comparison.speed() is None


def test_a_mirrored_comparison_measures_the_gain_of_the_anchor() -> None:
    comparison = _race(_comparison(is_mirrored=True), 0.8)
    assert comparison.outcome == "faster"
    assert comparison.promise() == pytest.approx(1.25, rel=0.02)


def test_a_control_runs_all_its_rounds() -> None:
    comparison = _race(_comparison(goal="control", max_rounds=MIN_ROUNDS + 4), 1.5)
    assert comparison.outcome == "measured" and comparison.sequence.num_rounds == MIN_ROUNDS + 4


def test_measuring_ends_with_a_tight_interval() -> None:
    speed = _race(_comparison(goal="measure"), 1.5, num_rounds=200).speed()
    assert speed is not None and speed.num_rounds < 200
    assert speed.low < 1.5 < speed.high and speed.high - speed.low < 0.03 * 1.01


def test_a_failed_trial_ends_the_comparison_with_its_reason() -> None:
    comparison = _race(_comparison(), 1.5, failure=Failure("killed by signal 9"))
    assert (comparison.outcome, comparison.failure) == ("failed", "killed by signal 9")


@pytest.mark.parametrize(
    ("changes", "declined", "outcome", "reason"),
    [
        ([TechniqueNote("a", "num_workers 0 -> 2")], [], None, ""),
        ([], [TechniqueNote("a", "the loader is iterable")], "declined", "the loader is iterable"),
        ([TechniqueNote("b", "something")], [], "no_effect", "it had no effect on this script"),
    ],
)
def test_a_technique_that_did_nothing_does_not_race(
    changes: list[TechniqueNote], declined: list[TechniqueNote], outcome: str | None, reason: str
) -> None:
    comparison = _comparison()
    record = TrialRecord(TrialSpec(1, "candidate", TRIALS.recipe), changes=changes, declined=declined)
    assert comparison.has_effect(record) == (outcome is None)
    assert (comparison.outcome, comparison.failure) == (outcome, reason)


def test_the_kind_of_a_failure_decides_and_not_its_words() -> None:
    failed, slow, late = _comparison(), _comparison(), _comparison()
    failed.refuse(Failure("slower: is how this message begins"))
    assert (failed.outcome, failed.failure) == ("failed", "slower: is how this message begins")
    slow.refuse(Failure("4x slower", "too_slow"))
    assert (slow.outcome, slow.failure) == ("slower", "4x slower")
    _race(late, 1.01, num_rounds=1).refuse(Failure("4x slower", "too_slow"))
    assert (late.outcome, late.failure) == ("undecided", "its start was too slow, 4x slower"), "its rounds count"


def test_without_the_base_the_speed_is_computed_through_the_anchor() -> None:
    first = _race(_comparison(), 1.2).speed()
    comparison = _race(_comparison(base=RecipeTrials("base", Recipe((Choice("elsewhere"),)))), 1.5)
    speed = comparison.speed_against_base(first)
    assert speed is not None and speed.ratio == pytest.approx(1.8, rel=0.02)
    assert speed.low < 1.8 < speed.high
    assert comparison.speed_against_base(None) is None


def test_the_failure_of_an_anchor_leaves_the_challenger_undecided() -> None:
    comparison = _comparison()
    comparison.abandon("workers=2 failed during the race: killed")
    assert comparison.outcome == "undecided" and "workers=2" in comparison.failure
    comparison.reopen()
    assert comparison.outcome is None and comparison.failure == ""


def test_only_an_undecided_comparison_is_reopened() -> None:
    comparison = _race(_comparison(), 1.5)
    comparison.reopen()
    assert comparison.outcome == "faster"


def test_hopeful_is_less_than_leading() -> None:
    hopeful, leading, useless = (_race(_comparison(alpha=1e-9), ratio, 12, spread) for ratio, spread in CASES)
    assert hopeful.is_hopeful() and not hopeful.is_leading()
    assert leading.is_hopeful() and leading.is_leading()
    assert not useless.is_hopeful()


def test_after_few_rounds_a_lead_must_be_clearer() -> None:
    """With the same gain and noise: five rounds show little about their own uncertainty."""
    few, many = (_race(_comparison(alpha=1e-9), 1.15, num_rounds, 0.17) for num_rounds in (5, 30))
    assert CLEAR < few._clearness() < CLEAR + FEW / 4 < many._clearness()
    assert not few.is_leading() and many.is_leading()


def test_the_optimistic_ratio_is_larger_after_fewer_rounds() -> None:
    new, short, long = _comparison(), _comparison(floor=lambda: 1.0), _comparison(floor=lambda: 1.0)
    _race(short, 1.03, num_rounds=10, spread=0.1)
    _race(long, 1.03, num_rounds=200, spread=0.1)
    assert new.optimistic_ratio() > short.optimistic_ratio() > long.optimistic_ratio() > 1.0
    assert short.optimistic_ratio() > short.promise()


def test_a_whole_recipe_is_proved_exactly_if_its_interval_lies_above_1() -> None:
    comparison, draws = _comparison(goal="measure", alpha=0.05), random.Random(3)
    seen = set()
    for round in range(40):
        timings = {
            id(BASE): BlockTiming(0, round, 0, 10, draws.gauss(1.1, 0.08), 0),
            id(TRIALS): BlockTiming(1, round, 0, 10, draws.gauss(1.0, 0.08), 0),
        }
        comparison.add(timings)
        speed = comparison.speed()
        assert speed is not None and comparison.is_proved() == (speed.low > 1.0)
        seen.add(comparison.is_proved())
    assert seen == {True, False}
