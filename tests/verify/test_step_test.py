"""The step test on real updates of real optimizers, with gradients that differ by rounding alone or by a fault."""

from __future__ import annotations

import pytest
import torch

from slipstream.records import ROUNDOFF, Fingerprint, Snapshot
from slipstream.trial.tensor_sketch import sketch
from slipstream.verify.step_test import StepTest, approximate

NUM_ELEMENTS = 20_000
BF16 = approximate("bf16")
# A fifth of a ReLU model's gradient may be zero, because its units are dead. AdamW moves the other elements by the sign
# of their gradient, so that rounding turns the update and leaves its size alone.
DEAD = 0.2


def _fingerprint(
    seed: int, draw: int, rounding: float, optimizer: type[torch.optim.Optimizer], scale: float = 1.0, lr: float = 1e-3
) -> Fingerprint:
    """Two snapshots of one weight, before and after an update."""
    random = torch.Generator().manual_seed(seed)
    weight = torch.nn.Parameter(torch.randn(NUM_ELEMENTS, generator=random))
    gradient = torch.randn(NUM_ELEMENTS, generator=random)
    gradient[: int(DEAD * NUM_ELEMENTS)] = 0.0
    noise = torch.randn(NUM_ELEMENTS, generator=torch.Generator().manual_seed(1_000_000 + 100 * seed + draw))
    weight.grad = scale * (gradient + rounding * noise * (gradient != 0))
    gradients, before = [sketch("weight", weight.grad)], [sketch("weight", weight)]
    optimizer([weight], lr=lr).step()  # type: ignore[call-arg]
    return Fingerprint(snapshots=[Snapshot(0, gradients, [], before), Snapshot(1, [], [], [sketch("weight", weight)])])


def _step_test(seed: int, candidate: Fingerprint, optimizer: type[torch.optim.Optimizer]) -> StepTest:
    base = _fingerprint(seed, 0, 0.0, optimizer)
    draws = [_fingerprint(seed, draw, 0.05, optimizer) for draw in range(1, 5)]
    return StepTest(base, candidate, draws, BF16)


def test_the_norm_of_an_update_is_known_as_well_as_its_sketch_tells() -> None:
    """The exact norms differ by less than 0.01%, the sketched ones by up to 4%. Once in some hundred trainings no draw
    of the noise shows this."""
    for seed in range(200):
        candidate = _fingerprint(seed, 9, 0.06, torch.optim.AdamW)
        test = _step_test(seed, candidate, torch.optim.AdamW)
        assert test.fault is None, (seed, test.fault)
        assert test.has_enough_evidence()


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
