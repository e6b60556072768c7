"""Steps during which other programs used the cores are left out of every figure."""

import msgspec
import pytest

from slipstream.diagnose import diagnose
from slipstream.diagnose.steps.undisturbed import has_headline, undisturbed
from slipstream.records import LoadSample
from slipstream.report.text.check import basis, verdict
from slipstream.testing.made_sessions import made_environment, made_session, with_load


def test_disturbed_steps_are_left_out_and_said_to_be():
    quiet = diagnose(made_session(num_steps=40))
    session = diagnose(with_load(made_session(num_steps=40), [1.2] * 9))
    summary = session.summary
    assert (summary.num_steps, summary.num_undisturbed, summary.num_disturbed) == (31, 31, 9)
    assert summary.foreign_cores == pytest.approx(1.2)
    assert summary.step_ms == summary.step_high_ms == pytest.approx(quiet.summary.step_ms)
    assert "Other programs used 1.2 cores during 9 of 40 steps: they are left out." in session.diagnosis_notes
    assert "31 of 40 steps counted" in basis(session) and verdict(session) == verdict(quiet)


def test_most_of_a_check_was_disturbed():
    """Seven steps are left: too few for a headline, however many were seen."""
    session = diagnose(with_load(made_session(num_steps=40), [1.2] * 33))
    assert session.summary.step_ms == pytest.approx(32.0) and not has_headline(session.summary)
    assert verdict(session).startswith("Only 7 undisturbed steps were seen (32 ms): too few to say")


def test_all_of_a_check_was_disturbed():
    session = diagnose(with_load(made_session(num_steps=40, input_ms=40.0), [1.0] * 40))
    summary = session.summary
    assert (summary.num_steps, summary.num_undisturbed, summary.num_disturbed) == (40, 0, 40)
    assert verdict(session) == (
        "Other programs used 1 core during all 40 steps (143 ms). How long a step takes and what limits it is not "
        "known."
    )
    assert [finding.cause for finding in session.findings] == ["no_workers"], "causes show under load too"


def test_steps_that_wait_for_the_same_workers_are_left_out_together():
    session = with_load(made_session(num_steps=40, num_workers=4, input_ms=10.0), [0, 0, 0, 0, 0, 1.2, 0, 0, 0, 1.2])
    all_steps = undisturbed(msgspec.structs.replace(session, foreign_load=[]))
    left_out = {step.index for step in all_steps} - {step.index for step in undisturbed(session)}
    first = all_steps[0].index
    assert left_out == {first + at for at in range(4, 12)}
    assert diagnose(session).summary.num_disturbed == 8


def test_disturbed_steps_are_no_part_of_a_ceiling():
    session = made_session(input_ms=40.0)
    kept = next(block for block in session.blocks if block.kind == "kept")
    steps = [step for step in session.steps if step.block == kept.index]
    slow = {step.index for step in steps[:14]}
    longer = [msgspec.structs.replace(step, step_ms=60.0) if step.index in slow else step for step in session.steps]
    samples = [LoadSample(step.start_ns, step.end_ns, 1.2 * (step.index in slow)) for step in session.steps]
    noisy = diagnose(msgspec.structs.replace(session, steps=longer, foreign_load=samples))
    assert noisy.summary.ceilings.compute_ms == diagnose(session).summary.ceilings.compute_ms


def test_a_machine_that_was_busy_before_the_steps_is_not_called_busy():
    environment = msgspec.structs.replace(made_environment(), load=9.0)
    guessed = diagnose(made_session(environment=environment))
    measured = diagnose(with_load(made_session(environment=environment), []))
    assert any("busy" in note for note in guessed.diagnosis_notes)
    assert not any("busy" in note for note in measured.diagnosis_notes)


def test_long_steps_that_others_caused_are_not_the_scripts():
    session = with_load(made_session(num_steps=40), [1.8] * 16 + [0.3] * 24)
    assert not any("few long steps" in note for note in diagnose(session).diagnosis_notes)
    unmeasured = msgspec.structs.replace(session, foreign_load=[])
    assert any("few long steps" in note for note in diagnose(unmeasured).diagnosis_notes)
