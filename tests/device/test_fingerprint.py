"""The fingerprint of a trial whose tensors are on a device, also where the script made that the default."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from slipstream.trial.fingerprint import FingerprintRecorder
from slipstream.trial.rounding_noise import RoundingNoise
from slipstream.trial.tensor_sketch import sketch


@pytest.fixture(params=["cpu", "cuda"])
def default_device(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.set_default_device(request.param)
    yield
    torch.set_default_device(None)


@pytest.mark.usefixtures("default_device")
def test_a_digest_changes_with_the_weights() -> None:
    model = nn.Linear(64, 64, device="cuda")
    recorder = FingerprintRecorder(lambda: 0)
    recorder.add_module(model)
    before = recorder.digest()
    assert before is not None and not recorder.unread
    assert recorder.digest() == before
    with torch.no_grad():
        model.weight[3, 5] += 1.0
    assert recorder.digest() != before


@pytest.mark.usefixtures("default_device")
def test_a_sketch_is_that_of_the_cpu() -> None:
    values = torch.randn(70, 80, device="cpu")
    found, expected = sketch("w", values.to("cuda")), sketch("w", values)
    assert found.norm == pytest.approx(expected.norm)
    assert found.values == pytest.approx(expected.values)


@pytest.mark.usefixtures("default_device")
def test_rounding_noise_moves_the_output() -> None:
    model = nn.Linear(64, 64, device="cuda")
    images = torch.randn(8, 64, device="cuda")
    exact = model(images)
    RoundingNoise("bf16", 0)(model)
    noisy = model(images)
    assert not torch.equal(noisy, exact)
    assert torch.allclose(noisy, exact, atol=0.1)


def test_tensors_that_cannot_be_read_are_not_equal() -> None:
    class Unreadable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.zeros(3, device="meta"))

    recorder = FingerprintRecorder(lambda: 0)
    module = Unreadable()
    recorder.add_module(module)
    assert recorder.digest() is None
    assert recorder.unread.startswith("the weights could not be compared bit by bit")
