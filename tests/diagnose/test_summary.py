import msgspec
import pytest

from slipstream.diagnose import diagnose
from slipstream.records import Ending, Evaluation, Event, Length, Rehearsal, Step
from slipstream.report.text.check import training_time
from slipstream.testing.made_sessions import FIRST_NS, made_environment, made_loader, made_session


def summary_of(**facts):
    return diagnose(made_session(**facts)).summary


def test_the_numbers_of_a_plain_training():
    summary = summary_of(input_ms=40, forward_ms=10, backward_ms=8, optimizer_ms=1, other_ms=1)
    assert summary.step_ms == pytest.approx(60)
    assert summary.step_low_ms <= summary.step_ms <= summary.step_high_ms
    assert summary.samples_per_s == pytest.approx(32 / 0.060)
    assert sum(summary.phases.values()) == pytest.approx(summary.step_ms, rel=1e-12)
    assert summary.ceilings.compute_ms == pytest.approx(20)
    assert summary.ceilings.input_ms == pytest.approx(40)
    assert summary.ceilings.shared_ms == pytest.approx((40 + 40) / 2)
    assert summary.bound == "input"
    assert not summary.is_inference


def test_what_binds():
    assert summary_of().bound == "compute"
    assert summary_of(other_ms=200).bound == "other"
    assert summary_of(input_ms=12, forward_ms=5, backward_ms=5, num_workers=2, work_ms=60).bound == "input"
    # Neither side explains the step, but both together on two cores do.
    beside = {"forward_ms": 5, "backward_ms": 10, "optimizer_ms": 1, "starved": 1.5, "input_ms": 6}
    assert summary_of(**beside, num_workers=2, work_ms=30).bound == "cores"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("stopped", "The check was short: "),
        ("finished", "The script was short: "),
        ("killed", "The script was killed: "),
    ],
)
def test_the_note_about_a_short_observation_names_its_cause(reason, words):
    session = made_session(is_short=True)
    session = msgspec.structs.replace(session, ending=msgspec.structs.replace(session.ending, reason=reason))
    assert sum(note.startswith(words) for note in diagnose(session).diagnosis_notes) == 1


def test_a_short_script_uses_its_warm_up_and_has_a_note():
    session = diagnose(made_session(is_short=True))
    assert session.summary.num_steps == 8
    assert session.summary.ceilings.compute_ms is None
    assert any("warm-up" in note for note in session.diagnosis_notes)


def test_a_missing_ceiling_says_who_ended():
    session = made_session(is_short=True)
    assert "The check ended before the step could be timed" in " ".join(diagnose(session).summary.ceilings.notes)
    finished = msgspec.structs.replace(session, ending=Ending("finished", 0, 30.0))
    assert "The script ended before the step could be timed" in " ".join(diagnose(finished).summary.ceilings.notes)


def test_no_step_no_summary():
    session = diagnose(msgspec.structs.replace(made_session(), steps=[]))
    assert session.summary is None
    assert session.findings == []
    assert any("No step" in note for note in session.diagnosis_notes)


def test_a_first_step_alone_is_not_called_none():
    session = made_session(is_short=True)
    first = msgspec.structs.replace(session.steps[0], block=-1)
    session = diagnose(msgspec.structs.replace(session, steps=[first]))
    assert session.summary is None
    assert any("Only the warm-up was seen" in note for note in session.diagnosis_notes)


def test_diagnosing_again_changes_nothing():
    once = diagnose(made_session(is_short=True, input_ms=40))
    assert diagnose(once) == once


def test_without_a_loader_there_is_no_input_ceiling():
    summary = summary_of(has_loader=False, input_ms=0)
    assert summary.ceilings.input_ms is None
    assert summary.ceilings.shared_ms is None
    alone = made_session(has_loader=False, is_short=True)
    assert "No DataLoader" in diagnose(alone).summary.ceilings.notes[0]


