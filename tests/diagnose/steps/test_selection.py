"""Steps of different numbers of batches: a script that accumulates more and more batches while it warms up."""

from __future__ import annotations

import msgspec
import pytest

from slipstream.diagnose import diagnose
from slipstream.diagnose.gain import rehearsed_gain
from slipstream.diagnose.steps.selection import batches_per_step, epoch_steps, trained_batches, watched_steps
from slipstream.records import Anatomy, Rehearsal, Session, Step
from slipstream.testing.made_sessions import made_anatomy, made_session

PHASES = {"input": 4.0, "forward": 10.0, "backward": 20.0, "other": 1.0}
UPDATE_MS = 5.0


def of_batches(step: Step, number: int) -> Step:
    phases = {phase: number * ms for phase, ms in PHASES.items()} | {"optimizer": UPDATE_MS}
    if step.phases["input"] == 0:  # replayed
        phases["input"] = 0.0
    times = {"step_ms": sum(phases.values()), "phases": phases, "samples": 32 * number}
    return msgspec.structs.replace(step, **times, num_batches=number, num_forwards=number, num_backwards=number)


def growing(watched: list[int], kept: int, anatomy: Anatomy | None = None) -> Session:
    """The watched steps have these numbers of batches in turn; those with free data all have another."""
    session = made_session(input_ms=4.0, num_steps=60, work_ms=4.0, anatomy=anatomy)
    kinds = {block.index: block.kind for block in session.blocks}
    steps = [
        of_batches(step, kept if kinds[step.block] == "kept" else watched[step.index % len(watched)])
        for step in session.steps
    ]
    return msgspec.structs.replace(session, steps=steps)


@pytest.mark.parametrize(("watched", "kept"), [([1], 2), ([2], 1), ([1, 2, 2], 4), ([1, 2, 2, 2], 2)])
def test_ceilings_are_those_of_a_step_with_as_many_batches_as_the_watched_ones(watched: list[int], kept: int) -> None:
    usual = watched[-1]
    session = diagnose(growing(watched, kept))
    summary = session.summary
    assert summary is not None
    assert summary.step_ms == pytest.approx(usual * sum(PHASES.values()) + UPDATE_MS)
    assert summary.ceilings.compute_ms == pytest.approx(summary.step_ms - usual * PHASES["input"])
    assert summary.ceilings.input_ms == pytest.approx(usual * PHASES["input"])
    assert summary.samples_per_step == 32 * usual
    assert epoch_steps(session) == pytest.approx(1000 / usual)
    noted = [note for note in session.diagnosis_notes if "batches each" in note]
    assert len(noted) == (len(watched) > 1)
    assert not any("noisy" in note for note in session.diagnosis_notes)


def test_the_last_step_of_an_epoch_with_fewer_batches_needs_no_note() -> None:
    session = diagnose(growing([4] * 19 + [3], 4))
    assert not any("batches each" in note for note in session.diagnosis_notes)


@pytest.mark.parametrize(
    "counts",
    [
        {"num_batches": 1, "num_backwards": 3},  # three losses of one batch
        {"num_batches": 2, "num_backwards": 1},  # two loaders, one loss
        {"num_batches": 0, "num_backwards": 1},  # the same batch again, or none of a loader
        {"num_batches": 1, "num_backwards": 0},  # inference
    ],
)
def test_what_is_one_batch(counts: dict[str, int]) -> None:
    session = made_session(num_steps=30)
    # Every third step asks for a batch and trains on it as often as the others.
    steps = [msgspec.structs.replace(step, **counts) if step.index % 3 else step for step in session.steps]
    session = msgspec.structs.replace(session, steps=steps)
    assert {trained_batches(step) for step in steps} == {1}
    assert watched_steps(session) == [step for step in steps if step.block == 1]
    assert batches_per_step(session) == pytest.approx((1 + 2 * counts["num_batches"]) / 3)


def test_a_rehearsal_of_one_batch_is_compared_with_one_batch_of_the_step() -> None:
    summary = diagnose(growing([4], 4)).summary
    assert summary is not None
    disturbed = Rehearsal("bf16", "", 200.0, 100.0, 2.0, 1.9, 2.1, 20)  # 200 ms for what takes 30 in the script
    assert rehearsed_gain(summary, disturbed, 120.0) > 1.5
    assert rehearsed_gain(summary, disturbed, 120.0, times=4) == 1.0


def test_operators_of_a_longer_step_are_not_all_the_usual_steps() -> None:
    """The dissected step ran 500 operators for each of its 4 batches; a usual step has one batch."""
    anatomy = made_anatomy({"aten::add": (2000, 20.0)})
    session = growing([1], 4, anatomy)
    dissected = msgspec.structs.replace(session.blocks[-1], index=len(session.blocks), kind="dissect", batch_ns=[])
    last = msgspec.structs.replace(of_batches(session.steps[-1], 4), block=dissected.index)
    whole = msgspec.structs.replace(session, blocks=[*session.blocks, dissected], steps=[*session.steps, last])
    assert "tiny_operations" in [finding.cause for finding in diagnose(session).findings]
    assert "tiny_operations" not in [finding.cause for finding in diagnose(whole).findings]
