"""The gradient of the full batch from its pieces, for any loss; and models that must not be split."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from slipstream.techniques._recompute import in_pieces_autograd
from slipstream.testing.trainings import SmallTransformer

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
WEIGHTS = torch.tensor([0.1, 2.0, 5.0, 0.7], dtype=torch.float64)


def net(*extra: nn.Module) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), *extra, nn.LayerNorm(16), nn.Linear(16, 4)).double()


def train(model: nn.Module, loss: Loss, sizes: tuple[int, ...] = (11, 11, 5)) -> list[torch.Tensor]:
    """A plain loop with clipping, a scheduler that steps with every batch, and a short last batch."""
    torch.manual_seed(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    seen = []
    for size in sizes:
        x, y = torch.randn(size, 6, dtype=torch.float64), torch.randint(0, 4, (size,))
        y[0] = -100
        optimizer.zero_grad()
        value: Any = loss(model(x), y)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        seen += [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        optimizer.step()
        scheduler.step()
    return [*seen, *(parameter.detach() for parameter in model.parameters()), torch.rand(3)]


def contrast(out: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Compares every sample with every other, outside the model."""
    return functional.cross_entropy(out @ out.T, torch.arange(len(out)))


LOSSES: dict[str, Loss] = {
    "mean": lambda out, y: functional.cross_entropy(out, y),
    "sum": lambda out, y: functional.cross_entropy(out, y, reduction="sum"),
    "weighted": lambda out, y: functional.cross_entropy(out, y, weight=WEIGHTS, ignore_index=-100),
    "contrastive": contrast,
}


def apart(bare: list[torch.Tensor], changed: list[torch.Tensor]) -> float:
    return max(float((one - other).abs().max()) for one, other in zip(bare, changed, strict=True))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("num_pieces", [2, 4, 8])
def test_the_gradient_is_that_of_the_full_batch(loss: str, num_pieces: int, applied: Any) -> None:
    model = net()
    bare = train(copy.deepcopy(model), LOSSES[loss])
    with applied(("micro_batches", num_pieces)) as context:
        changed = train(model, LOSSES[loss])
    assert (
        context.changes == [f"micro_batches: Sequential in {num_pieces} pieces of its batch"] and not context.declined
    )
    assert apart(bare, changed) < 1e-10


class Heads(nn.Module):
    """Attention with dropout on its weights and heads folded into the batch; noise; one random number for all."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, dropout=0.3, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        row = x.view(len(x), 4, 4).repeat(1, 1, 4)
        out = self.attention(row, row, row)[0].mean(1)
        return out * torch.rand(()) + 0.1 * torch.randn_like(x)


@pytest.mark.parametrize("extra", [[nn.Dropout(0.5)], [nn.Dropout(0.2), nn.Linear(16, 16), Heads()]])
def test_dropout_drops_the_same_values(extra: list[nn.Module], applied: Any) -> None:
    model = net(*extra)
    bare = train(copy.deepcopy(model), LOSSES["mean"])
    with applied(("micro_batches", 4)) as context:
        changed = train(model, LOSSES["mean"])
    assert context.changes and not context.declined
    assert apart(bare, changed) < 1e-10, "gradients, weights, and the next random numbers of the script"


def test_dropout_that_is_switched_on_later(applied: Any) -> None:
    def twice(model: nn.Sequential) -> list[torch.Tensor]:
        train(model, LOSSES["mean"])
        model[2].p = 0.5  # type: ignore[assignment]
        return train(model, LOSSES["mean"])

    model = net(nn.Dropout(0.0))
    bare = twice(copy.deepcopy(model))
    with applied(("micro_batches", 4)):
        assert apart(bare, twice(model)) < 1e-10


class Pair(nn.Module):
    """Two inputs, one of them trainable outside, a mask for all samples, a dict of results, one without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(5, 7), nn.Linear(3, 7)

    def forward(self, x: torch.Tensor, *, other: dict[str, torch.Tensor], mask: torch.Tensor) -> Any:
        both = self.left(x) * self.right(other["y"])
        return {"both": both[:, mask], "parts": (both.sum(1), both.detach().argmax(1)), "name": "pair"}


