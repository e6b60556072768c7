"""The proof in pairs of fresh processes, on the simulated backend."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from slipstream.records import BlockTiming, Choice, Fingerprint, Recipe, Session, TrialSpec
from slipstream.testing.made_fingerprints import made_fingerprint, made_fingerprint_of
from slipstream.testing.made_techniques import RecordingListener, made_technique
from slipstream.testing.noise_model import Noise, NoiseModel
from slipstream.testing.simulated_backend import SimulatedBackend, choice_factors
from slipstream.tuning.journal import Journal
from slipstream.tuning.options import TuneOptions
from slipstream.tuning.proof import FUTILE_PAIRS, MOST_PAIRS, Proof, prove
from slipstream.tuning.rounds import BusyError
from slipstream.tuning.state import TuningState

A = Recipe((Choice("a"),))
Prove = Callable[..., tuple[Proof, TuningState]]


@pytest.fixture
def prove_a(session: Session) -> Prove:
    """Proves recipe A on this backend, after one block of the base."""

    def go(backend: SimulatedBackend, budget_s: float = 3000.0, journal: Any = None) -> tuple[Proof, TuningState]:
        known = {"nothing": made_technique(), "a": made_technique("reordered")}
        order = TuneOptions(budget_s=budget_s)
        state = TuningState(session, backend, order, RecordingListener(), known, journal or Journal("", {}))
        state.runner.race(state.base, [], 1)
        state.adopt(A, 0.2)
        return prove(state, A, []), state

    return go


def _noisy(factor: float, lottery: float, seed: int = 0, **how: Any) -> SimulatedBackend:
    """Blocks and processes differ."""
    noise = Noise(random.Random(seed), noise_model=NoiseModel())
    return SimulatedBackend(choice_factors(a=factor), noise=noise, lottery=lottery, seed=seed, **how)


@pytest.mark.parametrize("seed", range(3))
def test_a_real_gain_is_proved_although_processes_differ(prove_a: Prove, seed: int) -> None:
    proof, state = prove_a(_noisy(1 / 1.3, lottery=0.1, seed=seed))
    assert proof.outcome == "proved" and proof.is_kept
    assert proof.speed is not None and proof.speed.low <= 1.3 <= proof.speed.high
    (verdict,) = state.verdicts
    assert (verdict.kind, verdict.decision, verdict.cause) == ("total", "kept", "proved")


def test_every_pair_is_two_fresh_cold_processes(prove_a: Prove) -> None:
    backend = _noisy(1 / 1.3, lottery=0.03)
    proof, _ = prove_a(backend)
    assert proof.speed is not None
    timed = [spec for spec in backend.specs if spec.is_cold]
    assert len(timed) == 2 * proof.speed.num_rounds
    assert sum(spec.recipe == A for spec in timed) == sum(not spec.recipe.choices for spec in timed)


def test_a_shared_parent_does_not_bias_the_proof(prove_a: Prove) -> None:
    """Forks of one parent share its luck; cold processes do not."""
    backend = _noisy(1 / 1.3, lottery=0.02, shared_lottery=0.2)
    proof, _ = prove_a(backend)
    assert proof.speed is not None and proof.speed.low <= 1.3 <= proof.speed.high


def test_a_proved_gain_is_measured_until_its_interval_is_narrow(prove_a: Prove) -> None:
    proof, _ = prove_a(_noisy(0.5, lottery=0.05))
    assert proof.speed is not None
    assert math.log(proof.speed.high / proof.speed.low) <= 0.1 or proof.speed.num_rounds == MOST_PAIRS
    assert proof.speed.num_rounds > 4


def test_a_loss_is_refuted(prove_a: Prove) -> None:
    proof, state = prove_a(_noisy(1.2, lottery=0.03))
    assert proof.outcome == "refuted" and not proof.is_kept and proof.numerics is None
    assert (state.verdicts[0].decision, state.verdicts[0].cause) == ("rejected", "refuted")


def test_a_recipe_that_seems_no_faster_is_given_up(prove_a: Prove) -> None:
    given_up = 0
    for seed in range(6):
        proof, _ = prove_a(_noisy(1.0, lottery=0.1, seed=seed))
        assert not proof.is_kept and proof.speed is not None
        given_up += proof.outcome == "no_gain" and proof.speed.num_rounds < MOST_PAIRS
        assert proof.speed.num_rounds >= FUTILE_PAIRS or proof.outcome == "refuted"
    assert given_up >= 2


def test_a_gain_within_the_margin_is_given_up(prove_a: Prove) -> None:
    for seed in range(3):
        proof, _ = prove_a(_noisy(1 / 1.004, lottery=0.01, seed=seed))
        assert proof.outcome in ("no_gain", "refuted")
        assert proof.speed is not None and proof.speed.num_rounds < MOST_PAIRS


def test_with_too_few_pairs_the_result_is_measured_and_not_proved(prove_a: Prove) -> None:
    proof, state = prove_a(_noisy(0.5, lottery=0.03, cold_start_s=lambda recipe: 30.0), budget_s=150.0)
    assert proof.outcome == "measured" and not proof.is_kept
    assert proof.speed is not None and proof.speed.ratio == pytest.approx(2.0, rel=0.2) and not proof.speed.is_bounded
    assert (state.verdicts[0].decision, state.verdicts[0].cause) == ("unsure", "measured")


@pytest.mark.parametrize("cold_start_s", [5.0, 100.0, 400.0])
def test_a_proof_ends_though_not_even_one_pair_fits_into_the_budget(prove_a: Prove, cold_start_s: float) -> None:
    backend = SimulatedBackend(choice_factors(a=0.5), cold_start_s=lambda recipe: cold_start_s)
    proof, _ = prove_a(backend, budget_s=30.0)
    assert proof.outcome == "measured" and backend.now_s() < 40 + 2 * cold_start_s


def test_no_pair_begins_after_the_end_of_the_budget(prove_a: Prove) -> None:
    backend = SimulatedBackend(choice_factors(a=0.5))
    proof, _ = prove_a(backend, budget_s=1.0)
    assert proof.outcome == "measured" and proof.speed is None
    assert not any(spec.is_cold for spec in backend.specs)


def test_a_candidate_that_raises_is_failed_with_its_words(prove_a: Prove) -> None:
    def fault(spec: TrialSpec, num_steps: int) -> str:
        return "ValueError: of its own" if spec.recipe == A and num_steps > 50 else ""

    proof, state = prove_a(SimulatedBackend(choice_factors(a=0.5), fault=fault))
    assert proof.outcome == "failed" and not proof.is_kept
    assert (state.verdicts[0].decision, state.verdicts[0].reason) == ("failed", "ValueError: of its own")


def test_a_proved_recipe_with_wrong_numbers_is_not_kept(prove_a: Prove) -> None:
    def seen(spec: TrialSpec, num_steps: int) -> Fingerprint:
        wrong = spec.recipe == A
        return made_fingerprint(num_steps, loss_shift=0.5) if wrong else made_fingerprint_of(spec, num_steps)

    proof, state = prove_a(SimulatedBackend(choice_factors(a=0.5), fingerprint=seen))
    assert proof.outcome == "proved" and not proof.is_kept
    assert (state.verdicts[0].decision, state.verdicts[0].cause) == ("rejected", "unsound")


def test_a_proved_recipe_whose_numbers_cannot_be_checked_is_not_kept(prove_a: Prove) -> None:
    backend = SimulatedBackend(choice_factors(a=0.5), fingerprint=lambda spec, num_steps: Fingerprint())
    proof, state = prove_a(backend)
    assert not proof.is_kept
    assert (state.verdicts[0].decision, state.verdicts[0].cause) == ("unsure", "unchecked")


class OwnLoad(SimulatedBackend):
    """Blocks of the recipe, and seldom others, run beside load: for example of processes that it starts."""

    def run_block(self, trial: int, *of_block: Any, **how: Any) -> BlockTiming:
        timing = super().run_block(trial, *of_block, **how)
        is_hit = self._trials[trial].spec.recipe == A and self.num_timings % 3 == 0
        return BlockTiming(
            **{name: getattr(timing, name) for name in timing.__struct_fields__}
            | {"foreign_cores": 1.0 if is_hit else 0.0}
        )


def test_load_beside_one_of_the_two_alone_leaves_it_unsure(prove_a: Prove) -> None:
    proof, state = prove_a(OwnLoad(choice_factors(a=0.5)))
    assert proof.outcome == "other_load" and not proof.is_kept
    assert (state.verdicts[0].decision, state.verdicts[0].cause) == ("unsure", "other_load")


def test_later_proofs_of_a_tuning_need_more_evidence(prove_a: Prove, tmp_path: Any) -> None:
    """The k-th one gets alpha / 2**k, so that all together stay within alpha."""
    widths = []
    for number in range(3):
        journal = Journal("", {})
        for other in range(number):
            journal.begin_proof(Recipe((Choice(f"other{other}"),)))
        proof, _ = prove_a(_noisy(1.2, lottery=0.1, seed=2), journal=journal)
        assert proof.speed is not None
        widths.append((proof.speed.num_rounds, math.log(proof.speed.high / proof.speed.low)))
    assert widths == sorted(widths) and widths[0] != widths[-1]


def test_pairs_of_an_interrupted_proof_count(prove_a: Prove, tmp_path: Any) -> None:
    class Interrupted(SimulatedBackend):
        def enter(self, spec: TrialSpec) -> Any:
            if sum(one.is_cold for one in self.specs) == 6:
                raise KeyboardInterrupt
            return super().enter(spec)

    path = str(tmp_path / "journal")
    with pytest.raises(KeyboardInterrupt):
        prove_a(Interrupted(choice_factors(a=0.5)), journal=Journal(path, {}))
    backend = SimulatedBackend(choice_factors(a=0.5))
    proof, _ = prove_a(backend, journal=Journal(path, {}, is_resumed=True))
    assert proof.is_kept and proof.speed is not None and proof.speed.num_rounds == 4
    assert sum(spec.is_cold for spec in backend.specs) == 2, "three pairs were known"


@pytest.mark.parametrize("error", [KeyboardInterrupt, BusyError])
@pytest.mark.parametrize("num_pairs", [2, 5])
def test_what_pairs_show_survives_an_interruption(session: Session, error: Any, num_pairs: int) -> None:
    """A gain that is proved already, but is measured further, is kept."""

    class Interrupted(SimulatedBackend):
        def enter(self, spec: TrialSpec) -> Any:
            if spec.is_cold and sum(one.is_cold for one in self.specs) == 2 * num_pairs:
                raise error("other programs used 2.0 cores all the time")
            return super().enter(spec)

    noise = Noise(random.Random(0), noise_model=NoiseModel())
    backend = Interrupted(choice_factors(a=0.3), noise=noise, lottery=0.05)
    known = {"nothing": made_technique(), "a": made_technique()}
    order = TuneOptions(budget_s=3000.0)
    state = TuningState(session, backend, order, RecordingListener(), known, Journal("", {}))
    state.runner.race(state.base, [], 4)
    proofs: list[Proof] = []
    with pytest.raises(error):
        prove(state, A, proofs)
    assert proofs[0].is_kept is (num_pairs == 5)
    assert proofs[0].speed is not None and proofs[0].speed.num_rounds == num_pairs
    assert not backend._present - {state.base.trial}, "its trials have ended"


@pytest.mark.parametrize(("budget_s", "is_kept"), [(110.0, False), (600.0, True)])
def test_numerics_are_checked_at_the_end_if_there_is_time(prove_a: Prove, budget_s: float, is_kept: bool) -> None:
    """The selection may have put off the controls."""

    def seen(spec: TrialSpec, num_steps: int) -> Fingerprint:
        is_candidate = spec.role == "candidate"
        return made_fingerprint(num_steps, rounding=1e-7) if is_candidate else made_fingerprint_of(spec, num_steps)

    backend = SimulatedBackend(choice_factors(a=0.4), startup_s=lambda recipe: 8.0, fingerprint=seen)
    proof, state = prove_a(backend, budget_s)
    assert proof.is_kept == is_kept and proof.is_open != is_kept
    assert proof.speed is not None and proof.speed.low > 2.0
    controls = [spec for spec in backend.specs if spec.role in ("rounding", "seed")]
    assert bool(controls) == is_kept
    assert state.budget.spent_s() <= 1.1 * budget_s
