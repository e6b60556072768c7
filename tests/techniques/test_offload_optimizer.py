"""The optimizer's state is offloaded between updates. The CPU stands in for the device: a copy counts as a move."""

from __future__ import annotations

import copy
import io
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from slipstream.techniques import offload_optimizer
from slipstream.techniques._core.observation import Observation
from slipstream.techniques._models.offload import Offloaded
from slipstream.testing.made_sessions import made_environment, made_model, made_optimizer, made_session


class Bus:
    """Records what was copied between host and device."""

    def __init__(self) -> None:
        self.brought = self.taken = 0
        self.spoils = True
        self.is_away: dict[int, bool] = {}

    def bring(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        assert self.is_away[tensor.data_ptr()] and device.type == "cpu"
        self.brought += tensor.nbytes
        return self._moved(tensor, False)

    def take(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        self.taken += tensor.nbytes
        return self._moved(tensor, True)

    def _moved(self, tensor: torch.Tensor, is_away: bool) -> torch.Tensor:
        copied = tensor.clone()
        if self.spoils:
            tensor.fill_(float("nan"))  # detects any read of the old memory
        self.is_away[copied.data_ptr()] = is_away
        return copied


def make(kind: Any, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    return model, kind(model.parameters(), lr=0.05, **options)


def train(model: nn.Module, optimizer: Any, num_steps: int = 4, closed: bool = False, watch: Any = None) -> None:
    for step in range(num_steps):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(step))

        def closure(x: torch.Tensor = x) -> Any:
            if watch is not None:
                watch(optimizer)
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            return loss

        if closed:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()


KINDS = [
    (torch.optim.AdamW, {}),
    (torch.optim.AdamW, {"fused": True}),
    (torch.optim.SGD, {"momentum": 0.9}),
    (torch.optim.Adagrad, {}),
]


@pytest.mark.parametrize(("kind", "options"), KINDS)
@pytest.mark.parametrize("closed", [False, True])
def test_training_is_bit_identical_with_offloaded_state(kind: Any, options: dict[str, Any], closed: bool) -> None:
    bare, plain = make(kind, **options)
    train(bare, plain)
    model, optimizer = make(kind, **options)
    bus, sizes = Bus(), []
    offloaded = Offloaded(optimizer, bus.bring, bus.take)
    offloaded.install()
    train(model, optimizer, closed=closed, watch=lambda _: sizes.append(offloaded.num_bytes))
    assert all(map(torch.equal, bare.parameters(), model.parameters()))
    weights = sum(one.nbytes for one in model.parameters())
    whole = {"AdamW": 2 * weights, "SGD": weights, "Adagrad": weights}[kind.__name__]
    assert sizes[1:] == [whole] * 3, "all of it is offloaded while forward and backward run"
    assert sizes[0] == (whole if kind is torch.optim.Adagrad else 0)
    assert bus.taken >= 4 * whole and bus.brought >= 3 * whole
    offloaded.remove()
    assert offloaded.num_bytes == 0
    train(bare, plain, 2)
    train(model, optimizer, 2)
    assert all(map(torch.equal, bare.parameters(), model.parameters())), "and also after it was removed"


def test_checkpoints_equal_those_without_the_technique() -> None:
    bare, plain = make(torch.optim.AdamW)
    model, optimizer = make(torch.optim.AdamW)
    bus = Bus()
    offloaded = Offloaded(optimizer, bus.bring, bus.take)
    offloaded.install()
    train(bare, plain, 2)
    train(model, optimizer, 2)
    bus.spoils = False
    kept = optimizer.state_dict()
    bus.spoils = True
    file = io.BytesIO()
    torch.save(kept, file)
    file.seek(0)
    theirs, ours = plain.state_dict()["state"], torch.load(file)["state"]
    assert all(torch.equal(value, ours[key][name]) for key, state in theirs.items() for name, value in state.items())
    assert not any(bus.is_away.get(one.data_ptr()) for state in kept["state"].values() for one in state.values())
    file.seek(0)
    optimizer.load_state_dict(torch.load(file))
    plain.load_state_dict(copy.deepcopy(plain.state_dict()))
    assert offloaded.num_bytes > 0
    train(bare, plain, 2)
    train(model, optimizer, 2)
    assert all(map(torch.equal, bare.parameters(), model.parameters()))


def test_on_the_cpu_it_declines_with_a_reason(applied: Any) -> None:
    with applied("offload_optimizer") as context:
        train(*make(torch.optim.AdamW), 1)
    assert context.declined == [
        "offload_optimizer: the weights are on the CPU, and their state is in host memory already"
    ]


def seen_on(device: str) -> Observation:
    session = msgspec.structs.replace(
        made_session(),
        environment=made_environment(device=device),
        models=[made_model(device)],
        optimizers=[made_optimizer(device)],
    )
    return Observation(session)


def test_applies_to_accelerators_with_their_own_memory() -> None:
    assert "on the CPU" in offload_optimizer.applies(seen_on("cpu")).reason
    assert "shares its memory" in offload_optimizer.applies(seen_on("mps")).reason
    assert offload_optimizer.applies(seen_on("cuda:0")).is_yes
