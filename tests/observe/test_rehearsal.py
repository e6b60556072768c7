"""Rehearsals on copies of the script's objects. They measure real work, and the script's own objects do not change."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
import torch

from slipstream.observe import rehearsal
from slipstream.observe import rehearsal as rehearsing
from slipstream.observe.rehearsal import ModelRehearsal, fused_optimizer, race, rehearse


def convnet() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 2)
    )


class Course:
    """Runs that take a given time on a simulated clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.num_runs = 100.0, 0
        clock = SimpleNamespace(monotonic=lambda: self.now_s, perf_counter=lambda: self.now_s)
        monkeypatch.setattr(rehearsal, "time", clock)

    def run(self, seconds: float, disturbed: Sequence[int] = ()) -> Callable[[], None]:
        def run() -> None:
            self.num_runs += 1
            self.now_s += 4 * seconds if self.num_runs in disturbed else seconds

        return run


@pytest.fixture(autouse=True)
def ticking_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock advances by a millisecond at every call, so that the duration of a real run cannot end the
    comparison."""
    ticks = itertools.count()

    def now_s() -> float:
        return next(ticks) / 1e3

    for module in (rehearsal, rehearsing):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=now_s, perf_counter=now_s))


def test_comparison_of_two_runs_gives_their_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    course = Course(monkeypatch)
    found = race("remedy", "", course.run(0.2), course.run(0.01), 5.0)
    assert found is not None and found.low <= found.ratio <= found.high and found.ratio == pytest.approx(20)


def test_comparison_that_exceeds_its_time_returns_none(monkeypatch: pytest.MonkeyPatch) -> None:
    course = Course(monkeypatch)
    assert race("remedy", "", course.run(0.1), course.run(0.1), 0.0) is None


def test_disturbed_pair_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    course = Course(monkeypatch)
    found = race("remedy", "", course.run(0.15), course.run(0.1, disturbed=[6]), 1.5)
    assert found is not None and found.low == pytest.approx(1.5)
    assert course.now_s - 100 < 2 * 1.5 + 0.5


def test_decided_comparison_runs_no_additional_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    course = Course(monkeypatch)
    found = race("remedy", "", course.run(0.15), course.run(0.1), 1.5)
    assert found is not None and found.num_pairs == 5


@pytest.mark.parametrize("remedy", ["channels_last", "flush_denormals", "bf16"])
def test_rehearsal_does_not_change_the_model(remedy: str) -> None:
    model = convnet()
    before = copy.deepcopy(model.state_dict())
    x = torch.randn(2, 3, 8, 8)
    found = getattr(ModelRehearsal(model, (x,), {}), remedy)(2.0)
    assert found is not None and found.remedy == remedy
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert x.is_contiguous() and model[0].weight.is_contiguous()  # type: ignore[index,union-attr]


class Loudness(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(8, 2)

    def forward(self, power: torch.Tensor) -> torch.Tensor:
        magnitude = (0.5 * power).sqrt()
        return self.head(magnitude / magnitude.mean())  # type: ignore[no-any-return]


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor cannot flush denormals")
@pytest.mark.parametrize(("power", "breaks_values"), [(1e-39, True), (1.0, False)])
def test_flushing_that_causes_a_division_by_zero_is_reported(power: float, breaks_values: bool) -> None:
    found = ModelRehearsal(Loudness(), (torch.rand(4, 8) * power,), {}).flush_denormals(2.0)
    assert found is not None and found.breaks_values is breaks_values


def test_model_with_five_dimensional_tensors_is_rehearsed() -> None:
    model = convnet()
    model.register_buffer("grid", torch.zeros(1, 3, 2, 2, 2))
    found = ModelRehearsal(model, (torch.randn(2, 3, 8, 8),), {}).channels_last(2.0)
    assert found is not None and found.remedy == "channels_last"


def test_number_of_threads_is_restored() -> None:
    before = torch.get_num_threads()
    found = ModelRehearsal(convnet(), (torch.randn(2, 3, 8, 8),), {}).threads(1, 2.0)
    assert found is not None and found.setting == "1"
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_rehearsal_does_not_change_the_optimizer(kind: type[torch.optim.Optimizer]) -> None:
    model = convnet()
    optimizer = kind(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    before = copy.deepcopy(model.state_dict())
    assert fused_optimizer(optimizer, 2.0) is not None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not optimizer.state


def test_model_that_cannot_be_copied_gives_a_reason() -> None:
    class Stubborn(torch.nn.Conv2d):
        def __deepcopy__(self, memo: object) -> None:
            raise TypeError("one of a kind")

    found, reasons = rehearse((Stubborn(3, 4, 3), (torch.randn(1, 3, 8, 8),), {}), [], 0.0, 2.0)
    assert found == []
    assert reasons == ["The model could not be copied to try remedies on it: TypeError: one of a kind"]


def test_inputs_from_another_model_are_rehearsed_without_its_graph() -> None:
    """A critic gets the output of a generator, and the generator's graph is freed before the rehearsal."""
    generator, critic = torch.nn.Conv2d(3, 3, 1), convnet()
    images = generator(torch.randn(2, 3, 8, 8))
    torch.autograd.backward(critic(images).sum())
    found, reasons = rehearse((critic, (images,), {}), [], 0.0, 2.0)
    assert not reasons and [one.remedy for one in found][:1] == ["channels_last"]


