"""Recomputed blocks: losses, gradients and buffers are bit-identical, and less memory is used."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from torch import nn

from slipstream.techniques._recompute.checkpoint_block import find_blocks


class Block(nn.Module):
    def __init__(self, width: int, *extra: nn.Module) -> None:
        super().__init__()
        self.norm, self.extra = nn.BatchNorm1d(width), nn.Sequential(*extra)
        self.first, self.second, self.drop = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> Any:
        inner = self.drop(self.first(self.norm(x)).relu())
        if random.random() < 0.5:
            inner = inner * 0.5
        return x + scale * self.extra(self.second(inner))


class Stack(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.first, self.blocks, self.head = nn.Linear(6, 8), nn.ModuleList(blocks), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.head(x)


def stack(num: int = 5, *extra: Any) -> Stack:
    torch.manual_seed(7)
    return Stack(*(Block(8, *(make() for make in extra)) for _ in range(num)))


def train(model: nn.Module, num_steps: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(1)
    random.seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss: Any = model(torch.randn(9, 6)).square().mean()
        loss.backward()
        seen += [loss.detach(), *(one.grad.clone() for one in model.parameters() if one.grad is not None)]
        optimizer.step()
    return [
        *seen,
        *(value.clone() for value in model.state_dict().values()),
        torch.rand(2),
        torch.tensor(random.random()),
    ]


def power() -> nn.Module:
    return nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))


@pytest.mark.parametrize(("setting", "num_chosen"), [("all", 5), ("half", 3), ("quarter", 2), ("most", 4)])
@pytest.mark.parametrize("extra", [[], [power]])
def test_training_is_bit_identical(setting: str, num_chosen: int, extra: list[Any], applied: Any) -> None:
    """Covers batch norm, dropout, a random choice in Python, and a power iteration that advances with every call."""
    model = stack(5, *extra)
    names = list(model.state_dict())
    bare = train(copy.deepcopy(model))
    with applied(("checkpointing", setting)) as context:
        changed = train(model)
        assert list(model.state_dict()) == names
    assert context.changes == [f"checkpointing: {num_chosen} of 5 blocks of Stack"] and not context.declined
    assert len(bare) == len(changed) and all(map(torch.equal, bare, changed))


class DrawsInternally(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> Any:
        return x + scale * self.second(torch.ops.slipstream_test.toss(self.first(x))[0])


def test_a_kernel_that_draws_internally_draws_the_same_again(applied: Any) -> None:
    """Fused attention with dropout draws internally on a GPU."""
    tags = (torch.Tag.nondeterministic_seeded,)

    @torch.library.custom_op("slipstream_test::toss", mutates_args=(), tags=tags)
    def toss(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mask = torch.rand_like(x) < 0.5
        return x * mask, mask

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output[1])

    def back(ctx: Any, gradient: torch.Tensor, _: Any) -> torch.Tensor:
        return gradient * ctx.saved_tensors[0]

    toss.register_autograd(back, setup_context=keep)
    torch.manual_seed(7)
    model = Stack(*(DrawsInternally() for _ in range(4)))
    bare = train(copy.deepcopy(model))
    with applied(("checkpointing", "all")) as context:
        changed = train(model)
    assert context.changes == ["checkpointing: 4 of 4 blocks of Stack"] and not context.declined
    assert all(map(torch.equal, bare, changed))


def test_batch_norm_counts_every_batch_once(applied: Any) -> None:
    model = stack()
    with applied(("checkpointing", "all")):
        train(model, num_steps=3)
    assert [int(block.norm.num_batches_tracked) for block in model.blocks] == [3] * 5  # type: ignore[operator,union-attr,arg-type]


def kept_bytes(model: nn.Module) -> int:
    """Returns the bytes that autograd keeps for the backward pass."""
    found: dict[int, int] = {}
    weights = {parameter.data_ptr() for parameter in model.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in weights:
            found[tensor.data_ptr()] = tensor.nbytes
        return tensor

    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one) or pack(one), lambda one: one):  # type: ignore[func-returns-value]
        model(torch.randn(64, 6))
    return sum(found.values())


def test_less_memory_is_kept(applied: Any) -> None:
    model = stack(8)
    bare = kept_bytes(model)
    with applied(("checkpointing", "half")):
        train(model, 1)
        half = kept_bytes(model)
    with applied(("checkpointing", "all")):
        train(model, 1)
        least = kept_bytes(model)
    assert least < half < bare and least < bare / 3


class InPlace(Block):
    def forward(self, x: torch.Tensor, scale: float = 1.0) -> Any:
        return super().forward(x.relu_(), scale)


class Cache:
    def __init__(self) -> None:
        self.seen: list[int] = []


class Cached(Block):
    def forward(self, x: torch.Tensor, cache: Any = None, scale: float = 1.0) -> Any:
        cache.seen.append(len(x))
        return super().forward(x, scale)


class CachedStack(Stack):
    def forward(self, x: torch.Tensor) -> Any:
        x, cache = self.first(x), Cache()
        for block in self.blocks:
            x = block(x, cache=cache)
        return self.head(x) * len(cache.seen)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Stack(*(InPlace(8) for _ in range(3))), "InPlace changes its inputs while it computes"),
        (CachedStack(*(Cached(8) for _ in range(3))), "Cached receives a Cache, which it may change"),
        (stack(2), "Stack does not consist mostly of at least three equal blocks"),
    ],
)
def test_blocks_that_cannot_be_recomputed_are_not_changed(model: nn.Module, reason: str, applied: Any) -> None:
    bare = train(copy.deepcopy(model))
    with applied(("checkpointing", "all")) as context:
        changed = train(model)
    assert context.declined == [f"checkpointing: {reason}"] and not context.changes
    assert all(map(torch.equal, bare, changed))


def test_blocks_are_found_by_structure() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 4)
    assert find_blocks(nn.Sequential(nn.Embedding(3, 8), encoder)) == list(encoder.layers)
    assert find_blocks(nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))) == [], "a single layer is not a block"
    assert find_blocks(nn.Sequential(nn.Embedding(10_000, 8), encoder)) == [], (
        "most of the weights are outside the blocks"
    )
    wide = Stack(Block(8), Block(8), Block(8), Block(8, nn.Linear(8, 8)))
    assert find_blocks(wide) == list(wide.blocks)[:3], "three of the four are equal"


def test_evaluation_is_not_changed(applied: Any) -> None:
    model = stack().eval()
    x = torch.randn(4, 6)
    bare = model(x)
    with applied(("checkpointing", "all")) as context, torch.no_grad():
        random.seed(0)
        model(x)
    assert bare is not None and not context.changes and not context.declined