def test_buffers_filled_while_data_were_free_do_not_count():
    session = made_session(num_workers=2, input_ms=20, work_ms=80)
    kept = next(block for block in session.blocks if block.kind == "kept")
    first = len(session.steps)
    start_ns = session.blocks[-1].end_ns
    fast = {"input": 0.0, "forward": 10.0, "backward": 20.0, "optimizer": 1.0, "other": 0.5}
    slow = {**fast, "input": 20.0}
    block = msgspec.structs.replace(session.blocks[1], index=9, start_ns=start_ns, end_ns=start_ns + 10**9)
    more = [
        Step(first + i, 9, start_ns, start_ns, sum(p.values()), p, 32, 1, 1, 1, 1)
        for i, p in enumerate([fast] * 4 + [slow] * 20)
    ]
    joined = msgspec.structs.replace(session, blocks=[*session.blocks, block], steps=[*session.steps, *more])
    assert kept.kind == "kept"
    assert diagnose(joined).summary.num_steps == 60 + 20


def evaluation(after_step: int, ms: float, start_ms: float = 0.0, **facts) -> Evaluation:
    start_ns = FIRST_NS + int(start_ms * 1e6)
    made = Evaluation(start_ns, start_ns + int(ms * 1e6), 10, 320, ms * 0.9, ms * 0.1, False, after_step, 1)
    return msgspec.structs.replace(made, **facts)


def test_the_share_of_validation_is_measured_from_one_to_the_next():
    seen = [evaluation(after, 320.0) for after in (9, 19, 29)]
    summary = summary_of(evaluations=seen)
    assert summary.evaluation_share == pytest.approx(320 / (320 + 10 * 32))
    assert "measured" in summary.evaluation_note


def test_a_sanity_check_before_training_is_no_validation():
    assert summary_of(evaluations=[evaluation(-1, 500.0)]).evaluation_share is None


def test_validation_that_was_not_seen_is_estimated_with_a_note():
    session = made_session()
    other = made_loader(ident=1, num_batches=100)
    summary = diagnose(msgspec.structs.replace(session, loaders=[*session.loaders, other])).summary
    assert summary.evaluation_share == pytest.approx(100 * (10 + 0.5) / (100 * 10.5 + 1000 * 32))
    assert "not seen" in summary.evaluation_note


def test_validation_that_did_not_follow_an_epoch_is_not_estimated():
    """As with --noval, or with validation every fifth epoch: 88 batches were observed."""
    session, other = made_session(), made_loader(ident=1, num_batches=1)
    seen = [
        diagnose(msgspec.structs.replace(session, loaders=[made_loader(num_batches=epoch), other])).summary
        for epoch in (80, 100)
    ]
    assert seen[0].evaluation_share is None and seen[0].evaluation_note == ""
    assert seen[1].evaluation_note.startswith("not seen, estimated from 1 batch of another")


def test_how_long_it_takes():
    summary = summary_of(input_ms=40, length=Length(num_epochs=90))
    assert summary.seconds_left == pytest.approx(90 * 1000 * 71.5 / 1000, rel=0.01)
    assert summary.seconds_best == pytest.approx(90 * 1000 * 31.5 / 1000, rel=0.01)
    assert summary_of(length=Length(num_steps=100)).seconds_left == pytest.approx(3.2, rel=0.01)
    assert summary_of().seconds_left is None
    # Without workers free data save only the wait, however quiet the machine was at that time.
    quieter = summary_of(input_ms=2, starved=1.5, length=Length(num_epochs=90))
    assert quieter.seconds_best == pytest.approx(quieter.seconds_left - 90 * 1000 * 2 / 1000, rel=0.01)


def test_free_input_starts_no_workers():
    session = made_session(num_workers=2, work_ms=4, length=Length(num_epochs=10))
    opened = []
    for step in session.steps:
        if step.index not in (20, 40):
            opened.append(step)
            continue
        phases = step.phases | {"input": step.phases["input"] + 700, "other": step.phases["other"] + 300}
        changes = {"phases": phases, "step_ms": step.step_ms + 1000, "is_first_of_epoch": True}
        opened.append(msgspec.structs.replace(step, **changes))
    summary = diagnose(msgspec.structs.replace(session, steps=opened)).summary
    plain = diagnose(session).summary
    assert summary.seconds_left - plain.seconds_left == pytest.approx(10 * 1.0, rel=0.01)
    assert summary.seconds_best - plain.seconds_best == pytest.approx(10 * 0.3, rel=0.01)


