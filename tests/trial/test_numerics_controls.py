"""The controls that differ by rounding: by one ulp of each weight, or by rounding to bfloat16."""

from __future__ import annotations

import pytest
import torch
from slipstream.trial.numerics_controls import Coarsen, Nudge


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_every_weight_moves_by_one_ulp_up_or_down(dtype: torch.dtype) -> None:
    layer = torch.nn.Linear(64, 64, dtype=dtype)
    before = layer.weight.detach().clone()
    with torch.no_grad():
        layer.bias.zero_()
    state = torch.get_rng_state()
    Nudge()(layer)
    assert torch.equal(torch.get_rng_state(), state)
    up = torch.nextafter(before, torch.full_like(before, torch.inf))
    down = torch.nextafter(before, torch.full_like(before, -torch.inf))
    assert bool(((layer.weight == up) | (layer.weight == down)).all())
    assert 0.3 < float((layer.weight == up).float().mean()) < 0.7
    assert not layer.bias.any()


def test_a_shared_weight_moves_once_and_all_controls_move_alike() -> None:
    def control() -> torch.Tensor:
        torch.manual_seed(0)
        first = torch.nn.Linear(8, 8)
        second = torch.nn.Linear(8, 8)
        second.weight = first.weight
        nudge = Nudge()
        nudge(first)
        once = first.weight.detach().clone()
        nudge(second)
        assert torch.equal(first.weight, once)
        return once

    assert torch.equal(control(), control())


def test_the_coarse_control_has_bfloat16_weights_in_the_scripts_own_precision() -> None:
    layer, half = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16, dtype=torch.float16)
    before, half_before = layer.weight.detach().clone(), half.weight.detach().clone()
    coarsen = Coarsen()
    coarsen(layer)
    coarsen(half)
    assert layer.weight.dtype == torch.float32 and not torch.equal(layer.weight, before)
    assert torch.equal(layer.weight, before.bfloat16().float())
    assert torch.equal(half.weight, half_before)
