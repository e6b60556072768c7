from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from slipstream.records import Fingerprint, Numerics, NumericsClass, Precision, Sketch, Snapshot
from slipstream.report.text.numerics import describe_numerics
from slipstream.testing.made_fingerprints import made_fingerprint
from slipstream.verify.numerics import Controls, judge

BASE = made_fingerprint()
REPEAT = made_fingerprint()
ROUNDING = [made_fingerprint(rounding=2**-24, draw=draw) for draw in range(3)]
COARSE = [made_fingerprint(rounding=2**-9, draw=draw) for draw in range(4)]
SEEDS = [made_fingerprint(seed=seed) for seed in (1, 2, 3)]
FINE = Controls(REPEAT, ROUNDING, SEEDS)


def controls(claimed: NumericsClass) -> Controls:
    return Controls(REPEAT, COARSE, SEEDS) if claimed == "approximate" else FINE


def check(claimed: NumericsClass, candidate: Fingerprint, base: Fingerprint = BASE) -> Numerics:
    """With all controls."""
    return judge(claimed, base, candidate, controls(claimed), "bf16" if claimed == "approximate" else "fp32")


def _with(fingerprint: Fingerprint, **facts: Any) -> Fingerprint:
    return msgspec.structs.replace(fingerprint, **facts)


def _with_loss(step: int, value: float) -> Fingerprint:
    return _with(BASE, losses=[(at, value if at == step else loss) for at, loss in BASE.losses])


def _with_gradients(change: Any, fingerprint: Fingerprint = BASE) -> Fingerprint:
    snapshots = [msgspec.structs.replace(one, gradients=change(one.gradients)) for one in fingerprint.snapshots]
    return _with(fingerprint, snapshots=snapshots, digests=[(step, f"other {step}") for step, _ in fingerprint.digests])


def _scaled(sketch: Sketch, by: float) -> Sketch:
    return Sketch(sketch.name, sketch.numel, sketch.norm * by, [value * by for value in sketch.values])


def test_the_same_bits_are_identical() -> None:
    verdict = check("identical", made_fingerprint())
    assert verdict.is_sound and verdict.basis == "bits" and verdict.num_steps == 60
    assert describe_numerics(verdict) == "bit-equal in 60 steps"


def test_the_same_bits_in_fewer_steps_are_counted_as_fewer() -> None:
    assert judge("identical", BASE, made_fingerprint(num_steps=30)).num_steps == 30


def test_one_bit_of_one_loss_is_not_identical() -> None:
    changed = _with_loss(17, math.nextafter(dict(BASE.losses)[17], math.inf))
    verdict = judge("identical", BASE, changed, Controls(REPEAT))
    assert verdict.is_sound is False
    assert verdict.fault is not None and (verdict.fault.kind, verdict.fault.step) == ("loss", 17)


def test_other_weights_behind_the_same_losses_are_not_identical() -> None:
    changed = _with(BASE, digests=[*BASE.digests[:-1], (BASE.digests[-1][0], "another")])
    verdict = judge("identical", BASE, changed, Controls(REPEAT))
    assert verdict.is_sound is False
    assert "weights or buffers" in describe_numerics(verdict)


def test_another_number_of_backward_passes_is_not_identical() -> None:
    doubled = _with(BASE, losses=[pair for pair in BASE.losses for _ in range(2)])
    verdict = judge("identical", BASE, doubled, Controls(REPEAT))
    assert verdict.is_sound is False
    assert "backward ran 2 times" in describe_numerics(verdict)


@pytest.mark.parametrize("claimed", ["reordered", "redrawn"])
def test_another_number_of_backward_passes_is_sound_in_no_class(claimed: Any) -> None:
    doubled = _with(BASE, losses=[pair for pair in BASE.losses for _ in range(2)])
    base = _with(BASE, losses=[pair for pair in BASE.losses for _ in range(3)])
    verdict = check(claimed, doubled, base)
    assert verdict.fault is not None and verdict.fault.kind == "passes"