def test_free_data_takes_away_no_more_than_the_wait_without_workers():
    session = made_session(input_ms=1, forward_ms=10, backward_ms=20, optimizer_ms=1, other_ms=0)
    kept = {block.index for block in session.blocks if block.kind == "kept"}
    fast = [
        msgspec.structs.replace(step, step_ms=step.step_ms / 2, phases={k: v / 2 for k, v in step.phases.items()})
        if step.block in kept
        else step
        for step in session.steps
    ]
    uneven = diagnose(msgspec.structs.replace(session, steps=fast))
    assert uneven.summary.ceilings.compute_ms == pytest.approx(31)
    assert any("too noisy" in note for note in uneven.diagnosis_notes)
    assert not any("too noisy" in note for note in diagnose(session).diagnosis_notes)


def test_inference_is_recognised():
    session = made_session()
    steps = [msgspec.structs.replace(step, num_backwards=0, num_updates=0) for step in session.steps]
    assert diagnose(msgspec.structs.replace(session, steps=steps)).summary.is_inference


def test_a_lone_core_gets_a_sentence_and_no_recommendation():
    session = diagnose(made_session(input_ms=40, environment=made_environment(num_usable=1.0, num_threads=1)))
    assert "no_workers" not in [finding.cause for finding in session.findings]
    assert any("usable core" in note for note in session.diagnosis_notes)


def test_no_ceiling_is_longer_than_the_step():
    """Steps with free data took five times as long. The noise of those blocks is in their CPU time too."""
    session = diagnose(made_session(starved=0.2, compute_cpu_ms=22.0, input_ms=4.0))
    ceilings, step_ms = session.summary.ceilings, session.summary.step_ms
    assert ceilings.compute_ms == ceilings.best_ms() == pytest.approx(step_ms - 4.0), "free data remove the wait"
    assert ceilings.shared_ms < 0.7 * step_ms
    device = made_environment(device="cuda")
    overlapped = diagnose(made_session(starved=0.2, input_ms=4.0, environment=device)).summary
    assert overlapped.ceilings.compute_ms == overlapped.step_ms, "a device may compute during the wait"
    assert any("too noisy" in note for note in session.diagnosis_notes)
    assert any(note.startswith("The machine was busy: a computing thread") for note in session.diagnosis_notes)
    drained = diagnose(made_session(num_workers=2, input_ms=0.1, work_ms=200.0)).summary
    assert drained.ceilings.best_ms() <= drained.step_ms


def test_a_compute_ceiling_that_was_too_short_keeps_its_share_of_the_cores():
    """The steps with free data ran in a quieter moment. That is no sign of a busy machine in them."""
    session = diagnose(made_session(starved=4.0, compute_cpu_ms=62.0, input_ms=4.0))
    ceilings = session.summary.ceilings
    assert ceilings.compute_cpu_ms / ceilings.compute_ms == pytest.approx(62 / 31.5)
    assert not any("busy" in note for note in session.diagnosis_notes)


def test_a_machine_that_was_busy_before_the_check_is_reported():
    """Two threads that spin while they wait for each other use all of their cores and hide other programs."""
    environment = msgspec.structs.replace(made_environment(), load=5.5)
    busy = diagnose(made_session(has_loader=False, environment=environment)).diagnosis_notes
    words = "The machine was busy when the measurement began: a load of 5.5 on 2 cores"
    assert any(note.startswith(words) for note in busy)
    quiet = diagnose(made_session(has_loader=False)).diagnosis_notes
    assert not any("busy" in note for note in quiet)


def test_how_often_validation_was_seen_reads_as_a_sentence():
    def note(*after: int) -> str:
        return summary_of(evaluations=[evaluation(one, 320.0) for one in after]).evaluation_note

    assert note(67) == "measured: seen once in 68 steps"
    assert note(2, 3, 4) == "measured: seen 3 times, every step"
    assert note(9, 19) == "measured: seen 2 times, every 10 steps"


def test_what_makes_the_average_step_longer_is_no_input():
    """Some steps log or save, and free data would not change that."""
    session = made_session(num_workers=2, input_ms=0.0, length=Length(num_steps=1000))
    steps = [
        msgspec.structs.replace(one, step_ms=one.step_ms + 200, phases={**one.phases, "other": 200.5})
        if one.index % 10 == 9 and one.block == 1
        else one
        for one in session.steps
    ]
    summary = diagnose(msgspec.structs.replace(session, steps=steps)).summary
    assert summary.seconds_left > 1.3 * summary.step_ms
    assert summary.seconds_best == pytest.approx(summary.seconds_left, rel=0.01)