def pairs(model: nn.Module) -> list[torch.Tensor]:
    torch.manual_seed(0)
    source = torch.randn(9, 3, dtype=torch.float64, requires_grad=True)
    scale = torch.randn(7, dtype=torch.float64, requires_grad=True)
    x = torch.randn(9, 5, dtype=torch.float64)
    out = model(x, other={"y": source * 2}, mask=torch.arange(7) % 2 == 0)
    assert out["name"] == "pair" and not out["parts"][1].requires_grad
    out["both"].mul_(1.5)  # the script may change it in place
    loss: Any = (out["both"].square().sum() + (out["parts"][0] * scale[0]).sum()) / 3
    first = torch.autograd.grad(loss, [source, scale, *model.parameters()], retain_graph=True)
    loss.backward()
    return [*first, source.grad, *(parameter.grad for parameter in model.parameters())]  # type: ignore[list-item]


def test_trainable_inputs_structured_results_and_a_graph_used_twice(applied: Any) -> None:
    model = Pair().double()
    bare = pairs(copy.deepcopy(model))
    with applied(("micro_batches", 4)) as context:
        changed = pairs(model)
    assert context.changes and not context.declined and apart(bare, changed) < 1e-10


def test_hooks_on_weights_are_called_once_with_the_whole_gradient(applied: Any) -> None:
    seen: list[torch.Tensor] = []
    added: list[torch.Tensor] = []
    model = net()
    model[0].weight.register_hook(lambda gradient: seen.append(gradient) or gradient * 2)  # type: ignore[func-returns-value]
    model[0].bias.register_post_accumulate_grad_hook(lambda bias: added.append(bias.grad.clone()))
    x = torch.randn(8, 6, dtype=torch.float64)
    model(x).sum().backward()
    bare = model[0].weight.grad
    model.zero_grad()
    with applied(("micro_batches", 2)):
        model(x).sum().backward()
    assert len(added) == 2 and torch.allclose(added[0], added[1], atol=1e-12)
    assert len(seen) == 2 and torch.allclose(seen[0], seen[1], atol=1e-12)
    assert torch.allclose(bare, model[0].weight.grad, atol=1e-12)


