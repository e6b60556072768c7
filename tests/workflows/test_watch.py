"""`slipstream.watch()` records a session from inside a program, and leaves no hooks behind."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import slipstream
from slipstream.observe import recorder
from slipstream.seams.host_clock import HostClock


def train(num_workers: int = 0) -> None:
    data = TensorDataset(torch.randn(400, 16), torch.randint(0, 4, (400,)))
    loader = DataLoader(data, batch_size=20, num_workers=num_workers)
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_session_with_every_step(num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        HostClock, "cpu_ns", staticmethod(itertools.count(1).__next__)
    )  # a coarse clock may not advance
    monkeypatch.setattr(
        recorder, "_CPU_TIMED_NS", 0
    )  # otherwise the speed of the machine decides how many batches are timed
    with slipstream.watch() as watch:
        train(num_workers)
    session = watch.session
    assert len(session.steps) == 40
    assert all(step.samples == 20 for step in session.steps)
    assert session.ending.reason == "finished"
    assert session.summary is not None and session.summary.ceilings.compute_ms is None
    assert len(session.fetches) == (40 if num_workers else 0)
    timed = [event for event in session.events if event.kind == "input" and event.cpu_ns]
    assert len(timed) == 40
    assert "samples/s" in str(watch)
    assert "<" in (watch._repr_html_() or "")


@pytest.mark.parametrize("is_lower", [True, False])
def test_autocast_is_seen_although_it_ends_before_the_step(is_lower: bool) -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with slipstream.watch() as watch:
        for _ in range(3):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_lower):
                loss = model(torch.ones(3, 4)).float().sum()
            loss.backward()
            optimizer.step()
    facts = watch.session.environment.torch
    assert facts is not None and facts.autocast_seen is is_lower


def test_an_exception_is_not_suppressed_and_the_session_exists() -> None:
    with pytest.raises(LookupError), slipstream.watch() as watch:
        train()
        raise LookupError("mine")
    assert watch.session.ending.reason == "raised"
    assert watch.session.ending.message == "LookupError: mine"
    assert len(watch.session.steps) == 40


def test_the_session_is_not_available_inside_the_block() -> None:
    with slipstream.watch() as watch, pytest.raises(ValueError, match="still observing"):
        _ = watch.session


def test_importing_slipstream_imports_no_torch() -> None:
    code = "import slipstream, sys; assert 'torch' not in sys.modules and 'rich' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
