"""Channels last: tensors that leave the model have the script's layout, and a model that needs contiguous tensors gets
its old layout back."""

from __future__ import annotations

import copy
import io
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from slipstream.records import Edit
from slipstream.seams.modules.module import read_model
from slipstream.techniques import channels_last
from slipstream.techniques._core.observation import Observation
from slipstream.testing.made_sessions import made_model, made_session


class Views(nn.Module):
    """Flattens with view, which fails on a convolution's output in the other layout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.3))
        self.head = nn.Linear(64, 2)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.body(x)
        return self.head(y.view(y.size(0), -1))


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3))
        self.places = nn.Parameter(torch.randn(1, 2, 6, 6))

    def forward(self, x: torch.Tensor) -> Any:
        assert self.places.view(2, -1).shape == (2, 36)
        self.layout = x.is_contiguous(memory_format=torch.channels_last)
        return {"picture": self.body(x + self.places)}


def train(model: nn.Module) -> list[float]:
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(3):
        out = model(torch.randn(4, 2, 6, 6))
        out = out["picture"].view(4, -1) if isinstance(out, dict) else out
        loss: Any = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_model_that_needs_contiguous_activations_trains_bit_identically(applied: Any) -> None:
    """The first call runs twice. Batch norm's statistics and dropout's random numbers are those of one call."""
    model = Views()
    bare = copy.deepcopy(model)
    losses = train(bare)
    with applied("channels_last") as context:
        assert train(model) == losses
        assert model.body[0].weight.is_contiguous()  # type: ignore[union-attr,operator]
    assert "needs contiguous activations" in context.declined[0] and not context.changes
    assert all(torch.equal(value, bare.state_dict()[name]) for name, value in model.state_dict().items())


class Dropped(nn.Module):
    """Drops elements of images."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Dropout(0.5), nn.Conv2d(4, 3, 3))

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(x).flatten(1)


def test_a_proof_draws_the_masks_of_the_script(applied: Any) -> None:
    model = Dropped()
    bare = copy.deepcopy(model)
    losses = train(bare)
    with applied("channels_last", is_proof=True) as context:
        proved = train(copy.deepcopy(model))
    assert context.changes and proved == pytest.approx(losses, rel=1e-5)
    with applied("channels_last"):
        assert train(copy.deepcopy(model)) != pytest.approx(losses, rel=1e-3), "dropout draws in the order of memory"


def test_the_script_sees_contiguous_outputs_and_its_other_parameters_untouched(applied: Any) -> None:
    model = Pictures()
    bare = copy.deepcopy(model)
    losses = train(bare)
    with applied("channels_last") as context:
        for one, other in zip(losses, train(model), strict=True):
            assert abs(one - other) < 1e-5
        assert model.layout and not model.body[0].weight.is_contiguous()  # type: ignore[union-attr,operator]
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
    assert context.changes == ["channels_last: 2 convolution weights and the images given to them"]
    assert model.body[0].weight.is_contiguous()  # type: ignore[union-attr,operator]
    loaded = Pictures()
    loaded.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    assert torch.equal(loaded.body[0].weight, model.body[0].weight)  # type: ignore[arg-type]


def penalise(model: nn.Module) -> float:
    """A critic's gradient penalty: the gradient of the images is viewed and differentiated again."""
    torch.manual_seed(3)
    images = torch.randn(4, 2, 6, 6).requires_grad_()
    (gradient,) = torch.autograd.grad(model(images)["picture"].square().sum(), images, create_graph=True)
    penalty: Any = (gradient.view(4, -1).norm(dim=1) - 1).square().mean()
    penalty.backward()
    return float(penalty.detach())


def test_the_script_sees_contiguous_gradients_of_its_images(applied: Any) -> None:
    model = Pictures()
    bare = copy.deepcopy(model)
    expected = penalise(bare)
    with applied("channels_last") as context:
        assert abs(penalise(model) - expected) < 1e-4 * expected
    assert context.changes and not context.declined
    for one, other in zip(model.parameters(), bare.parameters(), strict=True):
        assert one.grad is not None and torch.allclose(one.grad, other.grad, rtol=1e-3, atol=1e-5)  # type: ignore[arg-type]


