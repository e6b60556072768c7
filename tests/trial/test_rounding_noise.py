"""The control that adds the rounding of a precision."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional

from slipstream.records import ROUNDOFF, Precision
from slipstream.seams.patching import Patches
from slipstream.trial.rounding_noise import RoundingNoise


def _refuse(place: str, fault: BaseException) -> None:
    raise AssertionError(f"{place}: {fault}")


@pytest.fixture
def patches() -> Iterator[Patches]:
    found = Patches(_refuse, torch.compiler.is_compiling)
    yield found
    found.close()


class Residual(nn.Module):
    """Computes with modules, with functions between them, and with a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 4)
        self.gain = nn.Parameter(torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + functional.gelu(self.first(x)) * self.gain
        y += x  # in place
        return self.last(y.view(-1, 16))


def _gradients(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def _pair(patches: Patches, precision: Precision, draw: int = 0) -> tuple[dict[str, float], float, Residual]:
    """The relative errors of the gradients, that of the loss, and the model with noise."""
    torch.manual_seed(0)
    model, x = Residual(), torch.randn(64, 16)
    loss, exact = _gradients(model, x)
    noise = RoundingNoise(precision, draw)
    noise.install(patches)
    noise(model)
    noisy_loss, noisy = _gradients(model, x)
    errors = {name: float((noisy[name] - one).norm() / one.norm()) for name, one in exact.items()}
    return errors, float(abs(noisy_loss - loss) / loss), model


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_errors_are_of_the_size_of_the_precisions_rounding(patches: Patches, precision: Precision) -> None:
    errors, loss_error, _ = _pair(patches, precision)
    u = ROUNDOFF[precision]
    assert set(errors) == {"gain", "first.weight", "first.bias", "last.weight", "last.bias"}
    assert all(0.1 * u < error < 20 * u for error in errors.values()), errors
    assert loss_error < 10 * u


def test_the_last_draw_rounds_to_the_format(patches: Patches) -> None:
    errors, _, _ = _pair(patches, "bf16", draw=3)
    assert all(1e-4 < error < 0.05 for error in errors.values()), errors
    noise, values = RoundingNoise("bf16", 3), torch.randn(1000)
    assert torch.equal(noise._moved(values), values.bfloat16().float())
    tiny = torch.full((4,), 1.2345e-12)
    assert RoundingNoise("fp16", 3)._moved(tiny).all(), "losing small numbers is a fault, not rounding"


def test_draws_differ_and_repeat_themselves() -> None:
    values = torch.randn(100)
    one, two, again = (RoundingNoise("bf16", draw)._moved(values) for draw in (0, 1, 0))
    assert torch.equal(one, again) and not torch.equal(one, two)


def test_the_scripts_random_numbers_stay_the_same(patches: Patches) -> None:
    model, noise = Residual(), RoundingNoise("bf16", 0)
    noise.install(patches)
    noise(model)
    x, state = torch.randn(8, 16), torch.get_rng_state()
    model(x).sum().backward()
    assert torch.equal(torch.get_rng_state(), state)


def test_the_optimizer_updates_the_exact_weights(patches: Patches) -> None:
    torch.manual_seed(0)
    model = Residual()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    noise = RoundingNoise("bf16", 0)
    noise.install(patches)
    noise(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model(torch.randn(8, 16)).sum().backward()
    assert not torch.equal(model.first.weight, before["first.weight"]), "moved between forward and update"
    optimizer.step()
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())

    def closure() -> torch.Tensor:
        loss = model(torch.randn(8, 16)).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def test_nothing_is_added_outside_the_model_and_its_backward_pass(patches: Patches) -> None:
    noise = RoundingNoise("bf16", 0)
    noise.install(patches)
    noise(nn.Linear(4, 4))
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    assert torch.equal(a @ b, torch.mm(a, b)) and torch.equal(a + b, torch.add(a, b))


def test_a_model_that_raises_leaves_nothing_switched_on(patches: Patches) -> None:
    class Raises(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("from the script")

    model, noise = Raises(), RoundingNoise("bf16", 0)
    noise.install(patches)
    noise(model)
    with pytest.raises(ValueError, match="from the script"):
        model(torch.randn(2, 4))
    a = torch.randn(8, 8)
    assert torch.equal(a * 3, a * 3)


def test_statistics_views_and_whole_numbers_stay_exact(patches: Patches) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
    noise = RoundingNoise("bf16", 0)
    noise.install(patches)
    noise(model)
    for _ in range(3):
        model(torch.randn(5, 3, 4, 4)).sum().backward()
    assert int(model[1].num_batches_tracked) == 3
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_a_mask_of_minus_infinity_stays_one() -> None:
    values = torch.tensor([1.0, float("-inf"), float("inf")])
    for draw in range(4):
        moved = RoundingNoise("bf16", draw)._moved(values)
        assert torch.equal(moved[1:], values[1:])


def test_a_second_derivative_and_a_recurrent_model_work(patches: Patches) -> None:
    model, noise = nn.LSTM(8, 8, 2), RoundingNoise("bf16", 0)
    noise.install(patches)
    noise(model)
    x = torch.randn(5, 3, 8, requires_grad=True)
    output, _ = model(x)
    (gradient,) = torch.autograd.grad(output.square().sum(), x, create_graph=True)
    gradient.square().sum().backward()
    assert model.weight_hh_l0.grad is not None and torch.isfinite(model.weight_hh_l0.grad).all()
