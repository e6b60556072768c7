"""Unusual scripts of the zoo. They have no planted cause, but their training loop must be recognised correctly."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream.diagnose.steps.rollout import rollouts
from slipstream.records import Session
from slipstream.store.sessions import latest, load_session
from slipstream.testing.zoo import ODD, Case

Check = Callable[..., dict[str, Any]]
CASES = {case.name: case for case in ODD}


def run_check(
    check: Check, name: str, folder: Path, *arguments: str, **settings: Any
) -> tuple[dict[str, Any], Session]:
    case: Case = CASES[name]
    checked = check(case, *arguments, **settings)
    path = latest(folder)
    assert path is not None, "no session was saved"
    session = load_session(path)
    assert checked["exit_code"] == case.exit_code or checked["ending"]["reason"] == "stopped", checked["said"]
    _add_up(session)
    return checked, session


def _add_up(session: Session) -> None:
    """Assert that phases do not overlap and add up to the step, in every step."""
    for step in session.steps:
        assert sum(step.phases.values()) == pytest.approx(step.step_ms, rel=1e-6, abs=1e-3)
        assert min(step.phases.values()) >= -1e-6


def middle(session: Session) -> list[Any]:
    """The observed steps without the first and the last one, which may be incomplete."""
    watched = {block.index for block in session.blocks if block.kind == "watch"}
    steps = [step for step in session.steps if step.block in watched]
    assert len(steps) >= 4, f"{len(session.steps)} steps in {[block.kind for block in session.blocks]}"
    return steps[1:-1]


def mostly(values: list[Any]) -> Any:
    return max(set(values), key=values.count)


def test_critic_with_gradient_penalty(check: Check, tmp_path: Path) -> None:
    _, session = run_check(check, "odd_critic", tmp_path, "--steps", "1000", seconds=3)
    steps = middle(session)
    assert len(session.optimizers) == 2 and len(session.models) >= 2
    assert mostly([step.samples for step in steps]) in (32, 160)  # a step of the critic, or a whole cycle of five
    assert all(step.num_updates >= 1 for step in steps)


def test_closure_is_one_step(check: Check, tmp_path: Path) -> None:
    _, session = run_check(check, "odd_closure", tmp_path, "--steps", "1000", seconds=3)
    steps = middle(session)
    assert mostly([step.num_updates for step in steps]) == 1
    assert max(step.num_forwards for step in steps) > 1  # the number decreases as the training converges
    assert all(step.num_forwards == step.num_backwards for step in steps)


def test_weights_updated_by_hand(check: Check, tmp_path: Path) -> None:
    checked, session = run_check(check, "odd_by_hand", tmp_path, "--steps", "3000", seconds=3)
    steps = middle(session)
    assert mostly([(step.samples, step.num_forwards, step.num_backwards) for step in steps]) == (32, 1, 1)
    assert not session.optimizers and not checked["is_inference"]


def test_accumulation_that_changes(check: Check, tmp_path: Path) -> None:
    _, session = run_check(check, "odd_accumulation", tmp_path, "--steps", "120", seconds=20)
    seen = {(step.num_batches, step.samples, step.num_updates) for step in session.steps[1:-1]}
    assert {(2, 32, 1), (4, 64, 1)} & seen
    assert all(step.num_updates <= 1 for step in session.steps)


def test_sampler_without_end(check: Check, tmp_path: Path) -> None:
    checked, session = run_check(check, "odd_endless_sampler", tmp_path, "--steps", "3000", seconds=3)
    assert mostly([step.samples for step in middle(session)]) == 32
    assert session.loaders[0].num_batches is None
    assert checked["outlook"] is None or (checked["outlook"]["seconds"] or 0) < 1e7


def test_loader_that_keeps_its_iterator(check: Check, tmp_path: Path) -> None:
    _, session = run_check(check, "odd_own_iterator", tmp_path, "--epochs", "400", seconds=3)
    assert mostly([(step.samples, step.num_batches) for step in middle(session)]) == (32, 1)
    assert session.loaders[0].class_name == "InfiniteDataLoader"


def test_iterable_dataset(check: Check, tmp_path: Path) -> None:
    _, session = run_check(check, "odd_iterable", tmp_path, "--steps", "2000", seconds=3)
    assert mostly([(step.samples, step.num_batches) for step in middle(session)]) == (32, 1)
    assert session.loaders[0].is_iterable and session.loaders[0].num_batches is None


def test_validation_is_kept_apart(check: Check, tmp_path: Path) -> None:
    checked, session = run_check(check, "odd_validation", tmp_path, "--steps", "2000", seconds=5)
    assert mostly([(step.samples, step.num_batches) for step in middle(session)]) == (32, 1)
    assert session.evaluations
    assert mostly([(one.num_batches, one.samples) for one in session.evaluations]) == (4, 256)
    assert not any(one.grad for one in session.evaluations)
    assert checked["evaluation"] is not None


def test_fit_test_and_predict(check: Check, tmp_path: Path) -> None:
    checked, session = run_check(check, "odd_fit_test_predict", tmp_path, "--epochs", "3", seconds=30)
    assert mostly([(step.samples, step.num_updates) for step in session.steps[1:-1]]) == (32, 1)
    assert session.evaluations and not checked["is_inference"]


def test_training_in_a_spawned_child(check: Check, tmp_path: Path) -> None:
    _, session = run_check(check, "odd_spawned", tmp_path, "--steps", "3000", seconds=3)
    assert mostly([step.samples for step in middle(session)]) == 32


def test_executed_settings(check: Check, tmp_path: Path) -> None:
    _, session = run_check(check, "odd_executed_settings", tmp_path, "--steps", "3000", seconds=3)
    steps = middle(session)
    assert mostly([(step.num_batches, step.num_forwards, step.num_updates) for step in steps]) == (0, 1, 1)
    assert mostly([step.samples for step in steps]) == 16


@pytest.mark.parametrize("name", ["odd_compiled", "odd_compiled_step"])
def test_compiled_stays_one_graph(name: str, check: Check, tmp_path: Path) -> None:
    checked, session = run_check(check, name, tmp_path, "--steps", "60", seconds=30)
    assert "graphs 1 breaks 0" in checked["said"]
    assert mostly([(step.samples, step.num_updates) for step in session.steps[1:-1]]) == (32, 1)


def test_inference_alone(check: Check, tmp_path: Path) -> None:
    checked, session = run_check(check, "odd_inference", tmp_path, "--steps", "1000", seconds=3)
    assert checked["is_inference"]
    assert checked["step_ms"] and checked["samples_per_s"]
    assert checked["phases"]["backward"] == 0 and checked["phases"]["forward"] > 0
    assert mostly([step.samples for step in middle(session)]) == 64


def test_reinforcement_has_one_step_an_episode(check: Check, tmp_path: Path) -> None:
    _, session = run_check(check, "odd_reinforcement", tmp_path, "--steps", "1000", seconds=3)
    steps = middle(session)
    assert mostly([step.num_updates for step in steps]) == 1
    assert mostly([step.num_backwards for step in steps]) == 1
    assert max(step.num_forwards for step in steps) > 1


def test_rollouts_between_the_updates(check: Check, tmp_path: Path) -> None:
    """The environment computes; how long it does is the machine's affair, but it is far more than the updates."""
    checked, session = run_check(check, "odd_rollout", tmp_path, "--steps", "3000", seconds=6)
    assert mostly([(step.num_updates, step.num_batches) for step in middle(session)]) == (1, 0)
    seen = rollouts(session)
    assert seen is not None and seen.share > 0.15
    assert seen.updates == pytest.approx(8, abs=0.5) and seen.num_calls == pytest.approx(48, abs=1)
    assert "Rollouts, in which nothing is trained" in checked["verdict"]
    (note,) = [note for note in checked["notes"] if "rollouts" in note]
    assert "odd_rollout.py:" in note


@pytest.mark.parametrize(("name", "reason"), [("odd_raises", "raised"), ("odd_exits", "finished")])
def test_script_that_fails_half_way(name: str, reason: str, check: Check, tmp_path: Path) -> None:
    checked, session = run_check(check, name, tmp_path, "--steps", "40", seconds=30)
    assert checked["exit_code"] == CASES[name].exit_code
    assert checked["ending"]["exit_code"] == CASES[name].exit_code
    assert len(session.steps) >= 30
    assert reason != "raised" or "mat1 and mat2" in checked["said"]
    assert "site-packages/slipstream" not in checked["said"]
    assert not re.search(r"src/slipstream/(?!testing/zoo)", checked["said"]), "frames of ours"


def test_loaders_side_by_side(check: Check, tmp_path: Path) -> None:
    _, session = run_check(check, "odd_zipped", tmp_path, "--steps", "3000", seconds=3)
    steps = middle(session)
    assert mostly([(step.num_batches, step.num_updates) for step in steps]) == (2, 1)
    assert mostly([step.samples for step in steps]) in (
        48,
        64,
    )  # whether the two batches hold parts of the same samples cannot be known from outside
    assert len(session.loaders) == 2
