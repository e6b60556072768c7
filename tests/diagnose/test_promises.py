"""Over many synthetic trainings: phases add up, gains keep within Amdahl's law, and every finding is complete."""

import random

import pytest

from slipstream.diagnose import diagnose
from slipstream.diagnose.gain import OF_MORE_THAN_THE_STEP, largest_gain
from slipstream.records import Session
from slipstream.testing.made_sessions import made_environment, made_session, made_stack

STAGES = ("read", "decode", "transform", "collate", "handover", "python", "other", "logging", "compute", "wait")
INPUT_CAUSES = ("no_workers", "slow_decode", "slow_read", "slow_transform", "slow_collate", "heavy_handover")


def random_session(rng: random.Random) -> Session:
    workers = rng.choice([0, 0, 1, 2, 4, 10])
    stacks = [
        made_stack(
            rng.choice(STAGES),
            rng.randrange(10, 60),
            rng.randrange(1, 200),
            role=rng.choice(["main", "worker"]) if workers else "main",
            phase=rng.choice(["input", "input", "other", "forward"]),
            in_call=rng.random() < 0.5,
            expression=rng.choice(["print(loss)", "open(path)", "x.resize(3)", "torch.tensor(rows)"]),
        )
        for _ in range(rng.randrange(0, 12))
    ]
    return made_session(
        input_ms=rng.choice([0.0, 0.1, 5.0, 40.0, 300.0]),
        forward_ms=rng.uniform(0.1, 50),
        backward_ms=rng.uniform(0.0, 80),
        optimizer_ms=rng.uniform(0.0, 20),
        other_ms=rng.uniform(0.0, 30),
        num_workers=workers,
        work_ms=rng.uniform(0.1, 200) if workers else None,
        cpu_share=rng.random(),
        starved=rng.uniform(1.0, 2.0) if workers else 1.0,
        has_loader=rng.random() < 0.85,
        stacks=stacks,
        environment=made_environment(rng.choice([0.5, 1.0, 2.0, 3.5, 16.0]), rng.choice([1, 2, 8])),
        is_short=rng.random() < 0.15,
    )


@pytest.mark.parametrize("seed", range(6))
def test_random_trainings(seed):
    rng = random.Random(seed)
    for _ in range(60):
        session = diagnose(random_session(rng))
        summary = session.summary
        assert sum(summary.phases.values()) == pytest.approx(summary.step_ms, rel=1e-9)
        assert min(summary.phases.values()) >= 0
        assert summary.step_low_ms <= summary.step_ms <= summary.step_high_ms
        assert not [note for note in session.diagnosis_notes if "could not be checked" in note]
        gains = [finding.predicted_gain for finding in session.findings if finding.cause != "growing_memory"]
        assert gains == sorted(gains, reverse=True)
        for finding in session.findings:
            assert finding.predicted_gain >= 1.03
            assert finding.title and finding.evidence.endswith(".") and finding.change
            assert any(letter.isdigit() for letter in finding.evidence)
            if finding.cause not in OF_MORE_THAN_THE_STEP:
                assert finding.predicted_gain <= largest_gain(finding.cause, summary) * (1 + 1e-9)
            if finding.cause in INPUT_CAUSES:
                assert finding.predicted_gain <= most_from_input(session) * 1.001


def most_from_input(session: Session) -> float:
    """Amdahl's law: no change to input can make the step shorter than it is without input."""
    summary = session.summary
    rest_ms = summary.step_ms - summary.phases["input"]
    if summary.ceilings.compute_ms is not None:
        rest_ms = min(rest_ms, summary.ceilings.compute_ms)
    return summary.step_ms / max(rest_ms, summary.step_ms * 1e-3)


def test_no_gain_exceeds_the_ceiling_beside_it():
    """The step with free data ran when the machine was slower: its ceiling is above the step without its wait."""
    stacks = [made_stack("decode", 15, 200, leaf="PIL/Image.py:load")]
    device = made_environment(8.0, 8, "cuda:0")
    session = diagnose(made_session(input_ms=40.0, starved=0.3, stacks=stacks, environment=device))
    summary = session.summary
    assert summary.ceilings.compute_ms > summary.step_ms - summary.phases["input"]
    found = [finding for finding in session.findings if finding.cause in INPUT_CAUSES]
    assert found
    for finding in found:
        assert finding.predicted_gain <= summary.step_ms / summary.ceilings.compute_ms * (1 + 1e-9)
