"""Memory that runs out in the forward or the backward pass of a model, planted or by the system's own limit."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

FULL = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes."


class Full(torch.autograd.Function):
    """Runs out of memory in the backward pass of more than `most` rows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, most: int) -> torch.Tensor:
        ctx.most = most
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if len(gradient) > ctx.most:
            raise RuntimeError(FULL)
        return gradient, None


class Narrow(nn.Module):
    """Fits `most` rows with a graph."""

    def __init__(self, forward: int = 999, backward: int = 999) -> None:
        super().__init__()
        self.most, self.most_backward, self.num_failed = forward, backward, 0

    def forward(self, x: torch.Tensor) -> Any:
        if torch.is_grad_enabled() and len(x) > self.most:
            self.num_failed += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 GiB.")
        return Full.apply(x, self.most_backward)  # type: ignore[no-untyped-call]


def net(narrow: nn.Module, *extra: nn.Module) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.GELU(), *extra, narrow, nn.Linear(8, 4)).double()


def train(model: nn.Module, sizes: tuple[int, ...] = (4, 4, 16, 4, 24)) -> list[torch.Tensor]:
    torch.manual_seed(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    for size in sizes:
        optimizer.zero_grad()
        x, y = torch.randn(size, 6, dtype=torch.float64), torch.randint(0, 4, (size,))
        loss: Any = functional.cross_entropy(model(x), y, weight=torch.tensor([1.0, 2, 3, 4], dtype=torch.float64))
        loss.backward()
        optimizer.step()
    return [*(parameter.detach() for parameter in model.parameters()), loss.detach(), torch.rand(2)]


@pytest.mark.parametrize("where", [{"forward": 6}, {"backward": 6}, {"forward": 8, "backward": 3}])
def test_a_batch_that_does_not_fit_is_computed_in_pieces(where: dict[str, int], riding: Any) -> None:
    bare = train(net(Narrow()))
    model = net(Narrow(**where))
    with pytest.raises(RuntimeError, match="memory"):
        train(copy.deepcopy(model))
    with riding("survive_oom") as context:
        changed = train(model)
    assert all(torch.allclose(one, other, atol=1e-12) for one, other in zip(bare, changed, strict=True))
    most = 8 if where.get("backward") == 3 or where.get("forward") == 0 else 4
    (words,) = [speak() for speak in context.last_words]
    assert words.startswith("survived ") and words.endswith(f"of memory, with the batch in up to {most} pieces")


@pytest.mark.parametrize("forward", [999, 8])
def test_what_was_not_survived_is_not_counted(forward: int, riding: Any) -> None:
    """In the backward pass not even one sample fits, whether or not the forward pass was survived."""
    narrow = Narrow()
    model = net(narrow)
    with riding("survive_oom") as context:
        train(model, sizes=(4, 4))
        narrow.most, narrow.most_backward = forward, 0
        with pytest.raises(RuntimeError, match="memory"):
            train(model, sizes=(16,))
    assert [speak() for speak in context.last_words] == [""]


class Tongue(nn.Module):
    """Runs out of memory in a library's own words."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 6 and torch.is_grad_enabled():
            raise RuntimeError(self.words)
        return x


@pytest.mark.parametrize("words", ["could not create a primitive", "could not create a memory", "std::bad_alloc"])
def test_what_libraries_below_torch_say_is_understood(words: str, riding: Any) -> None:
    bare = train(net(nn.Identity()))
    with riding("survive_oom"):
        changed = train(net(Tongue(words)))
    assert all(torch.allclose(one, other, atol=1e-12) for one, other in zip(bare, changed, strict=True))


def test_what_was_learnt_about_sizes_is_used(riding: Any) -> None:
    narrow = Narrow(forward=6)
    with riding("survive_oom"):
        train(net(narrow), sizes=(4, 16, 16, 16, 4))
    assert narrow.num_failed == 2, "16 and 8 rows, once; 4 always fit"


def test_without_a_shortage_every_bit_is_the_same(riding: Any) -> None:
    bare = train(net(Narrow()))
    with riding("survive_oom") as context:
        changed = train(net(Narrow()))
    assert all(map(torch.equal, bare, changed)) and [speak() for speak in context.last_words] == [""]


@pytest.mark.parametrize(
    ("extra", "narrow", "reason"),
    [
        ([nn.BatchNorm1d(8)], Narrow(forward=6), "BatchNorm1d mixes the samples of a batch"),
        ([], Narrow(forward=0), "a few samples could not be computed"),
    ],
)
def test_what_cannot_be_survived_passes_as_it_is(
    extra: list[nn.Module], narrow: Narrow, reason: str, riding: Any
) -> None:
    with riding("survive_oom") as context, pytest.raises(torch.OutOfMemoryError, match=r"64\.00 GiB"):
        train(net(narrow, *extra))
    assert reason in context.declined[0]


class Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 6:
            raise ValueError("planted")
        return x


def test_other_errors_are_not_ours(riding: Any) -> None:
    with riding("survive_oom"), pytest.raises(ValueError, match=r"^planted$"):
        train(net(Failing()))


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """A failure that is caught must not keep the frames, and with them the memory, of what failed."""
    yield
    from slipstream.techniques._recompute.in_pieces_autograd import is_in_pieces, is_inside

    assert not is_inside() and not is_in_pieces()
