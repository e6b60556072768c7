"""The step test on real updates of real optimizers, with gradients that differ by rounding alone or by a fault."""

from __future__ import annotations

import pytest
import torch

from slipstream.records import ROUNDOFF, Fingerprint, Snapshot
from slipstream.trial.tensor_sketch import sketch
from slipstream.verify.step_test import REORDERED, Allowance, StepTest, approximate

NUM_ELEMENTS = 20_000
BF16 = approximate("bf16")
# A fifth of a ReLU model's gradient may be zero, because its units are dead. AdamW moves the other elements by the sign
# of their gradient, so that rounding turns the update and leaves its size alone.
DEAD = 0.2


FP32 = 1e-7  # relative rounding of the gradient
NEAR_ZERO = 1e-6  # a gradient that rounding may turn: far more than AdamW's epsilon, far less than other gradients
NUM_NEAR_ZERO = 4


def _fingerprint(
    seed: int,
    draw: int,
    rounding: float,
    optimizer: type[torch.optim.Optimizer],
    scale: float = 1.0,
    lr: float = 1e-3,
    near_zero: float = NEAR_ZERO,
    dead: float = 0.0,
    weight_decay: float = 0.0,
) -> Fingerprint:
    """Two snapshots of one weight, before and after an update."""
    random = torch.Generator().manual_seed(seed)
    weight = torch.nn.Parameter(torch.randn(NUM_ELEMENTS, generator=random))
    gradient = torch.randn(NUM_ELEMENTS, generator=random)
    gradient[: int(DEAD * NUM_ELEMENTS)] = 0.0
    gradient[-NUM_NEAR_ZERO:] = NEAR_ZERO
    noise = torch.randn(NUM_ELEMENTS, generator=torch.Generator().manual_seed(1_000_000 + 100 * seed + draw))
    weight.grad = scale * (gradient + rounding * noise * (gradient != 0))
    weight.grad[: int(DEAD * NUM_ELEMENTS)] = dead * noise[: int(DEAD * NUM_ELEMENTS)]
    weight.grad[-NUM_NEAR_ZERO:] = near_zero
    gradients, before = [sketch("weight", weight.grad)], [sketch("weight", weight)]
    optimizer([weight], lr=lr, weight_decay=weight_decay).step()  # type: ignore[call-arg]
    return Fingerprint(snapshots=[Snapshot(0, gradients, [], before), Snapshot(1, [], [], [sketch("weight", weight)])])


def _step_test(
    seed: int,
    candidate: Fingerprint,
    optimizer: type[torch.optim.Optimizer],
    allowance: Allowance = BF16,
    weight_decay: float = 0.0,
) -> StepTest:
    rounding = 0.05 if allowance is BF16 else FP32
    base = _fingerprint(seed, 0, 0.0, optimizer, weight_decay=weight_decay)
    draws = [_fingerprint(seed, draw, rounding, optimizer, weight_decay=weight_decay) for draw in range(1, 5)]
    return StepTest(base, candidate, draws, allowance)


def test_the_norm_of_an_update_is_known_as_well_as_its_sketch_tells() -> None:
    """The exact norms differ by less than 0.01%, the sketched ones by up to 4%. Once in some hundred trainings no draw
    of the noise shows this."""
    for seed in range(200):
        candidate = _fingerprint(seed, 9, 0.06, torch.optim.AdamW)
        test = _step_test(seed, candidate, torch.optim.AdamW)
        assert test.fault is None, (seed, test.fault)
        assert test.has_enough_evidence()


ADAPTIVE = [torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad]


@pytest.mark.parametrize("optimizer", ADAPTIVE)
def test_signs_that_rounding_decides_are_not_a_fault(optimizer: type[torch.optim.Optimizer]) -> None:
    """One gradient in some ten million is that close to zero. No draw shows it."""
    for seed in range(20):
        candidate = _fingerprint(seed, 9, FP32, optimizer, near_zero=-NEAR_ZERO)
        test = _step_test(seed, candidate, optimizer, REORDERED)
        assert test.fault is None, (seed, test.fault)
        assert test.has_enough_evidence()


@pytest.mark.parametrize("optimizer", ADAPTIVE)
def test_an_update_may_turn_as_far_as_its_gradient_explains(optimizer: type[torch.optim.Optimizer]) -> None:
    """Where a ReLU falls differently, the gradient differs by 0.2%, which is allowed, and some thousandth of the signs
    with it."""
    for seed in range(20):
        test = _step_test(seed, _fingerprint(seed, 9, 0.002, optimizer), optimizer, REORDERED)
        assert test.fault is None, (seed, test.fault)


@pytest.mark.parametrize("allowance", [REORDERED, BF16], ids=["reordered", "approximate"])
@pytest.mark.parametrize("optimizer", ADAPTIVE)
def test_a_gradient_that_is_zero_but_for_rounding_is_not_a_fault(
    optimizer: type[torch.optim.Optimizer], allowance: Allowance
) -> None:
    """The optimizer moves these weights by a full step, and in the base not at all."""
    for seed in range(20):
        candidate = _fingerprint(seed, 9, FP32, optimizer, dead=FP32)
        test = _step_test(seed, candidate, optimizer, allowance)
        assert test.fault is None, (seed, test.fault)
        assert test.has_enough_evidence()


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_a_lost_weight_decay_of_a_hundredth_of_the_update_is_rejected(optimizer: type[torch.optim.Optimizer]) -> None:
    """Signs move an update by more, but not all of its elements."""
    for seed in range(20):
        candidate = _fingerprint(seed, 9, FP32, optimizer)
        fault = _step_test(seed, candidate, optimizer, REORDERED, weight_decay=0.01).fault
        assert fault is not None and fault.tensor == "update", (seed, fault)


@pytest.mark.parametrize("allowance", [REORDERED, BF16], ids=["reordered", "approximate"])
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_a_lost_update_is_rejected(optimizer: type[torch.optim.Optimizer], allowance: Allowance) -> None:
    for seed in range(20):
        candidate = _fingerprint(seed, 9, FP32, optimizer, lr=0.0)
        fault = _step_test(seed, candidate, optimizer, allowance).fault
        assert fault is not None and fault.tensor == "update", (seed, fault)


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_an_update_of_another_size_is_rejected(optimizer: type[torch.optim.Optimizer]) -> None:
    for seed in range(20):
        candidate = _fingerprint(seed, 9, 0.05, optimizer, lr=0.9e-3)
        fault = _step_test(seed, candidate, optimizer).fault
        assert fault is not None and (fault.tensor, fault.kind) == ("update", "norm"), (seed, fault)


def test_a_scaled_gradient_is_rejected_by_its_size() -> None:
    """The norm of a gradient is exact."""
    for seed in range(20):
        candidate = _fingerprint(seed, 9, 10 * ROUNDOFF["bf16"], torch.optim.SGD, scale=0.97)
        fault = _step_test(seed, candidate, torch.optim.SGD).fault
        assert fault is not None and (fault.tensor, fault.kind) == ("gradient", "norm"), (seed, fault)
