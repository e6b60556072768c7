"""The context: which objects a technique gets and when, the order of wrappers, and the effect of a failing
technique."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from slipstream.records import Choice, Recipe
from slipstream.seams.patching import Patches
from slipstream.techniques._core.apply_recipe import apply_recipe
from slipstream.techniques._core.context import ApplyContext


@pytest.fixture
def complaints() -> list[str]:
    return []


@pytest.fixture
def context(complaints: list[str]) -> Iterator[ApplyContext]:
    def complain(name: str, fault: BaseException) -> None:
        complaints.append(f"{name}: {fault}")

    patches = Patches(complain, torch.compiler.is_compiling)
    yield ApplyContext(patches, complain)
    patches.close()
    assert not patches.leftovers


class Tries(nn.Module):
    """Calls its parts in its constructor to learn the size of their output, as detectors and many convnets do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
        self.head = nn.Linear(self.features(torch.zeros(1, 1, 5, 5)).shape[1], 2)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).flatten(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


def test_parts_called_in_a_constructor_are_not_reported(context: ApplyContext) -> None:
    met: list[Any] = []
    context.on_model(met.append)
    model = Tries()
    model(torch.zeros(1, 1, 5, 5))
    assert met == [model]


def test_only_modules_that_the_script_calls_are_reported_once_before_their_first_call(context: ApplyContext) -> None:
    met: list[Any] = []
    context.on_model(met.append)
    inner = nn.Linear(2, 2)
    outer, loss = nn.Sequential(inner, nn.ReLU()), nn.MSELoss()
    optimizer = torch.optim.SGD(outer.parameters(), lr=0.1)
    for _ in range(3):
        loss(outer(torch.ones(1, 2)), torch.ones(1, 2)).backward()
        optimizer.step()
    assert met == [outer]


def test_modules_that_a_framework_calls_directly_are_reported(context: ApplyContext) -> None:
    """Lightning calls training_step directly, inside the optimizer's step."""

    class Task(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(2, 1)

        def training_step(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x).sum()  # type: ignore[no-any-return]

    met: list[Any] = []
    context.on_model(met.append)
    task = Task()
    optimizer = torch.optim.SGD(task.parameters(), lr=0.1)

    def closure() -> float:
        loss: Any = task.training_step(torch.ones(3, 2))
        loss.backward()
        return float(loss.detach())

    optimizer.step(closure)
    assert met == [task.net]


def test_each_context_reports_for_its_technique_at_any_time(context: ApplyContext) -> None:
    one, other = context.named("one"), context.named("other")
    other.changed("b")
    one.decline("c")
    one.changed("a")
    assert context.changes == ["other: b", "one: a"] and context.declined == ["one: c"]


def test_a_change_that_raises_is_declined_and_the_others_stay(context: ApplyContext, complaints: list[str]) -> None:
    def fail(module: Any) -> None:
        raise KeyError("ours")

    met: list[Any] = []
    context.named("bad").on_model(fail)
    context.named("good").on_model(met.append)
    layer = nn.Linear(1, 1)
    layer(torch.ones(1))
    assert met == [layer] and context.declined == ["bad: KeyError: 'ours'"] and complaints == ["technique bad: 'ours'"]


def test_the_nesting_of_wrappers_does_not_depend_on_the_recipe(complaints: list[str]) -> None:
    """Autocast must be active where the layout is converted: in either order the recipe is the same training."""

    def train(*choices: Choice) -> list[float]:
        torch.manual_seed(0)
        patches = Patches(lambda name, fault: complaints.append(name), torch.compiler.is_compiling)
        context = apply_recipe(Recipe(choices), patches, lambda name, fault: complaints.append(name))
        net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            loss: Any = net(torch.randn(4, 2, 4, 4)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        patches.close()
        assert len(context.changes) == 2
        return losses

    layout, precision = Choice("channels_last"), Choice("mixed_precision", "bf16")
    assert train(layout, precision) == train(precision, layout)
    assert not complaints


def test_wrappers_are_removed_and_copies_have_none(context: ApplyContext) -> None:
    import copy
    import pickle

    layer = nn.Linear(1, 1)
    context.wrap_call(layer, lambda call, x: call(x) + 1)
    context.wrap_call(layer, lambda call, x: call(x) * 10)
    x = torch.ones(1)
    assert layer(x) == (layer.forward(x) + 1) * 10
    assert copy.deepcopy(layer)(x) == layer.forward(x) == pickle.loads(pickle.dumps(layer))(x)
    context.patches.close()
    assert layer(x) == layer.forward(x) and "_compiled_call_impl" not in vars(layer)


class Stateful(nn.Linear):
    """Returns all its attributes, as Lightning's modules do: torch's own __getstate__ would leave out the wrapper."""

    def __getstate__(self) -> Any:
        return dict(vars(self))


def test_copies_of_a_module_with_a_state_of_its_own_compute_with_their_own_weights(context: ApplyContext) -> None:
    import copy
    import io
    import pickle

    layer, x = Stateful(1, 1, bias=False), torch.ones(1)
    context.wrap_call(layer, lambda call, x: call(x) + 1)
    file = io.BytesIO()
    torch.save(layer, file)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    for control in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), loaded):
        with torch.no_grad():
            control.weight.fill_(7.0)
        assert control(x) == 7.0 and layer(x) == layer.forward(x) + 1


def test_one_of_several_ranks_is_not_changed(context: ApplyContext, monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[Any] = []
    context.named("some").on_model(met.append)
    context.named("other").on_optimizer(met.append)
    context.named("fingerprint").on_model(met.append)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    layer = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.ones(1)).backward()
    optimizer.step()
    assert met == [layer], "the fingerprint changes nothing"
    assert [sentence.partition(",")[0] for sentence in context.declined] == [
        "some: this is one of 2 ranks",
        "other: this is one of 2 ranks",
    ]


def test_compiled_by_the_script_differs_from_wrapped_by_us(context: ApplyContext) -> None:
    mine, theirs = nn.Linear(1, 1), nn.Linear(1, 1)
    context.wrap_call(mine, lambda call, x: call(x))
    theirs._compiled_call_impl = lambda x: x
    assert not context.is_compiled(mine) and context.is_compiled(theirs)
    context.wrap_call(theirs, lambda call, x: call(x))
    assert context.is_compiled(theirs), "detected through the wrapper"
