"""The fused optimizer: checkpoints do not differ, loaded moments are read with the right index, and choices of the
script are respected."""

from __future__ import annotations

import copy
import io
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from slipstream.techniques import fused_optimizer
from slipstream.techniques._core.observation import Observation
from slipstream.testing.made_sessions import made_optimizer, made_session

KINDS: dict[str, dict[str, Any]] = {
    "Adam": {"amsgrad": True},
    "AdamW": {"weight_decay": 0.1},
    "SGD": {"momentum": 0.9, "nesterov": True},
    "Adagrad": {},
}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))


def steps(model: nn.Module, optimizer: Any, num_steps: int = 3, has_closure: bool = False) -> None:
    torch.manual_seed(num_steps)

    def closure() -> Any:
        optimizer.zero_grad()
        loss: Any = model(torch.randn(5, 2, 6, 6)).square().mean()
        loss.backward()
        return loss

    for _ in range(num_steps):
        if has_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()


def distance(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().norm() / a.detach().norm()) for a, b in pairs)


@pytest.mark.parametrize("has_closure", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_it_steps_the_same_and_resumes_both_ways(kind: str, has_closure: bool, applied: Any) -> None:
    make = getattr(torch.optim, kind)
    bare, model = net(), net()
    theirs, ours = (make(one.parameters(), lr=0.05, **KINDS[kind]) for one in (bare, model))
    steps(bare, theirs, has_closure=has_closure)
    steps(bare, theirs, 2)
    with applied("fused_optimizer") as context:
        steps(model, ours, has_closure=has_closure)
        assert context.changes == [f"fused_optimizer: {kind} fused"] and ours.param_groups[0]["fused"] is True
        file = io.BytesIO()
        torch.save(ours.state_dict(), file)
        state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        assert state["param_groups"][0]["fused"] is None
        ours.load_state_dict(state)  # in the middle of the training
        assert ours.param_groups[0]["fused"] is True
        steps(model, ours, 2)
    assert ours.param_groups[0]["fused"] is None and distance(bare, model) < 1e-5


def test_loaded_moments_of_another_layout_are_converted(applied: Any) -> None:
    """torch's CPU kernel mixes up elements if a parameter and its moments differ in strides."""
    bare = net()
    theirs = torch.optim.AdamW(bare.parameters(), lr=0.05)
    steps(bare, theirs)
    saved = copy.deepcopy((bare.state_dict(), theirs.state_dict()))
    steps(bare, theirs)
    for choices in (["fused_optimizer"], ["fused_optimizer", "channels_last"]):
        model = net()
        if len(choices) == 1:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        ours = torch.optim.AdamW(model.parameters(), lr=0.05)
        model.load_state_dict(saved[0])
        ours.load_state_dict(copy.deepcopy(saved[1]))
        with applied(*choices) as context:
            steps(model, ours, has_closure=len(choices) == 2)  # the layout changes inside the first step
        assert len(context.changes) == len(choices) and distance(bare, model) < 1e-4


@pytest.mark.parametrize("given", [{"foreach": True}, {"fused": False}])
def test_an_implementation_selected_by_the_script_stays(given: dict[str, bool], applied: Any) -> None:
    with applied("fused_optimizer") as context:
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), **given)
        steps(model, optimizer, 1)
    assert context.declined == ["fused_optimizer: the script selects an implementation"] and not context.changes
    assert {name: optimizer.param_groups[0][name] for name in given} == given


def test_foreach_false_may_be_fused(applied: Any) -> None:
    def train() -> torch.nn.Module:
        model = net()
        steps(model, torch.optim.Adam(model.parameters(), lr=0.05, foreach=False))
        return model

    bare = train()
    with applied("fused_optimizer") as context:
        changed = train()
    assert context.changes == ["fused_optimizer: Adam fused"] and distance(bare, changed) < 1e-4


def test_the_edit_does_not_set_both() -> None:
    """torch rejects foreach=True together with fused=True."""
    session = msgspec.structs.replace(made_session(), optimizers=[made_optimizer(foreach=True)])
    (edit,) = fused_optimizer.edit(Observation(session), True)
    assert edit.kind == "by_hand" and "does not accept foreach and fused together" in edit.reason


def test_what_torch_refuses_to_fuse_is_declined_with_its_message(applied: Any) -> None:
    leaf = torch.ones(2, requires_grad=True)
    weight = leaf.clone()
    weight.grad = torch.ones(2)
    optimizer = torch.optim.Adam([weight], differentiable=True)
    with applied("fused_optimizer") as context:
        optimizer.step()
    assert context.declined == ["fused_optimizer: `fused` does not support `differentiable`"]


@pytest.mark.parametrize("has_closure", [False, True])
def test_sparse_gradients_are_declined(has_closure: bool, applied: Any) -> None:
    table = nn.Embedding(10, 3, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)

    def closure() -> float:
        optimizer.zero_grad()
        loss: Any = table(torch.tensor([1, 2])).sum()
        loss.backward()
        return 0.0

    with applied("fused_optimizer") as context:
        for _ in range(3):
            if has_closure:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
    assert context.declined == ["fused_optimizer: the gradients are sparse"]


def test_a_custom_optimizer_is_not_changed(applied: Any) -> None:
    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for parameter in self.param_groups[0]["params"]:
                parameter.data.sub_(parameter.grad)

    with applied("fused_optimizer") as context:
        model = net()
        steps(model, Own(model.parameters(), lr=0.1), 1)
    assert context.declined == ["fused_optimizer: Own has no fused implementation"]


def test_it_applies_unless_the_script_selects_an_implementation() -> None:
    def reason(**facts: Any) -> str:
        session = msgspec.structs.replace(made_session(), optimizers=[made_optimizer(**facts)])
        return fused_optimizer.applies(Observation(session)).reason

    assert reason() == ""
    assert reason(fused=True) == "the script's optimizer is fused already"
    assert reason(foreach=True) == reason(fused=False) == "the script selects another implementation"
    assert reason(foreach=False) == "", "foreach=False does not exclude fused"
    assert reason(can_fuse=False, class_name="Lion") == "Lion has no fused implementation on cpu"