def penalty(model: nn.Module) -> list[torch.Tensor]:
    torch.manual_seed(2)
    for _ in range(2):
        x = torch.randn(6, 6, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        loss: Any = slope.norm(dim=1).sub(1).square().mean()
        loss.backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def test_gradients_of_gradients_are_right_and_switch_it_off(applied: Any) -> None:
    model = net(nn.Dropout(0.5))
    bare = penalty(copy.deepcopy(model))
    with applied(("micro_batches", 2)) as context:
        assert apart(bare, penalty(model)) < 1e-10
    assert "gradients of gradients" in context.declined[0]


def test_autocast_is_entered_again(applied: Any) -> None:
    torch.manual_seed(0)
    model, x = net().float(), torch.randn(8, 6)

    def gradient() -> torch.Tensor:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
            assert out.dtype is torch.bfloat16
            loss: Any = out.float().square().sum()
            loss.backward()  # inside autocast, which caches cast weights
        return model[0].weight.grad.clone()

    bare = gradient()
    with applied(("micro_batches", 2)) as context:
        changed = gradient()
    assert context.changes and float((bare - changed).norm() / bare.norm()) < 0.03


def test_only_a_piece_is_computed_with_a_graph(applied: Any) -> None:
    """Records the largest number of samples whose activations exist at once, which the technique limits."""
    rows: list[tuple[bool, int]] = []

    class Seen(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows.append((torch.is_grad_enabled(), len(x)))
            return x

    with applied(("micro_batches", 4)):
        model = net(Seen())
        model(torch.randn(8, 6, dtype=torch.float64))
        rows.clear()  # rows of the first call
        model(torch.randn(16, 6, dtype=torch.float64)).sum().backward()
    assert rows == [(False, 4)] * 4 + [(True, 4)] * 4


class Centred(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


class Losing(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).square().mean()


class Remembering(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = super().forward(x)
        return self.seen


class Counting(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1  # type: ignore[operator]
        return super().forward(x)


class Listing(nn.Linear):
    """Keeps a list of the sizes of its batches."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(x))
        return super().forward(x)


class Numbering(nn.Linear):
    num_calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        return super().forward(x)


class Borrowing(nn.Linear):
    lent = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * Borrowing.lent


class Moving(nn.Linear):
    """A momentum encoder that changes its weights while it computes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.bias.mul_(0.9)
        return super().forward(x)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), "BatchNorm1d mixes the samples of a batch"),
        (nn.Sequential(nn.Linear(6, 4), Centred()), "depends on the others in the batch"),
        (Losing(6, 4), "its own loss"),
        (Remembering(6, 4), "stores tensors of a call"),
        (Listing(6, 4), "changes its own attributes"),
        (Numbering(6, 4), "changes its own attributes"),
        (Counting(6, 4), "changes its inputs, weights or buffers"),
        (Moving(6, 4), "changes its inputs, weights or buffers"),
        (Borrowing(6, 4), "not its own weights"),
    ],
)
def test_models_that_must_not_be_split_are_not_changed(model: nn.Module, reason: str, applied: Any) -> None:
    def step(model: nn.Module) -> list[torch.Tensor]:
        torch.manual_seed(1)
        out = model(torch.randn(8, 6)).square().sum()
        out.backward()
        return [*model.state_dict().values(), *(one.grad for one in model.parameters() if one.grad is not None)]

    bare = step(copy.deepcopy(model))
    with applied("micro_batches") as context:
        changed = step(model)
    assert not context.changes and reason in context.declined[0], context.declined
    assert all(map(torch.equal, bare, changed))


def test_evaluation_and_batches_of_one_are_not_changed(applied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with applied(("micro_batches", 2)) as context:
        model = net()
        model(torch.randn(1, 6, dtype=torch.float64)).sum().backward()
        with torch.no_grad():
            model(torch.randn(8, 6, dtype=torch.float64))
        model.eval()(torch.randn(8, 6, dtype=torch.float64)).sum().backward()
        assert not context.changes and not context.declined
        model.train()(torch.randn(8, 6, dtype=torch.float64)).sum().backward()
    assert context.changes and not in_pieces_autograd.is_inside()


def test_lazy_weights(applied: Any) -> None:
    def lazy() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.LazyLinear(16), nn.Dropout(0.2), nn.LazyLinear(4)).double()

    def steps(model: nn.Sequential) -> list[torch.Tensor]:
        torch.manual_seed(5)
        for _ in range(2):
            model(torch.randn(8, 6, dtype=torch.float64)).square().sum().backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    bare = steps(lazy())
    with applied(("micro_batches", 2)) as context:
        assert apart(bare, steps(lazy())) < 1e-10
    assert context.changes and not context.declined


def test_a_transformer_on_tokens_learns_the_same(applied: Any) -> None:
    def steps(model: nn.Module) -> list[torch.Tensor]:
        torch.manual_seed(1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(3):
            tokens = torch.randint(0, 40, (6, 10))
            loss: Any = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    model = SmallTransformer().double()
    bare = steps(copy.deepcopy(model))
    with applied(("micro_batches", 2)) as context:
        assert apart(bare, steps(model)) < 1e-8 and context.changes


def test_the_examination_leaves_a_model_as_it_was(applied: Any) -> None:
    listing, numbering = Listing(6, 4), Numbering(6, 4)
    with applied(("micro_batches", 2)):
        for size in (4, 6):
            listing(torch.randn(size, 6)).sum().backward()
            numbering(torch.randn(size, 6)).sum().backward()
    assert listing.seen == [4, 6] and numbering.num_calls == 2
