"""Two sessions are compared: whether the difference exceeds the noise, in which phase, and what changed."""

from __future__ import annotations

import random
from io import StringIO

import msgspec
import pytest
from rich.console import Console

from slipstream.diagnose import diagnose
from slipstream.records import Choice, Recipe, Session, SessionComparison, Step, Tuning
from slipstream.report.terminal.comparison import render_comparison, sentence
from slipstream.testing.made_sessions import (
    made_environment,
    made_footprint,
    made_loader,
    made_session,
    with_load,
    with_steps_of,
)
from slipstream.verify.session_diff import changes, compare

replace = msgspec.structs.replace


def noisy(seed: int, spread: float = 0.1, num_steps: int = 80, **ms: float) -> Session:
    """Every step is longer or shorter by chance, and the machine drifts from block to block."""
    draws = random.Random(seed)
    session = made_session(num_steps=num_steps, **ms)  # type: ignore[arg-type]

    def shaken(step: Step, drift: float) -> Step:
        factor = drift * draws.lognormvariate(0.0, spread)
        phases = {phase: value * factor for phase, value in step.phases.items()}
        return replace(step, phases=phases, step_ms=sum(phases.values()))

    drifts = [draws.lognormvariate(0.0, spread / 3) for _ in range(len(session.steps) // 10 + 1)]
    steps = [shaken(step, drifts[at // 10]) for at, step in enumerate(session.steps)]
    return diagnose(replace(session, steps=steps))


def test_equal_trainings_are_seldom_called_different() -> None:
    found = [compare(noisy(seed), noisy(1000 + seed)) for seed in range(20)]
    assert sum(one.outcome != "same" for one in found) <= 2
    assert sum(one.low <= 1 <= one.high for one in found if one.low and one.high) >= 18


def test_a_slower_phase_is_named() -> None:
    found = compare(noisy(1), noisy(2, forward_ms=20.0))
    assert found.outcome == "slower" and found.ratio == pytest.approx(32 / 42, rel=0.05)
    assert found.low is not None and found.high is not None and found.ratio is not None
    assert found.low < found.ratio < found.high < 1
    beyond = [one.phase for one in found.phases if one.is_beyond_noise]
    assert "forward" in beyond
    most = max(found.phases, key=lambda one: one.after_ms - one.before_ms)
    assert most.phase == "forward" and most.low_ms > 5
    assert compare(noisy(2, forward_ms=20.0), noisy(1)).outcome == "faster"
    assert compare(noisy(1), noisy(2, forward_ms=20.0)) == found, "the same draws for the same sessions"


def test_one_percent_is_no_difference_even_without_noise() -> None:
    before, after = diagnose(made_session()), diagnose(made_session(forward_ms=10.3))
    assert compare(before, after).outcome == "same"
    assert compare(before, diagnose(made_session(forward_ms=12.0))).outcome == "slower"


def test_what_changed_is_listed() -> None:
    before = diagnose(made_session())
    torch = before.environment.torch
    assert torch is not None
    environment = replace(
        before.environment, variables={"OMP_NUM_THREADS": "1"}, torch=replace(torch, version="2.14.0")
    )
    after = replace(
        before,
        script=["train.py", "--lr", "0.1"],
        environment=environment,
        loaders=[made_loader(num_workers=2)],
        tuning=Tuning(1.0, 1.0, recipe=Recipe((Choice("workers", 2),))),
    )
    told = {one.what: (one.before, one.after) for one in changes(before, after)}
    assert told["arguments"] == ("none", "--lr 0.1")
    assert told["torch"] == ("2.13.0", "2.14.0")
    assert told["OMP_NUM_THREADS"] == ("none", "1")
    assert told["recipe kept"] == ("none", "workers=2")
    assert told["train.py:31 num_workers"] == ("0", "2")
    assert not list(changes(before, before))
    light, heavy = (replace(before, footprints=[made_footprint(32, size)]) for size in (60_000_000, 64_000_000))
    assert [(one.what, one.before, one.after) for one in changes(light, heavy)] == [
        ("peak memory of a step", "76.0 MB", "80.0 MB")
    ]


def test_reasons_for_doubt_are_notes() -> None:
    before = diagnose(made_session())
    elsewhere = diagnose(made_session(environment=replace(made_environment(), cpu="another", load=9.0)))
    found = compare(before, elsewhere, ("old", "new"))
    assert not found.is_same_machine and found.outcome == "unsure"
    assert "the machine was busy when new began (a load of 9.0 on 2 cores)" in sentence(found)
    assert before.summary is not None
    ceilings = replace(before.summary.ceilings, compute_ms=30.0, compute_cpu_ms=12.0)
    starved = replace(before, summary=replace(before.summary, ceilings=ceilings))
    assert [(busy.session, busy.when) for busy in found.busy] == [("new", "at_start")]
    assert [(busy.session, busy.when) for busy in compare(before, starved).busy] == [("after", "during")]
    worded = replace(before, notes=["The machine was busy: this is only a sentence."])
    assert not compare(before, worded).busy, "no sentence is read"
    assert "the machine was busy during after" in sentence(compare(before, starved))
    larger = replace(before, steps=[replace(step, samples=64) for step in before.steps])
    assert any("64 after" in note for note in compare(before, diagnose(larger)).notes)
    empty = compare(before, replace(before, summary=None))
    assert empty.outcome == "unknown" and empty.ratio is None and "No step" in empty.notes[0]


def test_nothing_is_concluded_from_fewer_than_eight_steps() -> None:
    """Two checks of an unchanged script under load gave "3.58x as fast, beyond the noise of both (2.38 to 6.69)"."""
    before = with_steps(5445.0, 386.0, 363.0)
    found = compare(before, with_steps(*[80.0] * 20))
    assert found.outcome == "unsure" and [(one.session, one.num_groups) for one in found.few] == [("before", 3)]
    shown = in_terminal(found)
    assert "It is not known whether the step changed: before has only 3 undisturbed steps" in shown
    assert "beyond the noise" not in shown and "interval covers only" in shown and " to " not in shown.split("notes")[0]
    assert compare(with_steps(*[386.0] * 8), with_steps(*[80.0] * 8)).outcome == "faster"
    assert compare(with_steps(*[386.0] * 7), with_steps(*[80.0] * 8)).outcome == "unsure"


def test_a_step_that_waits_for_all_workers_counts_once_in_a_group() -> None:
    found = compare(diagnose(made_session(num_steps=40)), diagnose(made_session(num_steps=40, num_workers=6)))
    assert found.outcome == "unsure" and "6 groups of 6 undisturbed steps" in sentence(found)


def test_steps_beside_other_programs_do_not_count() -> None:
    quiet = diagnose(with_load(made_session(num_steps=40), []))
    busy = diagnose(with_load(made_session(num_steps=40), [1.2] * 20))
    found = compare(busy, quiet)
    assert found.outcome == "same" and found.ratio == pytest.approx(1.0) and not found.busy and not found.few
    assert found.notes == ["before: Other programs used 1.2 cores during 20 of 40 steps: they are left out."]
    busier = compare(diagnose(with_load(made_session(num_steps=40), [1.2] * 33)), quiet)
    assert busier.outcome == "unsure" and [one.num_groups for one in busier.few] == [7]
    busiest = compare(diagnose(with_load(made_session(num_steps=40), [1.2] * 40)), quiet)
    assert busiest.outcome == "unsure" and "during all steps of before" in sentence(busiest)


def test_a_difference_that_the_load_can_explain_is_none() -> None:
    """A tenth of two cores disturbs no step, but it can make one a twentieth longer."""
    quiet = diagnose(with_load(made_session(num_steps=40), []))
    found = compare(quiet, diagnose(with_load(made_session(num_steps=40), [0.2] * 40)))
    assert found.outcome == "unsure" and [(one.session, one.when) for one in found.busy] == [("after", "more")]
    assert "other programs used 0.20 of 2 cores more during after, which may explain the difference" in sentence(found)
    slower = diagnose(with_load(made_session(num_steps=40, forward_ms=20.0), [0.2] * 40))
    assert compare(quiet, slower).outcome == "slower", "the load is not enough for that"
    faster = diagnose(with_load(made_session(num_steps=40, forward_ms=5.0), [0.2] * 40))
    assert compare(quiet, faster).outcome == "faster", "load makes nothing faster"


def with_steps(*times_ms: float) -> Session:
    return diagnose(with_steps_of(made_session(), times_ms))


def in_terminal(found: SessionComparison) -> str:
    text = StringIO()
    render_comparison(found, Console(file=text, width=100, no_color=True))
    return " ".join(text.getvalue().split())
