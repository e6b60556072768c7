"""How long the training takes, in words."""

from __future__ import annotations

import msgspec
import pytest

from slipstream.diagnose import diagnose
from slipstream.records import Length, Site
from slipstream.report.html.headline_numbers import figures
from slipstream.report.text.check import training_time, verdict
from slipstream.testing.made_sessions import FILE, made_session, made_stack

FOLDS = Site(FILE, 90, "for fold, (train, held_out) in enumerate(folds.split(data)):")


@pytest.mark.parametrize(
    ("around", "words", "figure"),
    [
        (None, "14 epochs: ", "the whole training"),
        (FOLDS, "14 epochs for each iteration of train.py:90: ", "one iteration of the outer loop"),
    ],
)
def test_folds_are_not_taken_for_the_whole(around: Site | None, words: str, figure: str) -> None:
    session = diagnose(made_session(length=Length(num_epochs=14, around=around)))
    assert training_time(session).startswith(words) and training_time(session).endswith("at this rate")
    assert figure in [one.name for one in figures(session)]


def test_a_step_of_the_scripts_own_lines_may_have_something_to_gain() -> None:
    stacks = [made_stack("python", 77, 60, phase="other", function="main", expression="f(x)")]
    session = diagnose(made_session(other_ms=60, stacks=stacks))
    assert session.findings == [] and session.summary is not None and session.summary.bound == "other"
    assert verdict(session).endswith("No known cause was found; the slowest line is train.py:77.")
    unseen = diagnose(made_session(other_ms=60))
    assert verdict(unseen).endswith("Nothing to gain that this run could see.")


def test_a_few_long_steps_of_the_scripts_own_lines_are_looked_at_too() -> None:
    """A learner that plays for its next updates: the usual step belongs to the model, but most of the time does not."""
    stacks = [made_stack("compute", 91, 60, phase="other", function="act", expression="Normal(mean, spread)")]
    session = made_session(stacks=stacks)
    steps = [
        msgspec.structs.replace(one, step_ms=one.step_ms + 1600, phases={**one.phases, "other": 1600.5})
        if one.index % 16 == 15
        else one
        for one in session.steps
    ]
    session = diagnose(msgspec.structs.replace(session, steps=steps))
    assert session.findings == [] and session.summary is not None and session.summary.bound == "compute"
    assert verdict(session).endswith("No known cause was found; the slowest line is train.py:91.")
