import math

import pytest
import torch
from torch import nn

from slipstream.observe.anatomy import Probe
from slipstream.records import Attention


def attentions_of(model: nn.Module, *inputs: torch.Tensor) -> list[Attention]:
    probe = Probe([model])
    probe.start()
    model(*inputs)
    anatomy = probe.stop()
    assert anatomy is not None, probe.reason
    return anatomy.attentions


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("bqd,bkd->bqk", query, key) / math.sqrt(query.size(-1))
    return scores.softmax(-1).bmm(value)  # a separate function


class ByFunction(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return attend(x, x, x)


class BySoftmaxModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.softmax = nn.Softmax(dim=-1)
        self.gate = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = torch.softmax(self.gate(x), -1)
        mask = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril()
        scores = torch.baddbmm(torch.zeros(1, 1, 1), x, x.transpose(1, 2))
        weights = self.softmax(scores.masked_fill(~mask, -1e9))  # a module's call
        return (weights @ x) * gate


class Fused(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)


class Holder(nn.Module):
    """Calls a library's attention: the code is not the user's, but the call is."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x)[0]  # returns weights


class Mixture(nn.Module):
    """A softmax between two products that neither comes from the first product nor goes into the second."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.gate, self.two = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.softmax(self.gate(self.one(x)), -1))


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (ByFunction(), "a separate function"),
        (BySoftmaxModule(), "a module's call"),
        (Holder(), "returns weights"),
    ],
)
def test_attention_by_hand(model: nn.Module, text: str) -> None:
    (attention,) = attentions_of(model, torch.randn(2, 6, 8))
    assert attention.site is not None and text in attention.site.text
    assert 0 < attention.share <= 1


@pytest.mark.parametrize("model", [Fused(), Mixture()])
def test_no_attention_by_hand(model: nn.Module) -> None:
    assert attentions_of(model, torch.randn(2, 6, 8)) == []


def test_the_slow_path_of_the_fused_function_is_no_attention_by_hand() -> None:
    x = torch.randn(2, 6, 8, dtype=torch.float64, requires_grad=True)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert attentions_of(Fused(), x) == []
