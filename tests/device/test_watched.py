"""What is recorded of a training on a device, in this process."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import slipstream
from slipstream.diagnose import diagnose
from slipstream.observe.rehearsal import race
from slipstream.observe.torch_facts import read_torch_facts
from slipstream.records import Session
from slipstream.report.terminal.footer import software
from slipstream.testing.made_sessions import made_environment
from slipstream.testing.simulated_cuda.install import library

_MS = 1_000_000  # cycles of torch.cuda._sleep
_WORK_MS = 10


class Sleeping(nn.Module):
    """A layer whose backward pass takes a fixed time on the device, and none on the host."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if values.requires_grad:
            values.register_hook(lambda grad: torch.cuda._sleep(_WORK_MS * _MS))
        return values


def _watch(device: str, after_step: Callable[[torch.Tensor], object] = lambda loss: None, steps: int = 40) -> Session:
    index = torch.device(device).index or 0
    model = nn.Sequential(nn.Linear(64, 64), Sleeping(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(16 * steps, 64), torch.randint(0, 10, (16 * steps,)))
    with slipstream.watch() as watched:
        for images, labels in DataLoader(data, batch_size=16):
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            with torch.cuda.device(index):
                optimizer.step()
            after_step(loss)
        torch.cuda.synchronize(index)
    session: Session = watched.session
    return session


@pytest.mark.parametrize("after_step", [lambda loss: None, lambda loss: loss.item()], ids=["plain", "item"])
def test_the_work_of_the_device_is_found_where_it_was_launched(after_step: Callable[[torch.Tensor], object]) -> None:
    session = _watch("cuda", after_step)
    assert session.summary is not None
    phases = session.summary.phases
    assert phases["backward"] > 0.9 * _WORK_MS  # wherever the host waited for it
    assert phases["transfer"] + phases["other"] < 0.5 * phases["backward"]
    assert session.summary.bound == "compute"


def test_copies_are_not_blamed_for_what_they_wait_for() -> None:
    session = diagnose(_watch("cuda"))
    assert session.summary is not None and session.summary.host_phases is not None
    assert session.summary.host_phases["transfer"] > 0.5 * _WORK_MS
    gains = {finding.cause: finding.predicted_gain for finding in session.findings}
    assert gains.get("pageable_transfer", 1.0) < 1.3


def test_a_model_on_another_device_than_the_current_one_is_timed_there() -> None:
    device = "cuda:1"
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with slipstream.watch() as watched:
        for _ in range(40):
            images = torch.randn(16, 64).to(device)
            loss = model(images).square().mean()
            optimizer.zero_grad()
            with torch.cuda.device(1):
                torch.cuda._sleep(_WORK_MS * _MS)
            loss.backward()
            optimizer.step()
    assert torch.cuda.current_device() == 0
    session: Session = watched.session
    assert session.summary is not None and session.summary.device_phases is not None
    assert sum(session.summary.device_phases.values()) > 0.9 * _WORK_MS


def test_the_gpu_is_named_without_nvml() -> None:
    torch.ones(1, device="cuda:1")
    facts = read_torch_facts("cuda:1")
    assert facts.device_name == "Simulated GPU 1"
    environment = msgspec.structs.replace(made_environment(), torch=facts, gpus=[])
    assert software(environment)[-1].startswith("Simulated GPU 1 ")


def test_a_rehearsal_waits_for_the_device_that_is_used() -> None:
    values = torch.ones(8, device="cuda:1")

    def slow() -> None:
        with torch.cuda.device(1):
            torch.cuda._sleep(_WORK_MS * _MS)
            values.add_(1)

    result = race("remedy", "", slow, lambda: values.add_(1), 1.0)
    assert result is not None
    assert result.now_ms > 0.9 * _WORK_MS


def test_a_graph_capture_is_not_disturbed() -> None:
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images = torch.randn(4, 8).cuda()

    def step() -> None:
        optimizer.zero_grad()
        model(images).square().mean().backward()
        optimizer.step()

    with slipstream.watch() as watched:
        for _ in range(20):
            step()
        library().begin_capture()
        for _ in range(100):
            step()
        assert library().end_capture()
        for _ in range(20):
            step()
    session: Session = watched.session
    assert session.summary is not None
