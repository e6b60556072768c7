"""The time in which a reinforcement learner's model acts. It trains in none of it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from slipstream.diagnose import diagnose
from slipstream.diagnose.steps.rollout import acting_with_gradients, rollouts
from slipstream.records import Event, Memory, Session
from slipstream.report.text.check import verdict
from slipstream.testing.made_sessions import FIRST_NS, made_model, made_session, made_stack


def learner(
    acts: int = 100, updates: int = 16, acting_samples: int = 8, cycles: int = 6, is_training_mode: bool = True
) -> Session:
    """Each call in a rollout takes 1 ms and its environment 4 ms, each update 20 ms, and 20 ms pass in between."""

    def events() -> Iterator[Event]:
        now = FIRST_NS
        for _ in range(cycles):
            for _ in range(acts):
                facts = {"samples": acting_samples, "training": is_training_mode}
                yield Event("forward", 0, now, now + 1_000_000, **facts)
                now += 5_000_000
            for _ in range(updates):
                now += 1_000_000
                yield Event("forward", 0, now, now + 5_000_000, samples=256, grad=True, training=True)
                yield Event("backward", 0, now + 5_000_000, now + 15_000_000)
                yield Event("optimizer", 0, now + 15_000_000, now + 19_000_000)
                now += 19_000_000

    stacks = [made_stack("python", 77, 60, phase="other", function="play", expression="world.advance(action)")]
    session = made_session(has_loader=False, input_ms=0, other_ms=40, stacks=stacks)
    return msgspec.structs.replace(session, events=list(events()))


@pytest.mark.parametrize("is_training_mode", [True, False])
def test_half_of_the_time(is_training_mode: bool) -> None:
    session = diagnose(learner(is_training_mode=is_training_mode))
    seen = rollouts(session)
    assert seen is not None
    assert seen.share == pytest.approx(500 / 820, abs=0.01)
    assert (seen.num_calls, seen.updates) == (100, 16)
    assert verdict(session).count("Rollouts, in which nothing is trained, take 61% of the time") == 1
    (note,) = [note for note in session.diagnosis_notes or [] if "rollouts" in note]
    assert "no_loader" not in [finding.cause for finding in session.findings]
    assert "100 calls of the model before every 16 updates" in note and note.endswith("at train.py:77.")


@pytest.mark.parametrize(
    "session",
    [
        learner(acting_samples=256),  # a validation on batches of the training's size
        learner(cycles=1),  # before the training
        msgspec.structs.replace(learner(), events=[e for e in learner().events if e.grad or e.kind != "forward"]),
        msgspec.structs.replace(learner(), events=[Event("input", 0, 0, 1, samples=256), *learner().events]),
        made_session(),
    ],
)
def test_what_is_no_rollout(session: Session) -> None:
    assert rollouts(session) is None
    assert "rollout" not in verdict(diagnose(session))


def test_a_copy_of_the_model_may_act() -> None:
    session = learner()
    acting = [e if e.grad or e.kind != "forward" else msgspec.structs.replace(e, ident=7) for e in session.events]
    session = msgspec.structs.replace(session, events=acting)
    assert rollouts(session) is None, "another model, such as an encoder that is not trained"
    models = [made_model(), made_model(ident=7)]
    assert rollouts(msgspec.structs.replace(session, models=models)) == rollouts(learner())


def test_a_single_rollout_may_not_be_the_last() -> None:
    session = diagnose(learner(cycles=1))
    (note,) = [note for note in session.diagnosis_notes or [] if "rollouts" in note]
    assert "in 100 calls and nothing was trained; then 16 updates followed" in note
    for no_rollout in (learner(cycles=1, acts=9), learner(cycles=1, acts=20, updates=99), learner(cycles=1, acts=0)):
        assert not any("rollouts" in note for note in diagnose(no_rollout).diagnosis_notes or [])


def test_short_rollouts_need_no_sentence() -> None:
    session = diagnose(learner(acts=8))
    seen = rollouts(session)
    assert seen is not None and seen.share == pytest.approx(40 / 360, abs=0.01)
    assert "rollouts" not in verdict(session)


def graph_keeper(calls: int = 20, between_ms: int = 4, num_cycles: int = 6, has_loader: bool = False) -> Session:
    """Acts with gradients: each call takes 1 ms, and the backward pass and update of an episode take 20 ms."""

    def events() -> Iterator[Event]:
        now = FIRST_NS
        for _ in range(num_cycles):
            if has_loader:
                yield Event("input", 0, now, now, samples=4)
            for _ in range(calls):
                yield Event("forward", 0, now, now + 1_000_000, samples=4, grad=True, training=True)
                now += (1 + between_ms) * 1_000_000
            yield Event("backward", 0, now, now + 15_000_000)
            yield Event("optimizer", 0, now + 15_000_000, now + 20_000_000)
            now += 20_000_000

    session = made_session(has_loader=False, input_ms=0, other_ms=40)
    return msgspec.structs.replace(session, events=list(events()))


def test_a_learner_that_acts_with_gradients() -> None:
    session = graph_keeper()
    seen = acting_with_gradients(session)
    assert rollouts(session) is None and seen is not None
    assert seen.num_calls == 20 and seen.share == pytest.approx(19 * 4 / 120, abs=0.01)
    (note,) = [note for note in diagnose(session).diagnosis_notes or [] if "backward pass" in note]
    assert note.startswith("Before each backward pass the model is called 20 times, with gradients. 63% of the time ")


@pytest.mark.parametrize(
    "session",
    [
        graph_keeper(calls=2),  # a model with two inputs
        graph_keeper(between_ms=0),  # a recurrent cell
        graph_keeper(num_cycles=1),
        graph_keeper(has_loader=True),
        learner(),
        made_session(),
    ],
)
def test_what_is_no_acting_with_gradients(session: Session) -> None:
    assert acting_with_gradients(session) is None


def test_longer_episodes_are_no_leak_and_their_environment_is_no_data() -> None:
    """Before its backward pass, the graph of an episode is alive, and a learner's episodes become longer."""
    stacks = [made_stack("python", 77, 60, phase="other", function="play", expression="world.advance(action)")]
    growing = [Memory(step, FIRST_NS + step, 10**9 + step * 10**6, 0, 10 * step, 20 * step) for step in range(60)]
    made = made_session(has_loader=False, input_ms=0, other_ms=40, stacks=stacks, memory=growing)
    assert {"growing_memory", "no_loader"} <= {finding.cause for finding in diagnose(made).findings}
    acting = msgspec.structs.replace(made, events=graph_keeper().events)
    assert not {"growing_memory", "no_loader"} & {finding.cause for finding in diagnose(acting).findings}