@pytest.mark.parametrize("claimed", ["reordered", "redrawn"])
def test_losses_of_pieces_add_up_to_the_batchs(claimed: Any) -> None:
    shares, whole = (0.3, 0.2, 0.5), made_fingerprint(rounding=1e-7)
    divided = [(step, share * value) for step, value in whole.losses for share in shares][:-2]  # stopped within a step
    assert check(claimed, _with(whole, losses=divided)).is_sound
    unweighed = [(step, value) for step, value in whole.losses for _ in shares]
    assert check(claimed, _with(whole, losses=unweighed)).is_sound is False


def test_a_script_that_does_not_repeat_itself_is_judged_by_rounding() -> None:
    itself = Controls(made_fingerprint(rounding=2e-7), ROUNDING, SEEDS)
    verdict = judge("identical", BASE, made_fingerprint(rounding=3e-7), itself)
    assert verdict.is_sound and not verdict.is_repeatable
    assert describe_numerics(verdict).startswith("the script does not repeat itself")
    assert judge("identical", BASE, made_fingerprint(gradient_scale=0.9), itself).is_sound is False


def test_stricter_than_claimed_is_reported() -> None:
    for claimed in ("reordered", "redrawn", "approximate"):
        verdict = judge(claimed, BASE, made_fingerprint())
        assert describe_numerics(verdict) == f"bit-equal in 60 steps, stricter than {claimed}"


@pytest.mark.parametrize("claimed", ["identical", "reordered", "redrawn", "approximate", "different"])
def test_without_losses_nothing_is_sound(claimed: Any) -> None:
    verdict = judge(claimed, BASE, _with(BASE, losses=[]))
    assert verdict.is_sound is None and verdict.basis == "no_loss"


def test_without_a_common_step_nothing_is_sound() -> None:
    later = _with(BASE, losses=[(step + 1000, loss) for step, loss in BASE.losses])
    assert judge("redrawn", BASE, later).basis == "no_common_step"


def test_without_gradients_other_rounding_cannot_be_shown() -> None:
    verdict = check("reordered", _with(made_fingerprint(rounding=1e-7), snapshots=[]))
    assert verdict.is_sound is None and verdict.basis == "no_gradient"


@pytest.mark.parametrize("claimed", ["reordered", "approximate"])
def test_without_three_draws_of_the_noise_nothing_is_decided(claimed: Any) -> None:
    for draws in (ROUNDING[:2], []):
        verdict = judge(claimed, BASE, made_fingerprint(rounding=1e-7, draw=9), Controls(REPEAT, draws, SEEDS))
        assert verdict.is_sound is None and verdict.basis == "no_control"


def test_a_draw_without_noise_or_that_failed_does_not_count() -> None:
    failed = [_with(one, losses=[(step, math.nan) for step, _ in one.losses]) for one in ROUNDING]
    for draws in ([REPEAT] * 3, failed):
        verdict = judge("reordered", BASE, made_fingerprint(rounding=1e-7, draw=9), Controls(REPEAT, draws, SEEDS))
        assert verdict.is_sound is None and verdict.basis == "no_control"


def _critic(fingerprint: Fingerprint, shift: float = 0.0) -> Fingerprint:
    """The losses of a critic in every step and of a generator, which are far larger, in every fifth."""
    losses = []
    for step, value in fingerprint.losses:
        losses += [(step, 40.0 - value)] * (step % 5 == 4) + [(step, value + shift)]
    return _with(fingerprint, losses=losses)


def test_losses_that_come_only_in_some_steps_are_a_curve_of_their_own() -> None:
    noise = Controls(REPEAT, [_critic(one) for one in ROUNDING], SEEDS)
    sound, shifted = (_critic(made_fingerprint(rounding=1e-7, draw=9), shift) for shift in (0.0, 0.1))
    assert judge("reordered", _critic(BASE), sound, noise).is_sound
    fault = judge("reordered", _critic(BASE), shifted, noise).fault
    assert fault is not None and fault.kind == "losses"


