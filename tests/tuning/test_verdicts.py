"""The reasons for comparisons that were not won."""

from __future__ import annotations

import pytest
from slipstream.tuning.comparison import Comparison

from slipstream.records import BlockTiming, Choice, Recipe
from slipstream.tuning.trials import RecipeTrials
from slipstream.tuning.verdicts import _lost


@pytest.mark.parametrize(
    ("ratio", "decision", "reason"),
    [
        (0.3, "rejected", "far behind when it was paused for others: about 0.30x, too few rounds for an interval"),
        (
            0.8,
            "unsure",
            "not decided in 1 round: about 0.80x, too few rounds for an interval; a longer --budget helps",
        ),
    ],
)
def test_a_longer_budget_is_suggested_only_for_a_technique_that_is_raced_again(
    ratio: float, decision: str, reason: str
) -> None:
    base, trials = RecipeTrials("base", Recipe()), RecipeTrials("candidate", Recipe((Choice("a"),)))
    comparison = Comparison(trials, base, alpha=0.01, margin=0.01, floor=lambda: 0.0)
    comparison.add({id(base): BlockTiming(0, 1, 0, 10, 1.0, 0), id(trials): BlockTiming(1, 1, 0, 10, 1.0 / ratio, 0)})
    comparison.end("undecided")
    assert _lost(comparison) == (decision, reason)
