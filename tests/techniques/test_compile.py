"""Models that are really compiled. One small training covers everything, because compiling takes seconds."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from slipstream.records import Choice, Recipe
from slipstream.techniques import compile as technique
from slipstream.techniques._core.observation import Observation
from slipstream.testing import technique_contract as contract
from slipstream.testing.made_sessions import made_model, made_session
from slipstream.testing.trainings import TrainingOutcome

pytestmark = pytest.mark.skipif(not technique._has_compiler(), reason="no C++ compiler")


@pytest.fixture(autouse=True)
def small_compiler() -> Iterator[None]:
    """Uses no process pool, because there is only one graph."""
    import torch._inductor.config as config

    with config.patch(compile_threads=1):
        yield


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 2))


def train(model: nn.Module, num_steps: int = 3, optimizer: torch.optim.Optimizer | None = None) -> list[float]:
    torch.manual_seed(1)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(num_steps):
        loss: Any = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_bare_container_is_captured_and_learns_the_same_with_eager_random_numbers(applied: Any) -> None:
    bare, model, x = net(), net(), torch.randn(3, 8)
    losses = train(bare)
    names = list(bare.state_dict())
    with applied(("compile", "default"), is_proof=True) as context:
        for one, other in zip(losses, train(model), strict=True):
            assert abs(one - other) < 1e-5 * abs(one)
        assert context.changes == ["compile: Sequential compiled into 1 graph"] and not context.declined
        assert list(model.state_dict()) == names
        control = copy.deepcopy(model).eval()
        graphs = _num_graphs()
        with torch.no_grad():
            assert torch.equal(model.eval()(x), control(x))  # evaluation is not compiled
        assert _num_graphs() == graphs
    assert not torch._inductor.config.fallback_random and not torch._dynamo.config.suppress_errors


def training(device: str = "cpu", checkpoint: bytes = b"") -> TrainingOutcome:
    out, model = TrainingOutcome(), net()
    out.models, out.optimizers = {"net": model}, {"adam": torch.optim.Adam(model.parameters())}
    if checkpoint:
        out.resume(checkpoint)
    out.losses = train(model, optimizer=out.optimizers["adam"])
    return out.save()


def test_checkpoints_of_a_compiled_model_load_without_it_and_the_other_way_round() -> None:
    recipe = Recipe((Choice("compile", "default"),))
    assert contract._check_checkpoint(technique, recipe, training, "cpu").startswith("loads bare")


def _num_graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_a_model_that_cannot_be_captured_runs_uncompiled(applied: Any) -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        @torch.compiler.disable
        def forward(self, x: torch.Tensor) -> Any:
            return self.net(x)

    losses = train(net())
    with applied(("compile", "default")) as context:
        assert train(Hidden()) == losses
    assert context.declined == ["compile: the compiler captured no part of Hidden"] and not context.changes


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_failing_compiler_changes_no_result(direction: str, applied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Includes the backward pass, which torch would otherwise compile when a failure can no longer be repaired."""
    import torch._inductor.compile_fx as inductor

    calls: list[str] = []

    def fail(*args: Any, **kwargs: Any) -> None:
        calls.append(direction)
        raise OSError("no such compiler")

    losses = train(net())
    monkeypatch.setattr(inductor, f"compile_fx_{direction}", fail)
    with torch._inductor.config.patch(force_disable_caches=True), applied(("compile", "default")) as context:
        assert train(net()) == losses
    assert calls and not context.changes and len(context.declined) == 1


def test_a_script_that_compiles_is_not_changed(applied: Any) -> None:
    model: Any = net()
    model._compiled_call_impl = model._call_impl  # what Module.compile() does, without compiling
    with applied(("compile", "default")) as context:
        train(model, 1)
    assert context.declined == ["compile: the script compiles Sequential itself"]


def test_it_applies_only_with_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    observation = Observation(made_session())
    assert technique.applies(observation).is_yes
    assert technique.settings(observation) == ["default", "max-autotune-no-cudagraphs"]
    compiled = msgspec.structs.replace(made_session(), models=[made_model(is_compiled=True)])
    assert technique.applies(Observation(compiled)).reason == "the script compiles the model already"
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "no C++ compiler" in technique.applies(observation).reason
