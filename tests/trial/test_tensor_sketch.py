"""Sketches show the norm of a difference. Fingerprints show a change of a single bit."""

from __future__ import annotations

import math

import pytest
import torch

from slipstream.trial.tensor_sketch import EXACT, fingerprint, sketch


def distance(left: list[float], right: list[float]) -> float:
    return math.dist(left, right)


def test_a_small_tensor_is_stored_completely() -> None:
    result = sketch("bias", torch.tensor([3.0, float("nan"), -4.0, float("inf")]))
    assert (result.numel, result.norm, result.values, result.num_bad) == (4, 5.0, [3.0, 0.0, -4.0, 0.0], 2)


@pytest.mark.parametrize("numel", [EXACT + 1, 30_000, 1_500_000])
def test_the_norm_of_the_difference_of_sketches_estimates_that_of_the_tensors(numel: int) -> None:
    generator = torch.Generator().manual_seed(numel)
    base = torch.randn(numel, generator=generator)
    other = base + 1e-3 * torch.randn(numel, generator=generator)
    left, right = sketch("weight", base), sketch("weight", other)
    truth = float((base.double() - other.double()).norm())
    assert left.norm == pytest.approx(float(base.double().norm()))
    assert distance(left.values, right.values) == pytest.approx(truth, rel=0.25)
    assert len(left.values) < 256


@pytest.mark.parametrize("axis", [0, 1])
def test_one_bad_row_or_column_does_not_hide_in_one_bucket(axis: int) -> None:
    base = torch.zeros(512, 512)
    other = base.clone()
    other.select(axis, 7).fill_(1.0)
    estimate = distance(sketch("weight", base).values, sketch("weight", other).values)
    assert estimate == pytest.approx(math.sqrt(512), rel=0.3)


def test_memory_format_does_not_matter_and_the_scripts_random_numbers_stay() -> None:
    weight = torch.randn(8, 4, 5, 5)
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    plain, other = (sketch("w", weight.to(memory_format=f)) for f in (torch.contiguous_format, torch.channels_last))
    assert plain == other
    assert [int(s) for s in fingerprint(weight)] == [
        int(s) for s in fingerprint(weight.to(memory_format=torch.channels_last))
    ]
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.cfloat])
def test_a_fingerprint_depends_on_every_bit(dtype: torch.dtype) -> None:
    tensor = torch.zeros(1000).to(dtype)
    before = [int(part) for part in fingerprint(tensor)]
    if dtype.is_floating_point:
        tensor[617] = -0.0  # equal to the old value, but with other bits
    else:
        tensor[617] = 1
    assert [int(part) for part in fingerprint(tensor)] != before
    swapped = tensor.clone()
    swapped[[616, 617]] = tensor[[617, 616]]
    assert [int(part) for part in fingerprint(swapped)] != [int(part) for part in fingerprint(tensor)]


@pytest.mark.parametrize("num", [200, 20_000])
def test_zeros_are_counted(num: int) -> None:
    values = torch.ones(num)
    values[:7], values[7:9] = 0.0, float("nan")
    found = sketch("w", values)
    assert (found.num_zero, found.num_bad) == (7, 2)