def test_an_evaluation_before_the_first_step_is_not_one_per_step():
    """minGPT evaluates at iteration 0 and then at 500. The trial observes the first and many steps without another."""
    session = diagnose(made_session(evaluations=[evaluation(0, 5000.0)]))
    later = len(session.steps) - 1
    assert session.summary.evaluation_note == f"measured: seen once in {later} steps"
    (found,) = [one for one in session.findings if one.cause == "frequent_validation"]
    assert f"seen once in {later} steps" in found.evidence and "at the most" in found.evidence
    assert "in place of" not in found.change
    assert found.predicted_gain < 1 + 5000 / (later * session.summary.step_ms) + 0.01


def test_the_training_ends_by_its_steps_or_its_epochs_whichever_are_over_first():
    """3 epochs are 3000 steps of 32 ms."""
    for length, seconds, words in [
        (Length(num_epochs=3, num_steps=2000), 64, "2,000 steps"),
        (Length(num_epochs=3, num_steps=4000), 96, "3 epochs"),
        (Length(num_epochs=3, num_steps=40), 96, "3 epochs"),  # the trial saw more
    ]:
        session = diagnose(made_session(length=length))
        assert session.summary.seconds_left == pytest.approx(seconds, rel=0.01)
        assert training_time(session).startswith(words)


def test_the_length_of_the_training_agrees_with_the_step_that_is_printed():
    """The machine was faster in a third of the steps, so the average step is shorter than the usual one."""
    session = made_session(length=Length(num_steps=1000))
    for index, step in enumerate(session.steps):
        if index % 3 == 0:
            phases = {phase: ms / 2 for phase, ms in step.phases.items()}
            session.steps[index] = msgspec.structs.replace(step, step_ms=step.step_ms / 2, phases=phases)
    summary = diagnose(session).summary
    assert summary.seconds_left == pytest.approx(summary.step_ms, rel=0.01)


def test_a_length_that_the_trial_exceeded_is_ignored():
    """`num_steps` of a rollout, if the script updates more often than that."""
    assert summary_of(length=Length(num_steps=30)).seconds_left is None


def test_a_few_long_steps_give_a_note():
    session = made_session()
    steps = [
        msgspec.structs.replace(step, step_ms=step.step_ms * 20) if step.index % 16 == 0 else step
        for step in session.steps
    ]
    (note,) = [
        note for note in diagnose(msgspec.structs.replace(session, steps=steps)).diagnosis_notes if "on average" in note
    ]
    assert note.startswith("Most steps take 32 ms, but on average one takes ")
    assert not any("on average" in note for note in diagnose(session).diagnosis_notes)


def test_training_in_evaluation_mode_gives_a_note():
    session = made_session()

    def called(learns_until: int) -> list[str]:
        calls = [
            Event(
                "forward", 0, step.start_ns + 1, step.end_ns - 1, grad=True, training=step.index < learns_until, site=1
            )
            for step in session.steps
        ]
        return diagnose(msgspec.structs.replace(session, events=[*session.events, *calls])).diagnosis_notes

    (note,) = [note for note in called(20) if "evaluation mode" in note]
    assert note.startswith("From step 21 on the model (called at train.py:")
    for meant in (0, len(session.steps)):  # frozen on purpose; always in training mode
        assert not any("evaluation mode" in note for note in called(meant))


def test_a_race_of_threads_on_a_busy_machine_decides_nothing():
    """Two threads wait for each other at every operator, so they look slow while another program uses the second
    core.
    """
    race = Rehearsal("threads", "2", 76.0, 204.0, 0.39, 0.33, 0.67, 5)

    def notes(load, low=0.33, threads=1):
        environment = msgspec.structs.replace(made_environment(num_threads=threads), load=load)
        session = made_session(environment=environment, rehearsals=[msgspec.structs.replace(race, low=low)])
        return [note for note in diagnose(session).diagnosis_notes if "torch computes" in note]

    (note,) = notes(load=5.5)
    assert "check again on a quiet machine" in note
    assert notes(load=0.5) == [] and notes(load=5.5, low=1.5) == []
    assert len(notes(load=5.5, threads=16)) == 1 and notes(load=5.5, threads=2) == []