def test_a_flipped_decision_of_one_draw_widens_the_limit_of_the_size() -> None:
    """One draw is far off without a change of size. Another shows which part of an error is one of the size."""

    def turned(fingerprint: Fingerprint, error: float, size: float) -> Fingerprint:
        def change(all: list[Sketch]) -> list[Sketch]:
            first, second = all[-1].values[:2]
            values = [first * (1 + size) - error * second, second * (1 + size) + error * first, *all[-1].values[2:]]
            return [*all[:-1], Sketch(all[-1].name, all[-1].numel, math.hypot(*values), values)]

        return _with_gradients(change, fingerprint)

    draws = [turned(COARSE[0], 0.3, 0.0), turned(COARSE[1], 0.004, 0.004), *COARSE[2:]]
    candidate = turned(made_fingerprint(rounding=2**-9, draw=9), 0.3, 0.1)
    assert judge("approximate", BASE, candidate, Controls(REPEAT, draws, SEEDS), "bf16").is_sound
    assert judge("approximate", BASE, candidate, Controls(REPEAT, COARSE, SEEDS), "bf16").is_sound is False


def test_without_seeds_a_redraw_is_not_decided() -> None:
    verdict = judge("redrawn", BASE, made_fingerprint(seed=7), Controls(REPEAT, ROUNDING, SEEDS[:1]))
    assert verdict.is_sound is None and verdict.basis == "no_seeds"


