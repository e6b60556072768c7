"""What `memory` reports of a step on a device, compared with the allocator's own counters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from slipstream.memory.observer import Observer
from slipstream.records import Footprint


def _observe(model: nn.Module, optimizer: Any, step: Callable[[], object]) -> tuple[Footprint, int]:
    """The footprint of the observed step, and the peak that the allocator counts in it."""
    for _ in range(3):
        step()
    observer = Observer([model], [optimizer])
    assert observer.start(), observer.reason
    step()
    observer.turn()
    torch.cuda.reset_peak_memory_stats()
    step()
    peak_bytes = torch.cuda.max_memory_allocated()
    footprint = observer.stop()
    assert footprint is not None, observer.reason
    return footprint, peak_bytes


def _temporaries(values: torch.Tensor) -> torch.Tensor:
    """Temporaries that Python drops between operators, as in any forward of one's own."""
    for _ in range(20):
        doubled = values * 2
        moved = doubled + 1
        values = moved.relu()
    return values


def test_the_peak_is_the_allocators() -> None:
    model = nn.Linear(256, 256).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images = torch.randn(1024, 256, device="cuda")

    def step() -> None:
        with torch.no_grad():
            features = _temporaries(images)
        loss = model(features).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    footprint, peak_bytes = _observe(model, optimizer, step)
    assert footprint.peak_bytes == pytest.approx(peak_bytes, rel=0.01)
    assert footprint.growth is None


@pytest.mark.parametrize("keeps", [False, True], ids=["clean", "leak"])
@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD])
def test_only_what_is_kept_grows(make: Any, keeps: bool) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).cuda()
    optimizer = make(model.parameters(), lr=0.1)
    images, labels = torch.randn(512, 64, device="cuda"), torch.zeros(512, dtype=torch.long, device="cuda")
    kept: list[torch.Tensor] = []

    def step() -> None:
        scores = model(images)
        loss = nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if keeps:
            kept.append(scores.detach())

    footprint, peak_bytes = _observe(model, optimizer, step)
    assert footprint.peak_bytes == pytest.approx(peak_bytes, rel=0.01)
    if keeps:
        assert footprint.growth is not None
        assert footprint.growth.num_bytes == 512 * 10 * 4
    else:
        assert footprint.growth is None


def test_the_scripts_own_recording_is_left_on() -> None:
    torch.cuda.memory._record_memory_history(context=None)
    try:
        model = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        _observe(model, optimizer, lambda: model(torch.ones(4, 8, device="cuda")).sum().backward())
        torch.ones(1, device="cuda")
        assert torch.cuda.memory._snapshot()["device_traces"][0][-1]["action"] in ("alloc", "free_completed")
    finally:
        torch.cuda.memory._record_memory_history(None)
