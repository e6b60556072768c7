"""Mixed precision: the script sees fp32, its own settings are respected, and fp16's loss scaling is invisible."""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from slipstream.records import Choice, Recipe, Rehearsal
from slipstream.techniques import mixed_precision
from slipstream.techniques._core.observation import Observation
from slipstream.techniques._models import loss_scaler
from slipstream.testing import technique_contract as contract
from slipstream.testing.made_sessions import made_environment, made_model, made_session
from slipstream.testing.trainings import TRAININGS


class Pair(NamedTuple):
    one: Any
    other: Any


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...]
    name: str = "kept"


class ModelOutput(OrderedDict[str, Any]):
    """Like Hugging Face's: attributes and items are the same."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        object.__setattr__(self, key, value)


class Talkative(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x)
        self.inside = y.dtype
        output = ModelOutput()
        output["logits"], output["none"] = y, None
        return {"pair": Pair(y, [y]), "data": Output(y, (y,)), "output": output, "whole": torch.arange(3)}


def test_every_tensor_that_leaves_is_fp32_and_every_class_is_kept(applied: Any) -> None:
    with applied(("mixed_precision", "bf16")) as context:
        model = Talkative()
        result = model(torch.randn(2, 4))
    assert model.inside is torch.bfloat16 and context.changes == [
        "mixed_precision: Talkative under autocast in bfloat16"
    ]
    tensors = [result["pair"].one, result["pair"].other[0], result["data"].logits, *result["data"].hidden]
    assert all(t.dtype is torch.float32 for t in (*tensors, result["output"]["logits"], result["output"].logits))
    assert type(result["data"]) is Output and result["data"].name == "kept"
    assert type(result["output"]) is ModelOutput and result["output"]["none"] is None
    assert result["whole"].dtype is torch.int64


def test_evaluation_keeps_the_scripts_precision(applied: Any) -> None:
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    with torch.no_grad():
        bare = model(x)
    with applied(("mixed_precision", "bf16")):
        assert not torch.equal(model(x), bare)
        with torch.no_grad():
            assert torch.equal(model(x), bare)
        assert torch.equal(model.eval()(x), bare)


@pytest.mark.parametrize("is_inside", [True, False])
def test_a_script_that_uses_autocast_is_not_changed(is_inside: bool, applied: Any) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_inside):
                return self.layer(x)

    model, x = Own(), torch.randn(2, 4)
    with applied(("mixed_precision", "bf16")) as context, torch.autocast("cpu", torch.bfloat16, enabled=not is_inside):
        model(x)
        assert model(x).dtype is (torch.bfloat16 if is_inside else torch.float32)
    assert context.declined == ["mixed_precision: the script uses autocast itself"]


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.reentrant = reentrant
        self.seen: list[torch.dtype] = []

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.inside, x, use_reentrant=self.reentrant)

    def inside(self, x: torch.Tensor) -> Any:
        y = self.layer(x)
        self.seen.append(y.dtype)
        return y.sigmoid()  # needs its result in the backward pass, so recomputation runs to here


@pytest.mark.parametrize("is_layer_wrapped", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_our_autocast_is_not_mistaken_for_the_scripts(applied: Any, reentrant: bool, is_layer_wrapped: bool) -> None:
    """Checkpoints enter our autocast again in the backward pass. A model that is called alone may be part of another
    model."""
    with applied(("mixed_precision", "bf16")) as context:
        model, x = Checkpointed(reentrant), torch.randn(2, 4, requires_grad=True)
        if is_layer_wrapped:
            model.layer(x)
        for _ in range(2):
            backward(model(x).sum())
    assert not context.declined and len(context.changes) == 1 + is_layer_wrapped
    assert model.seen == [torch.bfloat16] * 4


def applies(device: str = "cpu", dtypes: tuple[str, ...] = ("float32",), **facts: Any) -> Any:
    session = made_session()
    model = made_model(device, dtypes=list(dtypes))
    environment = made_environment(device=device, **facts)
    observation = Observation(msgspec.structs.replace(session, models=[model], environment=environment))
    return mixed_precision.applies(observation), mixed_precision.settings(observation)


def test_it_applies_even_if_slow_and_declines_if_the_script_does_it() -> None:
    answer, settings = applies(has_fast_bf16=False)
    assert answer.is_yes and settings == ["bf16"]
    assert applies("cuda:0", has_fast_bf16=False, has_fast_fp16=True)[1] == ["fp16", "bf16"]
    assert applies("cuda:0", has_fast_bf16=True, has_fast_fp16=True)[1] == ["bf16", "fp16"]
    assert applies(autocast_seen=True)[0].reason == "the script uses autocast itself"
    assert applies(dtypes=("bfloat16",))[0].reason == "the model is bfloat16 already"


# --- fp16 -------------------------------------------------------------------------------------------------------------


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))


def backward(loss: Any) -> None:
    loss.backward()


def test_gradients_that_would_vanish_in_fp16_survive_accumulation_and_clipping(applied: Any) -> None:
    """Gradients of about 1e-8 are zero in fp16. They are read after every backward pass, as manual clipping does."""
    x = torch.randn(16, 8)

    def gradients(model: nn.Module) -> list[torch.Tensor]:
        seen = []
        for _ in range(5):  # more passes than are tried at the start
            backward(model(x).square().mean() * 1e-6)
            seen.append(torch.cat([p.grad.flatten().clone() for p in model.parameters()]))  # type: ignore[union-attr]
        return seen

    wanted = gradients(net())
    with applied(("mixed_precision", "fp16")):
        got = gradients(net())
    with torch.autocast("cpu", torch.float16):
        lost = gradients(net())
    for one, other in zip(wanted, got, strict=True):
        assert float((one - other).norm() / one.norm()) < 5e-3
    assert float((wanted[0] - lost[0]).norm() / wanted[0].norm()) > 0.1  # otherwise the test would detect nothing


def test_an_overflowing_scale_is_detected_before_an_update_is_lost(applied: Any) -> None:
    x, model = torch.randn(16, 8), net()
    bare = copy.deepcopy(model)
    backward(bare(x).square().sum() * 3000)
    with applied(("mixed_precision", "fp16")) as context:
        backward(model(x).square().sum() * 3000)  # times 65536: too large for fp16
    assert not context.declined
    for one, other in zip(model.parameters(), bare.parameters(), strict=True):
        assert float((one.grad - other.grad).norm() / other.grad.norm()) < 5e-3  # type: ignore[union-attr,operator]


@pytest.mark.parametrize("has_closure", [False, True])
def test_an_overflow_skips_the_update_and_nothing_else(
    has_closure: bool, applied: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scales: list[Any] = []
    monkeypatch.setattr(loss_scaler.LossScale, "_register", _noting(scales, loss_scaler.LossScale._register))
    x, factor = torch.randn(16, 8), torch.ones(())
    with applied(("mixed_precision", "fp16")):
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

        def closure() -> float:
            optimizer.zero_grad()
            loss: Any = (model(x) * factor).square().mean()
            loss.backward()
            assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
            return loss.item()  # type: ignore[no-any-return]

        def step() -> None:
            if has_closure:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()

        for _ in range(4):
            step()
        scale, weights = scales[0].scale, copy.deepcopy(model.state_dict())
        moments = copy.deepcopy(optimizer.state_dict()["state"])
        factor.fill_(1e4)
        step()
        assert scales[0].scale == scale / 2 and scales[0].num_skipped == 1
        assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
        now = optimizer.state_dict()["state"]
        assert all(torch.equal(moments[i][name], now[i][name]) for i in moments for name in moments[i])
        assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
        factor.fill_(1.0)
        step()
        assert not torch.equal(model[0].weight, weights["0.weight"])  # type: ignore[arg-type]


def _noting(scales: list[Any], register: Any) -> Any:
    def noting(self: Any, tensors: Any) -> None:
        if self not in scales:
            scales.append(self)
        register(self, tensors)

    return noting


def test_gradients_of_inputs_penalties_and_kept_activations_are_unscaled_too(applied: Any) -> None:
    def collect() -> list[torch.Tensor]:
        model = net()
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
        out = model(x)
        out.retain_grad()
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        backward(out.square().mean() + slope.square().mean())
        return [slope.detach(), x.grad, out.grad, model[0].weight.grad]  # type: ignore[list-item]

    wanted = collect()
    with applied(("mixed_precision", "fp16")) as context:
        got = collect()
    assert not context.declined
    for one, other in zip(wanted, got, strict=True):
        assert float((one - other).norm() / one.norm()) < 1e-2


def test_fp16_is_declined_where_the_script_would_see_scaled_gradients(applied: Any) -> None:
    stray = torch.ones(4, requires_grad=True)
    with applied(("mixed_precision", "fp16")) as context:
        backward((net()(torch.randn(2, 8)) * stray).sum())
    assert "neither parameters nor inputs" in context.declined[0] and float(stray.grad.abs().max()) < 1000  # type: ignore[union-attr]
    with applied(("mixed_precision", "fp16")) as context:
        model = net()
        seen: list[torch.Tensor] = []
        model[0].weight.register_hook(seen.append)  # type: ignore[union-attr,operator]
        backward(functional.mse_loss(model(torch.randn(2, 8)), torch.zeros(2, 4)))
    assert "hooks" in context.declined[0] and torch.equal(seen[0], model[0].weight.grad)  # type: ignore[arg-type]


def test_what_the_rehearsal_shows_to_be_hopeless_is_not_raced() -> None:
    hopeless = Rehearsal("bf16", "", 58.0, 812.0, 1 / 14, 1 / 15, 1 / 13, 2)
    answer = mixed_precision.applies(Observation(made_session(model=made_model(), rehearsals=[hopeless])))
    assert not answer.is_yes
    assert answer.reason == "a copy of the model is 14.0x slower in bf16 on this CPU (812 ms instead of 58 ms)"
    slower = msgspec.structs.replace(hopeless, ratio=0.5, low=0.2, high=0.6)
    assert mixed_precision.applies(Observation(made_session(model=made_model(), rehearsals=[slower]))).is_yes


@pytest.mark.parametrize("name", ["convnet", "transformer", "gan"])
def test_checkpoints_of_fp16_load_without_it_and_the_other_way_round(name: str) -> None:
    """The contract compares those of the first setting, bf16. The loss scale is in none of them."""
    recipe = Recipe((Choice("mixed_precision", "fp16"),))
    assert contract._check_checkpoint(mixed_precision, recipe, TRAININGS[name], "cpu").startswith("loads bare")
