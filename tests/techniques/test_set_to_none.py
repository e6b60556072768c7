"""Gradients are freed where the script zeroes them: the training is bit-identical, including parameters that a step
leaves out."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Twofold(nn.Module):
    """The second branch is sometimes left out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.always, self.sometimes = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        result: torch.Tensor = self.always(x) + (self.sometimes(x) if both else 0.0)
        return result


def train(by_model: bool = False, set_to_none: bool = False) -> tuple[list[torch.Tensor], list[bool]]:
    model = Twofold()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    is_there, norms = [], []
    for step in range(6):
        (model if by_model else optimizer).zero_grad(set_to_none=set_to_none)
        is_there.append(model.always.weight.grad is not None)
        loss: Any = model(torch.randn(4, 5, generator=torch.Generator().manual_seed(step)), step % 2 == 0)
        loss.square().mean().backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
    return [*(one.detach() for one in model.parameters()), *norms], is_there


def test_training_is_bit_identical_and_the_memory_is_free(applied: Any) -> None:
    for by_model in (False, True):
        bare, held = train(by_model)
        with applied("set_to_none") as context:
            changed, held_then = train(by_model)
        assert all(map(torch.equal, bare, changed))
        assert held == [False, True, True, True, True, True] and not any(held_then)
        assert context.changes == ["set_to_none: zero_grad(set_to_none=False) drops gradients"] and not context.declined
    dropped, _ = train(set_to_none=True)
    assert not all(map(torch.equal, bare, dropped)), "without zeros, momentum and weight decay would stop"


def test_a_script_that_does_it_already_is_declined(applied: Any) -> None:
    bare, _ = train(set_to_none=True)
    with applied("set_to_none") as context:
        changed, _ = train(set_to_none=True)
    assert all(map(torch.equal, bare, changed)) and not context.changes
    assert context.declined == ["set_to_none: the script already sets its gradients to None"]


def test_a_gradient_that_is_part_of_another_tensor_stays(applied: Any) -> None:
    model = nn.Linear(4, 2, bias=False)
    flat = torch.ones(8)
    with applied("set_to_none"):
        model.weight.grad = flat.view(2, 4)
        model.zero_grad(set_to_none=False)
        assert model.weight.grad is not None and not flat.any()


def test_pending_zeros_are_written_when_the_run_ends(applied: Any) -> None:
    model = nn.Linear(4, 2)
    with applied("set_to_none"):
        model(torch.ones(1, 4)).sum().backward()
        model.zero_grad(set_to_none=False)
        assert model.weight.grad is None
    assert model.weight.grad is not None and not model.weight.grad.any()
