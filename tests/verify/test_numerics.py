from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from slipstream.records import Fingerprint, Sketch, Snapshot
from slipstream.testing.made_fingerprints import made_fingerprint
from slipstream.verify.numerics import judge

BASE = made_fingerprint()
ROUNDING = made_fingerprint(rounding=1e-7)
COARSE = made_fingerprint(num_steps=5, rounding=3e-3)
SEED = made_fingerprint(seed=1)


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
    verdict = judge("identical", BASE, made_fingerprint(), made_fingerprint(), ROUNDING, SEED)
    assert verdict.is_sound
    assert verdict.reason == "bit-equal in 60 steps"


def test_the_same_bits_in_fewer_steps_are_counted_as_fewer() -> None:
    assert judge("identical", BASE, made_fingerprint(num_steps=30)).reason == "bit-equal in 30 steps"


def test_one_bit_of_one_loss_is_not_identical() -> None:
    changed = _with_loss(17, math.nextafter(dict(BASE.losses)[17], math.inf))
    verdict = judge("identical", BASE, changed, made_fingerprint())
    assert verdict.is_sound is False
    assert "step 17" in verdict.reason


def test_other_weights_behind_the_same_losses_are_not_identical() -> None:
    changed = _with(BASE, digests=[*BASE.digests[:-1], (BASE.digests[-1][0], "another")])
    verdict = judge("identical", BASE, changed, made_fingerprint())
    assert verdict.is_sound is False
    assert "weights or buffers" in verdict.reason


def test_another_number_of_backward_passes_is_not_identical() -> None:
    doubled = _with(BASE, losses=[pair for pair in BASE.losses for _ in range(2)])
    verdict = judge("identical", BASE, doubled, made_fingerprint())
    assert verdict.is_sound is False
    assert "backward ran 2 times" in verdict.reason


@pytest.mark.parametrize("claimed", ["reordered", "redrawn"])
def test_losses_of_pieces_add_up_to_the_batchs(claimed: Any) -> None:
    shares = (0.3, 0.2, 0.5)
    divided = [(step, share * value) for step, value in ROUNDING.losses for share in shares][
        :-2
    ]  # stopped within a step
    assert judge(claimed, BASE, _with(ROUNDING, losses=divided), made_fingerprint(), ROUNDING, SEED).is_sound
    unweighed = [(step, value) for step, value in ROUNDING.losses for _ in shares]
    assert judge(claimed, BASE, _with(ROUNDING, losses=unweighed), made_fingerprint(), ROUNDING, SEED).is_sound is False


def test_a_script_that_does_not_repeat_itself_is_judged_beside_its_control() -> None:
    control = made_fingerprint(rounding=2e-7)
    verdict = judge("identical", BASE, made_fingerprint(rounding=3e-7), control, None, SEED)
    assert verdict.is_sound
    assert verdict.reason.startswith("the script does not repeat itself")
    assert judge("identical", BASE, made_fingerprint(gradient_scale=0.9), control, None, SEED).is_sound is False


def test_stricter_than_claimed_is_reported() -> None:
    for claimed in ("reordered", "redrawn", "approximate"):
        assert judge(claimed, BASE, made_fingerprint()).reason == f"bit-equal in 60 steps, stricter than {claimed}"


@pytest.mark.parametrize("claimed", ["identical", "reordered", "redrawn", "approximate", "different"])
def test_without_losses_nothing_is_sound(claimed: Any) -> None:
    verdict = judge(claimed, BASE, _with(BASE, losses=[]))
    assert verdict.is_sound is None
    assert verdict.reason == "no loss was seen"


def test_without_a_common_step_nothing_is_sound() -> None:
    later = _with(BASE, losses=[(step + 1000, loss) for step, loss in BASE.losses])
    assert judge("redrawn", BASE, later).is_sound is None