class Remembers(torch.nn.Module):
    """Stores the loss of the last call with its graph, as some autoencoders do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Conv2d(3, 4, 3)
        self.losses: dict[str, torch.Tensor] = {}

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.body(images)
        self.losses["mean"] = output.mean()
        return output


def test_model_that_stores_a_loss_with_its_graph_is_copied() -> None:
    model, images = Remembers(), torch.randn(2, 3, 8, 8)
    kept = model(images) is not None and model.losses["mean"]
    found, reasons = rehearse((model, (images,), {}), [], 0.0, 2.0)
    assert not reasons and found
    assert model.losses["mean"] is kept and kept.grad_fn is not None


class Layers(torch.nn.Module):
    """Two layers, each of which takes 0.1 s forward and 0.2 s backward, and `factor` times as long under autocast."""

    def __init__(self, course: Course, factor: float) -> None:
        super().__init__()
        self.course, self.factor = course, factor
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])

    def __deepcopy__(self, memo: object) -> Layers:
        return Layers(self.course, self.factor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = self.factor if torch.is_autocast_enabled("cpu") else 1.0
        for layer in self.layers:
            x = layer(x)
            self.course.now_s += 0.1 * factor
            if x.requires_grad:
                x.register_hook(lambda _: setattr(self.course, "now_s", self.course.now_s + 0.2 * factor))
        return x


@pytest.mark.parametrize(("factor", "num_pairs"), [(4.0, 2), (30.0, 1)])
def test_hopeless_bf16_ends_after_the_first_pairs(
    monkeypatch: pytest.MonkeyPatch, factor: float, num_pairs: int
) -> None:
    course = Course(monkeypatch)
    found = ModelRehearsal(Layers(course, factor), (torch.randn(2, 4),), {}).bf16(2.0)
    assert found is not None and found.num_pairs == num_pairs and found.high < 1 / 3
    assert found.now_ms == pytest.approx(600) and found.then_ms > 3 * found.now_ms
    assert course.now_s - 100 < 10, "30 times a step would be 18 s"


def test_bf16_that_is_not_hopeless_is_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    course = Course(monkeypatch)
    found = ModelRehearsal(Layers(course, 0.5), (torch.randn(2, 4),), {}).bf16(20.0)
    assert found is not None and found.num_pairs >= 5 and found.ratio == pytest.approx(2)


def test_step_longer_than_the_time_left_is_not_tried_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    course = Course(monkeypatch)
    assert ModelRehearsal(Layers(course, 30.0), (torch.randn(2, 4),), {}).bf16(0.5) is None
    assert course.now_s - 100 == pytest.approx(1.2), "two steps, neither of them in bf16"


def test_bf16_is_rehearsed_on_every_cpu() -> None:
    model = convnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found, reasons = rehearse((model, (torch.randn(2, 3, 8, 8),), {}), [optimizer], 0.0, 2.0)
    assert not reasons and [one.remedy for one in found][-2:] == ["fused_optimizer", "bf16"]
    found, _ = rehearse((convnet().bfloat16(), (torch.randn(2, 3, 8, 8).bfloat16(),), {}), [], 0.0, 2.0)
    assert "bf16" not in [one.remedy for one in found]
