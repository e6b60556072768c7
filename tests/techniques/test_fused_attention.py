"""Hand-written attention in its usual forms: replaced if the result is the same, not changed otherwise."""

from __future__ import annotations

import copy
import math
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional

from slipstream.techniques import fused_attention
from slipstream.techniques._core.observation import Observation
from slipstream.techniques._models.attention_pattern import Deferred
from slipstream.testing.made_sessions import made_anatomy, made_session

LENGTH, WIDTH, HEADS = 12, 16, 4


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.register_buffer("causal", torch.tril(torch.ones(LENGTH, LENGTH)).bool())
        self.dropout = nn.Dropout(0.0)
        self.scale = torch.sqrt(torch.tensor([WIDTH // HEADS], dtype=torch.float32))

    def heads(self, x: torch.Tensor) -> Any:
        parts = self.project(x).split(WIDTH, dim=2)
        return (part.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for part in parts)

    def forward(self, x: torch.Tensor) -> Any:
        q, k, v = self.heads(x)
        return self.attend(q, k, v).transpose(1, 2).reshape(x.shape)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        raise NotImplementedError


class NanoGPT(Base):
    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(~self.causal, float("-inf"))  # type: ignore[operator]
        return self.dropout(functional.softmax(att, dim=-1)) @ v


class Padded(Base):
    """From a tutorial: a tensor as scale, -1e10 as mask, and one sample that is all padding."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        mask = torch.ones(q.size(0), 1, 1, LENGTH)
        mask[0], mask[1, ..., LENGTH // 2 :] = 0, 0
        energy = torch.matmul(q, k.permute(0, 1, 3, 2)) / self.scale
        return torch.matmul(torch.softmax(energy.masked_fill(mask == 0, -1e10), dim=-1), v)


class Flat(Base):
    """Heads are folded into the batch, everything is in place, the mask is added."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        q, k, v = (part.flatten(0, 1) for part in (q, k, v))
        scores = torch.bmm(q, k.transpose(1, 2))
        scores *= 0.3
        scores += torch.full((LENGTH, LENGTH), -1e9).triu(1)
        return torch.bmm(scores.softmax(-1), v).unflatten(0, (-1, HEADS))


class Plain(Base):
    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        weights = torch.where(self.causal, q @ k.mT, -torch.inf).float().softmax(-1).type_as(q)  # type: ignore[call-overload]
        return weights @ v


class Looking(Base):
    """Also uses the weights: they are available and have gradients."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        weights = functional.softmax(q @ k.transpose(-2, -1), dim=-1)
        assert weights.shape == (q.size(0), HEADS, LENGTH, LENGTH) and weights.dtype is q.dtype
        return weights @ v + weights.square().mean()


class Odd(Base):
    """A softmax over the queries, which no kernel computes."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return functional.softmax(q @ k.transpose(-2, -1), dim=-2) @ v


class Learnt(Base):
    """A trainable bias, and a number added to every score."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(LENGTH, LENGTH))

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return functional.softmax(q @ k.transpose(-2, -1) + self.bias + 1.0, dim=-1) @ v


class Overwriting(Base):
    """Changes its scores in place in ways that no plan represents, in statements without effect."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        scores = q @ k.transpose(-2, -1)
        scores[..., ~self.causal] = -torch.inf  # type: ignore[index,operator]
        return functional.softmax(scores, dim=-1) @ v


class Clamping(Base):
    """The doubled tensor is made before the change in place and must not see it."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        scores = q @ k.transpose(-2, -1)
        doubled = scores * 2
        scores.clamp_(-0.01, 0.01)
        scores.masked_fill_(self.causal, 0.5)  # type: ignore[arg-type]
        scores.add_(1.0)
        first = functional.softmax(scores, dim=-1) @ v
        return first + functional.softmax(doubled + 1.0, dim=-1) @ v


def train(model: nn.Module, num_steps: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss: Any = model(torch.randn(3, LENGTH, WIDTH)).square().mean()
        loss.backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def both(kind: type[nn.Module], applied: Any) -> tuple[float, Any]:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), kind())
    bare = train(copy.deepcopy(model))
    with applied("fused_attention") as context:
        changed = train(model)
    distances = [float((one - other).norm() / one.norm()) for one, other in zip(bare, changed, strict=True)]
    return max(distances), context


@pytest.mark.parametrize("kind", [NanoGPT, Padded, Flat, Plain, Looking])
def test_the_usual_forms_are_replaced_and_learn_the_same(kind: type[nn.Module], applied: Any) -> None:
    distance, context = both(kind, applied)
    assert context.changes == [f"fused_attention: attention of {kind.__name__}"] and not context.declined
    assert distance < 1e-5


@pytest.mark.parametrize("kind", [Odd, Learnt, Overwriting, Clamping])
def test_unsupported_forms_are_computed_as_written(kind: type[nn.Module], applied: Any) -> None:
    distance, context = both(kind, applied)
    assert not context.changes and context.declined == [
        "fused_attention: no hand-written attention was found in Sequential"
    ]
    assert distance == 0.0


def test_dropout_on_the_weights_is_not_changed(applied: Any) -> None:
    model = NanoGPT()
    model.dropout.p = 0.5
    bare = train(copy.deepcopy(model))
    with applied("fused_attention") as context:
        assert all(map(torch.equal, bare, train(model)))
    assert "dropout" in context.declined[0] and not context.changes


def test_the_fused_kernel_is_called_only_if_its_result_agrees(applied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that gives another result is not used. A kernel with the right result is called once for each call after
    the first."""
    right, calls = functional.scaled_dot_product_attention, []

    def wrong(*args: Any, **kwargs: Any) -> Any:
        calls.append(kwargs["is_causal"])
        return right(*args, **kwargs) * 1.01

    monkeypatch.setattr(functional, "scaled_dot_product_attention", wrong)
    distance, context = both(NanoGPT, applied)
    assert distance == 0.0 and "differs from that of the script's attention" in context.declined[0] and calls == [True]


def test_fused_attention_is_not_also_computed_by_hand(applied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[Deferred] = []
    compute = Deferred.compute
    with applied("fused_attention"):
        model = nn.Sequential(NanoGPT())
        train(model, 1)  # the verification needs both
        monkeypatch.setattr(Deferred, "compute", lambda self: computed.append(self) or compute(self))
        train(model, 2)
    assert not computed


def test_only_the_module_with_attention_is_changed(applied: Any) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), NanoGPT())
    with applied("fused_attention"):
        train(model)
        assert "_compiled_call_impl" in vars(model[1]) and "_compiled_call_impl" not in vars(model[0])


def test_it_applies_if_hand_written_attention_was_seen() -> None:
    session = made_session()
    seen = msgspec.structs.replace(session, anatomy=made_anatomy({"aten::bmm": (2, 1.0)}))
    assert fused_attention.applies(Observation(seen)).reason == "no hand-written attention was seen"