def test_an_error_of_the_script_is_raised(applied: Any) -> None:
    class Fails(nn.Conv2d):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            raise RuntimeError("of the script")

    model = Fails(2, 2, 3)
    with applied("channels_last"):
        try:
            model(torch.randn(1, 2, 4, 4))
        except RuntimeError as fault:
            assert str(fault) == "of the script" and model.calls == 1
        else:
            raise AssertionError("swallowed")


def test_it_does_not_apply_with_the_scripts_fused_optimizer() -> None:
    """Saved or loaded moments would have another layout than the weights."""
    session = made_session()
    [optimizer] = session.optimizers

    def ask(fused: bool | None) -> Any:
        chosen = msgspec.structs.replace(optimizer, fused=fused)
        models = [made_model("cpu", num_convolutions=3)]
        return channels_last.applies(Observation(msgspec.structs.replace(session, optimizers=[chosen], models=models)))

    assert "fused optimizer" in ask(True).reason and ask(None).is_yes and ask(False).is_yes


def test_it_does_not_apply_to_1d_convolutions() -> None:
    def ask(*layers: nn.Module) -> Any:
        model = read_model(nn.Sequential(*layers), 0, (), {})
        return channels_last.applies(Observation(msgspec.structs.replace(made_session(), models=[model])))

    assert "no 2D convolutions" in ask(nn.Conv1d(2, 2, 3), nn.Linear(2, 2)).reason
    assert ask(nn.Conv1d(2, 2, 3), nn.Conv2d(2, 2, 3)).is_yes


class Grids(nn.Conv2d):
    """YOLOv5's detector: a tensor that is neither a weight nor a buffer moves with the module."""

    grid = torch.zeros(1, 3, 2, 2, 2)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.grid = fn(self.grid)
        return super()._apply(fn, recurse)


@pytest.mark.parametrize("part", [Grids(2, 2, 3), nn.Conv3d(2, 2, 3)])
def test_a_model_that_cannot_be_converted_whole_is_edited_by_hand(part: nn.Module) -> None:
    def edits(*layers: nn.Module) -> list[Edit]:
        model = msgspec.structs.replace(read_model(nn.Sequential(*layers), 0, (), {}), name="net")
        return channels_last.edit(Observation(msgspec.structs.replace(made_session(), models=[model])), True)

    assert not any("for w in" in edit.text for edit in edits(nn.Conv2d(2, 2, 3)))
    net = nn.Sequential(nn.Conv2d(2, 2, 3), part)
    with pytest.raises(RuntimeError, match="rank 4"):
        net.to(memory_format=torch.channels_last)
    (edit,) = edits(*net)
    assert edit.kind == "by_hand" and "five dimensions" in edit.reason
    exec(edit.text, {"net": net, "torch": torch})
    assert net[0].weight.is_contiguous(memory_format=torch.channels_last)  # type: ignore[union-attr,operator]


def test_a_late_branch_that_needs_contiguous_activations_restores_the_layout(applied: Any) -> None:
    class Branching(Views):
        is_late = False

        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x) if self.is_late else self.head(self.body(x).flatten(1))

    model, x = Branching(), torch.randn(4, 2, 6, 6)
    model.body[2] = nn.Identity()
    with applied("channels_last") as context:
        model(x)
        model.is_late = True
        late = model(x)
        assert model.body[0].weight.is_contiguous()  # type: ignore[union-attr,operator]
    assert context.changes and "needs contiguous activations" in context.declined[0]
    assert torch.allclose(late, model(x), atol=1e-6)


class Draws(nn.Module):
    """Draws pictures with one channel, as a generator of digits does."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(4, 1, 3)

    def forward(self, noise: torch.Tensor) -> Any:
        return self.body(noise)


class Judges(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3))

    def forward(self, pictures: torch.Tensor) -> Any:
        return self.body(pictures).view(pictures.size(0), -1).mean(1)


def test_pictures_of_one_channel_are_in_the_scripts_layout_for_another_model(applied: Any) -> None:
    """A picture of one channel is contiguous in both layouts, and a convolution decides by its strides."""
    draws, judges, noise = Draws(), Judges(), torch.randn(2, 4, 8, 8)
    expected = judges(draws(noise))
    with applied("channels_last") as context:
        pictures = draws(noise)
        assert pictures.stride() == (36, 36, 6, 1)
        seen = judges(pictures)
        seen.sum().backward()
    assert torch.allclose(seen, expected, atol=1e-6)
    assert "needs contiguous activations" in context.declined[0]
