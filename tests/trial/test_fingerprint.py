"""The fingerprint of a training: losses, gradients just before the update, buffers, digests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.utils.checkpoint import checkpoint

from slipstream.seams.patching import Patches
from slipstream.trial.fingerprint import FingerprintRecorder


class Recording:
    def __init__(self, by_hand: bool = False) -> None:
        self.num_ticks = 0
        self.patches = Patches(self.fail, lambda: False)
        self.fingerprint = FingerprintRecorder(lambda: self.num_ticks, by_hand)
        self.fingerprint.install(self.patches)

    def fail(self, seam: str, fault: BaseException) -> None:
        raise AssertionError(seam) from fault


@pytest.fixture
def recording() -> Iterator[Recording]:
    recording = Recording()
    yield recording
    recording.patches.close()


def make() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 40), torch.nn.BatchNorm1d(40), torch.nn.Linear(40, 1))


def test_losses_are_the_tensors_that_backward_is_called_on(recording: Recording) -> None:
    weight = torch.ones(3, requires_grad=True)
    losses = []
    for step in range(2):
        recording.num_ticks = step
        loss = (weight * (step + 1)).sum()
        loss.backward()
        losses.append((step, loss.item()))
    (weight * 2).backward(torch.ones(3))
    torch.autograd.backward([weight.sum(), weight.prod()])
    assert recording.fingerprint.take_losses() == [*losses, (1, 6.0), (1, 3.0), (1, 1.0)]
    assert recording.fingerprint.take_losses() == []


def test_a_loss_that_is_changed_in_place_afterwards_is_recorded_with_its_old_value(recording: Recording) -> None:
    loss = torch.ones(1, requires_grad=True).sum()
    loss.backward()
    with torch.no_grad():
        loss += 5
    assert recording.fingerprint.take_losses() == [(0, 1.0)]


def test_backward_inside_backward_is_not_a_loss(recording: Recording) -> None:
    layer = torch.nn.Linear(2, 2)
    checkpoint(layer, torch.ones(1, 2, requires_grad=True), use_reentrant=True).sum().backward()
    assert len(recording.fingerprint.take_losses()) == 1


def plain(optimizer: Any, loss: Callable[[], torch.Tensor]) -> None:
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()


def by_closure(optimizer: Any, loss: Callable[[], torch.Tensor]) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)


@pytest.mark.parametrize("step", [plain, by_closure])
def test_gradients_of_the_first_three_steps(recording: Recording, step: Callable[..., None]) -> None:
    model = make()
    recording.fingerprint.add_module(model)
    extra = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([*model.parameters(), extra], 0.1)
    data = torch.randn(16, 8)
    expected = []
    for _ in range(4):
        step(optimizer, lambda: (model(data) * extra).square().mean())
        assert isinstance(model[0], torch.nn.Linear) and model[0].weight.grad is not None
        expected.append(float(model[0].weight.grad.double().norm()))
    snapshots = recording.fingerprint.take_snapshots()
    assert [snapshot.step for snapshot in snapshots] == [0, 1, 2]
    for snapshot, norm in zip(snapshots, expected, strict=False):
        gradients = {sketch.name: sketch for sketch in snapshot.gradients}
        assert gradients["Sequential.0.weight"].norm == pytest.approx(norm)
        assert "optimizer0.group0.6" in gradients and len(gradients) == 7
        assert {sketch.name for sketch in snapshot.buffers} == {"Sequential.1.running_mean", "Sequential.1.running_var"}
    assert recording.fingerprint.aside_ns > 0


def test_each_optimizer_has_its_own_first_steps(recording: Recording) -> None:
    first, second = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    recording.fingerprint.add_module(first)
    recording.fingerprint.add_module(second)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (first, second)]
    for _ in range(2):
        plain(optimizers[0], lambda: first(torch.ones(1, 2)).sum())
    plain(optimizers[1], lambda: second(torch.ones(1, 2)).sum())
    recording.fingerprint.end_snapshots()
    plain(optimizers[1], lambda: second(torch.ones(1, 2)).sum())
    assert _gradients_of(recording) == {
        0: ["Linear.weight", "Linear.bias", "Linear2.weight", "Linear2.bias"],
        1: ["Linear.weight", "Linear.bias"],
    }


def _gradients_of(recording: Recording) -> dict[int, list[str]]:
    return {
        snapshot.step: [sketch.name for sketch in snapshot.gradients]
        for snapshot in recording.fingerprint.take_snapshots()
    }


def test_an_optimizer_that_first_steps_while_steps_are_timed(recording: Recording) -> None:
    """The first takes a step in each tick, the second in every fifth."""
    first, second = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    recording.fingerprint.add_module(first)
    recording.fingerprint.add_module(second)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (first, second)]

    def train(num_steps: int) -> None:
        for _ in range(num_steps):
            plain(optimizers[0], lambda: first(torch.ones(1, 2)).sum())
            recording.num_ticks += 1
            if recording.num_ticks % 5 == 0:
                plain(optimizers[1], lambda: second(torch.ones(1, 2)).sum())

    train(4)
    recording.fingerprint.begin_timing()
    assert list(_gradients_of(recording)) == [0, 1, 2]
    train(30)
    assert _gradients_of(recording) == {step: ["Linear2.weight", "Linear2.bias"] for step in (5, 10, 15)}


def test_nothing_is_hooked_while_steps_are_timed_if_all_weights_are_known(recording: Recording) -> None:
    model = make()
    recording.fingerprint.add_module(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        plain(optimizer, lambda: model(torch.ones(4, 8)).sum())
    num_hooks = len(_global_optimizer_pre_hooks)
    recording.fingerprint.begin_timing()
    assert len(_global_optimizer_pre_hooks) == num_hooks - 1


def test_a_script_that_updates_its_weights_without_an_optimizer() -> None:
    recording = Recording(by_hand=True)
    layer = torch.nn.Linear(2, 1)
    recording.fingerprint.add_module(layer)
    for _ in range(4):
        layer(torch.ones(1, 2)).sum().backward()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
    recording.patches.close()
    snapshots = recording.fingerprint.take_snapshots()
    assert [[sketch.name for sketch in snapshot.gradients] for snapshot in snapshots] == 3 * [
        ["Linear.weight", "Linear.bias"]
    ]


def test_a_digest_changes_with_one_bit_of_a_weight_or_a_buffer(recording: Recording) -> None:
    model = make()
    recording.fingerprint.add_module(model)
    before = recording.fingerprint.digest()
    assert recording.fingerprint.digest() == before
    buffer = dict(model.named_buffers())["1.running_mean"]
    buffer[3] = torch.nextafter(buffer[3], torch.tensor(1.0))
    assert recording.fingerprint.digest() != before
