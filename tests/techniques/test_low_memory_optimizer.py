"""8-bit Adam: the reasons to decline, and, if torchao is installed, that torchao's update runs."""

from __future__ import annotations

import importlib.util
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from slipstream.techniques import low_memory_optimizer
from slipstream.techniques._core.observation import Observation
from slipstream.techniques._models.eight_bit import EightBit, find_classes
from slipstream.testing.made_sessions import made_environment, made_model, made_optimizer, made_session

HAS_TORCHAO = importlib.util.find_spec("torchao") is not None


def seen(device: str, kind: str = "AdamW") -> Observation:
    session = msgspec.structs.replace(
        made_session(),
        environment=made_environment(device=device),
        models=[made_model(device)],
        optimizers=[made_optimizer(device, class_name=kind)],
    )
    return Observation(session)


def test_declines_with_a_reason() -> None:
    assert "the weights are on cpu" in low_memory_optimizer.applies(seen("cpu")).reason
    assert "SGD has no 8-bit version" in low_memory_optimizer.applies(seen("cuda:0", "SGD")).reason
    answer = low_memory_optimizer.applies(seen("cuda:0"))
    assert answer.is_yes if HAS_TORCHAO else "pip install torchao" in answer.reason


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 3))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model: nn.Module, optimizer: Any, num_steps: int = 6) -> None:
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for step in range(num_steps):
        loss = model(torch.randn(8, 64, generator=torch.Generator().manual_seed(step))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def test_on_the_cpu_nothing_is_changed(applied: Any) -> None:
    bare, plain = make()
    train(bare, plain)
    with applied("low_memory_optimizer") as context:
        model, optimizer = make()
        train(model, optimizer)
    assert all(map(torch.equal, bare.parameters(), model.parameters())) and not context.changes
    assert ("the weights are on cpu" if HAS_TORCHAO else "pip install torchao") in context.declined[0]


@pytest.mark.skipif(not HAS_TORCHAO, reason="torchao is not installed")
def test_torchaos_update_behind_the_scripts_own_optimizer(applied: Any) -> None:
    classes = find_classes()
    assert classes is not None
    with applied() as context, torch.compiler.set_stance("force_eager"):  # compiling every shape would take minutes
        context.technique = "low_memory_optimizer"
        EightBit(context, classes, lambda optimizer: "").install()
        model, optimizer = make()
        steps: list[int] = []
        optimizer.register_step_post_hook(lambda *_: steps.append(1))
        train(model, optimizer)
        theirs = _by_torchao(classes)
        assert all(map(torch.equal, theirs.parameters(), model.parameters())) and len(steps) == 6
        large = optimizer.state[model[0].weight]["exp_avg"]  # type: ignore[index]
        assert type(large) is not torch.Tensor and large.codes.dtype == torch.uint8
        saved = optimizer.state_dict()
        assert all(type(one) is torch.Tensor for state in saved["state"].values() for one in state.values())
        control, again = make()
        control.load_state_dict(model.state_dict())
        again.load_state_dict(saved)
        train(model, optimizer, 2)
        train(control, again, 2)
        for one, other in zip(model.parameters(), control.parameters(), strict=True):
            assert torch.allclose(one, other, atol=2e-3)
    assert context.changes == ["low_memory_optimizer: the state of AdamW in eight bits"] and not context.declined
    bare, plain = make()
    plain.load_state_dict(saved)  # loads without slipstream
    train(bare, plain, 1)


def _by_torchao(classes: dict[str, Any]) -> nn.Module:
    model, _ = make()
    optimizer = classes["AdamW"](model.parameters(), lr=0.01)
    for step in range(6):
        loss = model(torch.randn(8, 64, generator=torch.Generator().manual_seed(step))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 2:
            optimizer.param_groups[0]["lr"].mul_(0.5)
    return model