def test_without_gradients_other_rounding_cannot_be_shown() -> None:
    verdict = judge("reordered", BASE, _with(made_fingerprint(rounding=1e-7), snapshots=[]), None, ROUNDING, SEED)
    assert verdict.is_sound is None
    assert verdict.reason == "no gradient was seen"


def test_rough_gradients_without_a_coarse_control_are_unsure() -> None:
    rough = made_fingerprint(rounding=0.25)
    calm = _with(rough, losses=made_fingerprint(rounding=1e-4).losses)
    verdict = judge("approximate", BASE, calm, None, ROUNDING, SEED)
    assert verdict.is_sound is None
    assert "coarse control" in verdict.reason
    assert judge("approximate", BASE, calm, None, ROUNDING, SEED, made_fingerprint(num_steps=5, rounding=0.2)).is_sound


@pytest.mark.parametrize("claimed", ["identical", "reordered", "redrawn", "approximate", "different"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_never_sound(claimed: Any, value: float) -> None:
    verdict = judge(claimed, BASE, _with_loss(40, value), made_fingerprint(), ROUNDING, SEED, COARSE)
    assert verdict.is_sound is False
    assert "step 40" in verdict.reason


def test_a_gradient_that_is_not_finite_is_not_sound() -> None:
    broken = _with_gradients(lambda all: [msgspec.structs.replace(all[0], num_bad=1), *all[1:]])
    for claimed in ("reordered", "approximate"):
        verdict = judge(claimed, BASE, broken, None, ROUNDING, SEED, COARSE)
        assert verdict.is_sound is False
        assert "not finite" in verdict.reason


def test_what_is_not_finite_in_the_base_either_is_not_held_against_anyone() -> None:
    base = _with_loss(40, math.nan)
    verdict = judge("redrawn", base, made_fingerprint(rounding=1e-7), None, ROUNDING, SEED)
    assert verdict.is_sound


def test_rounding_is_reordered() -> None:
    verdict = judge("reordered", BASE, made_fingerprint(rounding=2e-6), None, ROUNDING, SEED)
    assert verdict.is_sound, verdict
    assert verdict.worst_gradient is not None and verdict.worst_gradient < 1e-5


@pytest.mark.parametrize("claimed", ["reordered", "approximate"])
def test_scaled_gradients_are_found(claimed: Any) -> None:
    for scale in (0.9, 1.1):
        scaled = made_fingerprint(gradient_scale=scale)
        assert judge(claimed, BASE, scaled, None, ROUNDING, SEED, COARSE).is_sound is False


def test_one_scaled_parameter_is_found_and_named() -> None:
    changed = _with_gradients(lambda all: [*all[:-1], _scaled(all[-1], 0.5)])
    verdict = judge("approximate", BASE, changed, None, ROUNDING, SEED, COARSE)
    assert verdict.is_sound is False
    assert "fc.bias" in verdict.reason


def test_a_missing_gradient_is_found() -> None:
    verdict = judge("reordered", BASE, _with_gradients(lambda all: all[:-1]), None, ROUNDING, SEED)
    assert verdict.is_sound is False
    assert "missing" in verdict.reason


def test_renamed_parameters_are_matched_by_their_place() -> None:
    renamed = _with_gradients(lambda all: [msgspec.structs.replace(one, name=f"wrapped.{one.name}") for one in all])
    assert judge("reordered", BASE, renamed, None, ROUNDING, SEED).is_sound


def test_a_gradient_that_is_rounding_alone_is_held_to_its_control() -> None:
    def with_bias(fingerprint: Fingerprint, value: float) -> Fingerprint:
        return _with_gradients(lambda all: [*all, Sketch("conv.bias", 8, abs(value), [value])], fingerprint)

    base, control = with_bias(BASE, 3e-9), with_bias(ROUNDING, -2e-9)
    assert judge("reordered", base, with_bias(made_fingerprint(rounding=2e-7), 4e-8), None, control, SEED).is_sound
    gross = with_bias(made_fingerprint(rounding=2e-7), 1e-2)
    assert judge("reordered", base, gross, None, control, SEED).is_sound is False


def test_without_a_control_only_the_first_step_counts() -> None:
    def late(fingerprint: Fingerprint) -> Fingerprint:
        snapshots = [
            one if one.step == 0 else Snapshot(one.step, made_fingerprint(seed=9).snapshots[1].gradients)
            for one in fingerprint.snapshots
        ]
        return _with(fingerprint, snapshots=snapshots)

    assert judge("reordered", BASE, late(made_fingerprint(rounding=1e-7)), None, None, None).is_sound
    assert judge("reordered", BASE, late(made_fingerprint(rounding=1e-7)), None, ROUNDING, None).is_sound is False


def _with_buffers(fingerprint: Fingerprint, mean: float, count: int = 1) -> Fingerprint:
    buffers = [Sketch("bn.running_mean", 1, abs(mean), [mean]), Sketch("bn.num_batches_tracked", 1, count, [count])]
    snapshots = [msgspec.structs.replace(one, buffers=buffers) for one in fingerprint.snapshots]
    return _with(fingerprint, snapshots=snapshots)


@pytest.mark.parametrize("claimed", ["reordered", "approximate"])
def test_statistics_updated_twice_are_found(claimed: Any) -> None:
    base, control = _with_buffers(BASE, 0.10), _with_buffers(ROUNDING, 0.1000001)
    other = made_fingerprint(rounding=2e-7)
    assert judge(claimed, base, _with_buffers(other, 0.1000002), None, control, SEED, COARSE).is_sound
    twice = judge(claimed, base, _with_buffers(other, 0.19), None, control, SEED, COARSE)
    assert twice.is_sound is False
    assert "running_mean" in twice.reason
    miscounted = judge(claimed, base, _with_buffers(other, 0.10, count=2), None, control, SEED, COARSE)
    assert miscounted.is_sound is False
    assert "num_batches_tracked" in miscounted.reason


@pytest.mark.parametrize("claimed", ["reordered", "approximate"])
def test_batches_that_slip_later_are_found(claimed: Any) -> None:
    """The first gradients equal the base's. From step 20 on, each loss is that of the next batch."""
    losses = [(step, dict(BASE.losses).get(step + 1, 1.0) if step >= 20 else loss) for step, loss in BASE.losses]
    slipped = _with(made_fingerprint(rounding=1e-7), losses=losses)
    verdict = judge(claimed, BASE, slipped, None, ROUNDING, SEED, COARSE)
    assert verdict.is_sound is False
    assert "other batches" in verdict.reason


@pytest.mark.parametrize("claimed", ["reordered", "redrawn", "approximate"])
def test_a_curve_that_does_not_fall_is_found(claimed: Any) -> None:
    stuck = made_fingerprint(num_steps=200, seed=1 if claimed == "redrawn" else 0, loss_shift=0.6, from_step=100)
    verdict = judge(
        claimed, made_fingerprint(num_steps=200), stuck, None, None, made_fingerprint(num_steps=200, seed=2), COARSE
    )
    assert verdict.is_sound is False


def test_another_draw_is_redrawn_and_nothing_stricter() -> None:
    other = made_fingerprint(seed=3)
    assert judge("redrawn", BASE, other, None, ROUNDING, SEED).is_sound
    assert judge("reordered", BASE, other, None, ROUNDING, SEED).is_sound is False


def test_chance_alone_seldom_rejects_a_redraw() -> None:
    verdicts = [judge("redrawn", BASE, made_fingerprint(seed=seed), None, None, SEED) for seed in range(2, 102)]
    assert sum(not verdict.is_sound for verdict in verdicts) <= 1


def test_a_change_by_design_need_only_be_finite() -> None:
    assert judge("different", BASE, made_fingerprint(seed=3, loss_shift=1.0)).is_sound