@pytest.mark.parametrize("claimed", ["identical", "reordered", "redrawn", "approximate", "different"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_never_sound(claimed: Any, value: float) -> None:
    verdict = check(claimed, _with_loss(40, value))
    assert verdict.is_sound is False
    assert verdict.fault is not None and (verdict.fault.kind, verdict.fault.step) == ("not_finite_loss", 40)


def test_a_gradient_that_is_not_finite_is_not_sound() -> None:
    broken = _with_gradients(lambda all: [msgspec.structs.replace(all[0], num_bad=1), *all[1:]])
    for claimed in ("reordered", "approximate"):
        verdict = check(claimed, broken)
        assert verdict.is_sound is False
        assert "not finite" in describe_numerics(verdict)


def test_what_is_not_finite_in_the_base_either_is_not_held_against_anyone() -> None:
    assert check("redrawn", made_fingerprint(rounding=1e-7), base=_with_loss(40, math.nan)).is_sound


@pytest.mark.parametrize(("claimed", "error"), [("reordered", 1e-6), ("approximate", 3e-3)])
def test_errors_of_the_predicted_size_are_accepted(claimed: Any, error: float) -> None:
    verdict = check(claimed, made_fingerprint(rounding=error, draw=9))
    assert verdict.is_sound, verdict
    assert verdict.num_evidence == verdict.num_tensors == 3
    assert verdict.worst_gradient is not None and 0 < verdict.worst_gradient < 3 * error
    assert verdict.horizon_steps is None, "the noise never dominates"
    agreement = "3 of 3 tensors are evidence and agree within"
    assert describe_numerics(verdict).startswith(agreement)


def test_lower_precision_is_no_reordering() -> None:
    assert check("reordered", made_fingerprint(rounding=2**-6)).is_sound is False


@pytest.mark.parametrize("claimed", ["reordered", "approximate"])
@pytest.mark.parametrize("scale", [0.9, 0.97, 1.03, 1.1])
def test_scaled_gradients_are_found(claimed: Any, scale: float) -> None:
    verdict = check(claimed, made_fingerprint(gradient_scale=scale))
    assert verdict.is_sound is False


def test_one_scaled_parameter_is_found_and_named() -> None:
    changed = _with_gradients(lambda all: [*all[:-1], _scaled(all[-1], 0.5)])
    verdict = check("approximate", changed)
    assert verdict.is_sound is False
    assert verdict.fault is not None and verdict.fault.name == "fc.bias"
    assert verdict.fault.seen == pytest.approx(0.5) and verdict.fault.allowed < 0.1


def test_a_missing_gradient_is_found() -> None:
    verdict = check("reordered", _with_gradients(lambda all: all[:-1]))
    assert verdict.is_sound is False
    assert verdict.fault is not None and (verdict.fault.kind, verdict.fault.name) == ("missing", "fc.bias")


def test_renamed_parameters_are_matched_by_their_place() -> None:
    renamed = _with_gradients(lambda all: [msgspec.structs.replace(one, name=f"wrapped.{one.name}") for one in all])
    assert check("reordered", renamed).is_sound


def _with_bias(fingerprint: Fingerprint, value: float, name: str = "conv.bias") -> Fingerprint:
    return _with_gradients(lambda all: [*all, Sketch(name, 8, abs(value), [value])], fingerprint)


def test_a_gradient_that_is_rounding_alone_is_no_evidence() -> None:
    """As of a bias before batch norm. Its true value is zero."""
    base = _with_bias(BASE, 3e-9)
    noise = Controls(
        REPEAT, [_with_bias(one, value) for one, value in zip(ROUNDING, (-2e-9, 1e-9, 4e-9), strict=True)], SEEDS
    )
    verdict = judge("reordered", base, _with_bias(made_fingerprint(rounding=1e-7), 4e-8), noise)
    assert verdict.is_sound and (verdict.num_evidence, verdict.num_tensors) == (3, 4)


def test_little_evidence_decides_nothing() -> None:
    """The tensor that carries most of the update is moved by rounding as far as its own size."""
    base = _with_bias(BASE, 5.0)
    noise = Controls(
        REPEAT, [_with_bias(one, value) for one, value in zip(ROUNDING, (-6.0, 1.0, 9.0), strict=True)], SEEDS
    )
    verdict = judge("reordered", base, _with_bias(made_fingerprint(rounding=1e-7), -3.0), noise)
    assert verdict.is_sound is None and verdict.basis == "little_evidence"
    assert "3 of 4 tensors are evidence" in describe_numerics(verdict)


def test_a_layer_that_begins_at_zero_is_compared_when_it_has_a_gradient() -> None:
    """The first snapshots contain a gradient of zero, as of the inner factor of a LoRA layer."""

    def late(fingerprint: Fingerprint, value: float) -> Fingerprint:
        first, *others = fingerprint.snapshots
        zero, other = Sketch("lora.a", 8, 0.0, [0.0]), Sketch("lora.a", 8, abs(value), [value])
        snapshots = [
            msgspec.structs.replace(first, gradients=[*first.gradients, zero]),
            *(msgspec.structs.replace(one, gradients=[*one.gradients, other]) for one in others),
        ]
        return _with(fingerprint, snapshots=snapshots)

    noise = Controls(REPEAT, [late(one, 0.5 + 1e-7) for one in ROUNDING], SEEDS)
    verdict = judge("reordered", late(BASE, 0.5), late(made_fingerprint(rounding=1e-7), 0.5 + 1e-6), noise)
    assert verdict.is_sound and verdict.num_evidence == 4
    wrong = judge("reordered", late(BASE, 0.5), late(made_fingerprint(rounding=1e-7), 0.2), noise)
    assert wrong.fault is not None and wrong.fault.name == "lora.a"


def _with_late_optimizer(fingerprint: Fingerprint, value: float, step: int = 12) -> Fingerprint:
    """The first gradient of an optimizer that first steps when steps are timed."""
    late = Snapshot(step, [Sketch("generator.weight", 8, abs(value), [value])])
    return _with(fingerprint, snapshots=[*fingerprint.snapshots, late])


def test_an_optimizer_that_first_steps_late_is_compared_at_its_first_steps() -> None:
    base, other = _with_late_optimizer(BASE, 0.5), made_fingerprint(rounding=1e-7, draw=9)
    noise = Controls(REPEAT, [_with_late_optimizer(one, 0.5 + 1e-7) for one in ROUNDING], SEEDS)
    verdict = judge("reordered", base, _with_late_optimizer(other, 0.5 + 1e-6), noise)
    assert verdict.is_sound and verdict.num_evidence == 4
    wrong = judge("reordered", base, _with_late_optimizer(other, 0.3), noise)
    assert wrong.fault is not None and (wrong.fault.name, wrong.fault.step) == ("generator.weight", 12)


def test_a_candidate_that_has_not_reached_the_first_step_of_an_optimizer_lacks_nothing() -> None:
    noise = Controls(REPEAT, [_with_late_optimizer(one, 0.5 + 1e-7) for one in ROUNDING], SEEDS)
    verdict = judge("reordered", _with_late_optimizer(BASE, 0.5), made_fingerprint(10, rounding=1e-7, draw=9), noise)
    assert verdict.is_sound and verdict.num_tensors == 3


def test_gradients_that_the_controls_have_not_reached_are_unsure() -> None:
    base, other = _with_late_optimizer(BASE, 0.5), made_fingerprint(rounding=1e-7, draw=9)
    verdict = judge("reordered", base, _with_late_optimizer(other, 0.5 + 1e-6), FINE)
    assert verdict.is_sound is None and verdict.basis == "no_control"


def _with_buffers(fingerprint: Fingerprint, mean: float) -> Fingerprint:
    buffers = [Sketch("bn.running_mean", 1, abs(mean), [mean])]
    snapshots = [msgspec.structs.replace(one, buffers=buffers) for one in fingerprint.snapshots]
    return _with(fingerprint, snapshots=snapshots)


@pytest.mark.parametrize("claimed", ["reordered", "approximate"])
def test_statistics_updated_twice_are_found(claimed: Any) -> None:
    known = controls(claimed)
    noise = Controls(REPEAT, [_with_buffers(one, 0.1000001) for one in known.rounding], SEEDS)
    base, other = _with_buffers(BASE, 0.10), made_fingerprint(rounding=1e-7, draw=9)
    precision: Precision = "bf16" if claimed == "approximate" else "fp32"
    assert judge(claimed, base, _with_buffers(other, 0.1000002), noise, precision).is_sound
    twice = judge(claimed, base, _with_buffers(other, 0.19), noise, precision)
    assert twice.fault is not None and (twice.fault.tensor, twice.fault.name) == ("buffer", "bn.running_mean")


def _with_weights(fingerprint: Fingerprint, decay: float) -> Fingerprint:
    """The weights of three steps, which shrink by `decay` in each and move by the same gradient."""
    snapshots = []
    for one in fingerprint.snapshots:
        values = [(1 - decay) ** one.step * (10.0 + place) - 0.1 * one.step for place in range(64)]
        snapshots.append(msgspec.structs.replace(one, weights=[Sketch("fc.weight", 64, math.hypot(*values), values)]))
    return _with(fingerprint, snapshots=snapshots)


def test_weight_decay_that_is_lost_is_found() -> None:
    noise = Controls(REPEAT, [_with_weights(one, 0.01) for one in ROUNDING], SEEDS)
    base, other = _with_weights(BASE, 0.01), made_fingerprint(rounding=1e-7, draw=9)
    assert judge("reordered", base, _with_weights(other, 0.01), noise).is_sound
    lost = judge("reordered", base, _with_weights(other, 0.0), noise)
    assert lost.fault is not None and lost.fault.tensor == "update"


@pytest.mark.parametrize("claimed", ["reordered", "approximate"])
def test_batches_that_slip_later_are_found(claimed: Any) -> None:
    """The first gradients equal the base's. From step 20 on, each loss is that of the next batch."""
    losses = [(step, dict(BASE.losses).get(step + 1, 1.0) if step >= 20 else loss) for step, loss in BASE.losses]
    verdict = check(claimed, _with(made_fingerprint(rounding=1e-7), losses=losses))
    assert verdict.fault is not None and verdict.fault.kind == "losses"
    assert verdict.fault.step <= 20 <= verdict.fault.last_step


@pytest.mark.parametrize("claimed", ["reordered", "redrawn", "approximate"])
def test_a_loss_that_stops_to_fall_is_found(claimed: Any) -> None:
    stuck = made_fingerprint(num_steps=200, seed=9 if claimed == "redrawn" else 0, loss_shift=0.6, from_step=100)
    long = {
        "fine": [made_fingerprint(num_steps=200, rounding=2**-24, draw=draw) for draw in range(3)],
        "seeds": [made_fingerprint(num_steps=200, seed=seed) for seed in (1, 2, 3)],
    }
    verdict = judge(claimed, made_fingerprint(num_steps=200), stuck, Controls(REPEAT, long["fine"], long["seeds"]))
    assert verdict.is_sound is False


def _chaotic(draw: int, num_steps: int = 200) -> Fingerprint:
    """A training that rounding dominates from about step 80 on: its losses follow the base's ever less."""
    own, other = dict(made_fingerprint(num_steps).losses), dict(made_fingerprint(num_steps, seed=50 + draw).losses)
    shares = {step: min(1.0, 1e-7 * math.exp(step / 5)) for step in own}
    losses = [(step, (1 - shares[step]) * own[step] + shares[step] * other[step]) for step in own]
    return _with(made_fingerprint(num_steps, rounding=2**-24, draw=draw), losses=losses)


def test_beyond_the_horizon_only_the_level_counts() -> None:
    base, seeds = made_fingerprint(200), [made_fingerprint(200, seed=seed) for seed in (1, 2, 3)]
    noise = Controls(REPEAT, [_chaotic(draw) for draw in range(3)], seeds)
    verdict = judge("reordered", base, _chaotic(7), noise)
    assert verdict.is_sound, verdict
    assert verdict.horizon_steps is not None and 30 < verdict.horizon_steps < 80
    assert "after which rounding dominates this training" in describe_numerics(verdict)
    wrong = _with(_chaotic(7), losses=[(step, loss + 0.5 * (step >= 120)) for step, loss in _chaotic(7).losses])
    fault = judge("reordered", base, wrong, noise).fault
    assert fault is not None and fault.kind == "level" and fault.last_step >= 120


def test_a_redraw_of_few_steps_is_not_decided() -> None:
    verdict = check("redrawn", made_fingerprint(num_steps=7, seed=9))
    assert verdict.is_sound is None and verdict.basis == "no_common_step"


def test_another_draw_is_redrawn_and_nothing_stricter() -> None:
    other = made_fingerprint(seed=9)
    assert check("redrawn", other).is_sound
    assert check("reordered", other).is_sound is False


def test_chance_alone_seldom_rejects_a_redraw() -> None:
    verdicts = [check("redrawn", made_fingerprint(seed=seed)) for seed in range(10, 110)]
    assert sum(not verdict.is_sound for verdict in verdicts) <= 2


def _with_accuracy(fingerprint: Fingerprint, value: float, speed: float = 100.0) -> Fingerprint:
    return _with(fingerprint, metrics=[(30, "val acc", value), (30, "score", speed)])


def test_a_printed_result_that_chance_does_not_explain_is_found() -> None:
    seeds = [_with_accuracy(one, 0.80 + 0.01 * at) for at, one in enumerate(SEEDS)]
    noise = Controls(_with_accuracy(REPEAT, 0.81, speed=90.0), ROUNDING, seeds)
    base = _with_accuracy(BASE, 0.81)
    assert judge("redrawn", base, _with_accuracy(made_fingerprint(seed=9), 0.82, speed=500.0), noise).is_sound
    wrong = judge("redrawn", base, _with_accuracy(made_fingerprint(seed=9), 0.1), noise)
    assert wrong.fault is not None and (wrong.fault.kind, wrong.fault.name) == ("metric", "val acc")


def test_a_change_by_design_need_only_be_finite() -> None:
    assert judge("different", BASE, made_fingerprint(seed=3, loss_shift=1.0)).is_sound
