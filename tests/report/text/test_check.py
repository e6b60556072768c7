"""The headline of a check, and how long the training takes, in words."""

from __future__ import annotations

import json

import msgspec
import pytest

from slipstream.diagnose import diagnose
from slipstream.records import Length, Session, Site
from slipstream.report.html.headline_numbers import figures
from slipstream.report.html.page import to_page
from slipstream.report.json_export.export import export
from slipstream.report.notebook import to_html
from slipstream.report.terminal.session import render_to_text
from slipstream.report.text.check import training_time, verdict, watched
from slipstream.testing.made_sessions import FILE, made_session, made_stack, with_steps_of

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
    assert verdict(unseen).endswith("This run found nothing to gain.")


def test_a_few_long_steps_of_the_scripts_own_lines_are_looked_at_too() -> None:
    """In reinforcement learning the model takes most of the usual step, but rollouts take most of the time."""
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


@pytest.mark.parametrize(
    ("times", "sentence"),
    [
        ({"input_ms": 41, "forward_ms": 26, "other_ms": 33}, "The step waits for data 41% of the time"),
        (
            {"input_ms": 25, "forward_ms": 40, "other_ms": 35},
            "The model takes 40% of the step, more than anything else",
        ),
        (
            {"input_ms": 5, "forward_ms": 48, "other_ms": 47},
            "The model takes 48% of the step, more than anything else:",
        ),
        (
            {"input_ms": 40, "forward_ms": 55, "other_ms": 5},
            "The model takes most of the step, and the step waits for data",
        ),
    ],
)
def test_most_is_more_than_half(times: dict[str, float], sentence: str) -> None:
    session = diagnose(made_session(**times, backward_ms=0.0, optimizer_ms=0.0, work_ms=1.0))
    assert verdict(session).startswith(sentence)


def forward_only(session: Session) -> Session:
    steps = [msgspec.structs.replace(step, num_backwards=0, num_updates=0) for step in session.steps]
    return msgspec.structs.replace(session, steps=steps)


@pytest.mark.parametrize("is_short", [False, True])
def test_calls_of_a_model_are_no_steps_of_a_training(is_short: bool) -> None:
    session = forward_only(made_session(is_short=is_short))
    num = 8 if is_short else 60
    assert watched(diagnose(session)) == f"{num} inference steps watched"
    trains_later = diagnose(msgspec.structs.replace(session, makes_optimizer=True))
    assert watched(trains_later) == f"no training step watched, {num} forward passes before the first"
    assert verdict(trains_later).startswith("No training step was seen, only calls of the model before the first step.")


def test_nothing_trained_and_nothing_settled() -> None:
    session = forward_only(made_session(is_short=True))
    session = msgspec.structs.replace(session, blocks=[])
    assert verdict(diagnose(session)).endswith("; the model was called, but nothing was trained.")
    assert "8 steps" not in watched(diagnose(session))


@pytest.mark.parametrize("num_steps", [1, 3, 7])
def test_fewer_than_eight_steps_give_no_headline(num_steps: int) -> None:
    """With too few undisturbed steps a median is misleading: steps of 5445, 386 and 363 ms have no typical length."""
    session = diagnose(
        with_steps_of(made_session(length=Length(num_epochs=14)), [5445, 386, 363, 370, 380, 390, 400][:num_steps])
    )
    said = verdict(session)
    count = "1 step was" if num_steps == 1 else f"{num_steps} steps were"
    figure = "5.4 s" if num_steps == 1 else "363 ms–5.4 s"
    unknown = "too few to say how long a step takes and what limits it. --seconds gives it more time."
    assert said == f"Only {count} seen ({figure}): {unknown}"
    assert training_time(session) == ""
    page, told = to_page(session), json.loads(export(session))
    assert told["verdict"] == said and said in page and "median of" not in page
    assert figures(session)[0].value == figure and "samples a second" not in [one.name for one in figures(session)]
    for text in (render_to_text(session), to_html(session)):
        assert figure in text and "samples/s" not in text


def test_eight_steps_give_a_headline() -> None:
    session = diagnose(with_steps_of(made_session(), [386.0] * 8))
    assert verdict(session).startswith("The model limits the speed: 386 ms a step")
    assert figures(session)[0].value == "386 ms" and "The median of 8 undisturbed steps" in to_page(session)
