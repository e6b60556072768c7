"""Recovery when memory runs out in the forward or backward pass of a model, simulated or through the system's limit."""

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
    """Has memory for `most` rows with a graph."""

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
def test_a_batch_that_does_not_fit_is_computed_in_pieces(where: dict[str, int], applied: Any) -> None:
    bare = train(net(Narrow()))
    model = net(Narrow(**where))
    with pytest.raises(RuntimeError, match="memory"):
        train(copy.deepcopy(model))
    with applied("survive_oom") as context:
        changed = train(model)
    assert all(torch.allclose(one, other, atol=1e-12) for one, other in zip(bare, changed, strict=True))
    most = 8 if where.get("backward") == 3 or where.get("forward") == 0 else 4
    (words,) = [speak() for speak in context.last_words]
    assert words.startswith("recovered from ") and "out-of-memory error" in words
    assert words.endswith(f", with the batch in up to {most} pieces")


@pytest.mark.parametrize("forward", [999, 8])
def test_a_failed_recovery_is_not_counted(forward: int, applied: Any) -> None:
    """In the backward pass not even one sample fits, whether or not the forward pass recovered."""
    narrow = Narrow()
    model = net(narrow)
    with applied("survive_oom") as context:
        train(model, sizes=(4, 4))
        narrow.most, narrow.most_backward = forward, 0
        with pytest.raises(RuntimeError, match="memory"):
            train(model, sizes=(16,))
    assert [speak() for speak in context.last_words] == [""]


class LibraryError(nn.Module):
    """Runs out of memory with the error message of a library."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 6 and torch.is_grad_enabled():
            raise RuntimeError(self.words)
        return x


@pytest.mark.parametrize("words", ["could not create a primitive", "could not create a memory", "std::bad_alloc"])
def test_messages_of_libraries_below_torch_are_recognised(words: str, applied: Any) -> None:
    bare = train(net(nn.Identity()))
    with applied("survive_oom"):
        changed = train(net(LibraryError(words)))
    assert all(torch.allclose(one, other, atol=1e-12) for one, other in zip(bare, changed, strict=True))


def test_known_sizes_start_with_the_pieces_they_need(applied: Any) -> None:
    narrow = Narrow(forward=6)
    with applied("survive_oom"):
        train(net(narrow), sizes=(4, 16, 16, 16, 4))
    assert narrow.num_failed == 2, "16 and 8 rows, once; 4 always fit"


def test_without_a_shortage_training_is_bit_identical(applied: Any) -> None:
    bare = train(net(Narrow()))
    with applied("survive_oom") as context:
        changed = train(net(Narrow()))
    assert all(map(torch.equal, bare, changed)) and [speak() for speak in context.last_words] == [""]


@pytest.mark.parametrize(
    ("extra", "narrow", "reason"),
    [
        ([nn.BatchNorm1d(8)], Narrow(forward=6), "BatchNorm1d mixes the samples of a batch"),
        ([], Narrow(forward=0), "a few samples could not be computed"),
    ],
)
def test_what_cannot_be_recovered_is_raised(extra: list[nn.Module], narrow: Narrow, reason: str, applied: Any) -> None:
    with applied("survive_oom") as context, pytest.raises(torch.OutOfMemoryError, match=r"64\.00 GiB"):
        train(net(narrow, *extra))
    assert reason in context.declined[0]


class Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 6:
            raise ValueError("planted")
        return x


def test_other_errors_are_raised(applied: Any) -> None:
    with applied("survive_oom"), pytest.raises(ValueError, match=r"^planted$"):
        train(net(Failing()))


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """A failure that is caught must not keep the frames of the failed call alive, and with them its memory."""
    yield
    from slipstream.techniques._recompute.in_pieces_autograd import is_in_pieces, is_inside

    assert not is_inside() and not is_in_pieces()
