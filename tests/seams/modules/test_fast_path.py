"""The fast path through the seams of a plain step emits the same events as the slow path, and is disabled by a
fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from slipstream.observe.recorder import Recorder
from slipstream.records import Ending, Event, Seen
from slipstream.testing.faults import broken
from slipstream.trial.lifecycle import ScriptRun, TrialSettings

NUM = 40


@contextmanager
def running(with_shortcut: bool = True) -> Iterator[ScriptRun]:
    run = ScriptRun(TrialSettings(mode="watch"))
    if not with_shortcut:
        run.recorder.bar_shortcut()
    run.start()
    try:
        yield run
    finally:
        run.leave(Ending("finished", 0, 0.0))


def events_of(run: ScriptRun) -> list[Event]:
    events = [event for _, message in run.messages if isinstance(message, Seen) for event in message.events]
    return [event for event in events if event.kind != "aside"]


class Net(torch.nn.Module):
    """A model that raises in a call if requested."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 2)
        self.fails = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fails:
            raise LookupError
        result: torch.Tensor = self.inner(x)
        return result


def make() -> tuple[Net, torch.optim.Optimizer, DataLoader[Any]]:
    torch.manual_seed(0)
    net = Net()
    data = TensorDataset(torch.randn(NUM * 3 - 1, 4), torch.zeros(NUM * 3 - 1, dtype=torch.long))
    return net, torch.optim.SGD(net.parameters(), lr=0.1), DataLoader(data, batch_size=3)


def train(net: Net, optimizer: torch.optim.Optimizer, loader: DataLoader[Any], num_epochs: int = 2) -> None:
    for _ in range(num_epochs):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            for x, _ in loader:
                net(x)
        net.train()


def told(run: ScriptRun) -> list[tuple[Any, ...]]:
    return [(e.kind, e.ident, e.samples, e.num_bytes, e.grad, e.training) for e in events_of(run)]


def test_fast_path_emits_the_same_events_as_the_slow_path() -> None:
    runs = []
    for with_shortcut in (True, False):
        with running(with_shortcut) as run:
            train(*make())
            is_taken = run.recorder.shortcut.thread != 0
        assert is_taken == with_shortcut
        runs.append(run)
    short, long = runs
    assert told(short) == told(long)
    assert short.recorder.steps.num_steps == long.recorder.steps.num_steps >= 2 * NUM
    ends = [event.end_ns for event in events_of(short)]
    assert ends == sorted(ends) and all(event.start_ns < event.end_ns for event in events_of(short))


@pytest.mark.parametrize("seam", ["loader.next", "module.call", "autograd.backward", "optimizer.step"])
def test_fault_is_reported_once_and_the_slow_path_takes_over(seam: str, capsys: pytest.CaptureFixture[str]) -> None:
    bare, parts = make(), make()
    train(*bare)
    with broken(f"{seam}.clock"), running() as run:
        train(*parts)
        assert run.recorder.shortcut.thread == 0
    assert all(torch.equal(a, b) for a, b in zip(bare[0].parameters(), parts[0].parameters(), strict=True))
    assert len(run.complaints) == 1 and f"planted in {seam}.clock" in run.complaints[0]
    kinds = {event.kind for event in events_of(run)}
    assert {"input", "forward", "backward", "optimizer"} <= kinds  # at least the events before the fault


def test_exception_of_the_script_restores_the_phase() -> None:
    net, optimizer, loader = make()
    with running() as run:
        recorder = run.recorder
        train(net, optimizer, loader, 1)
        net.fails = True
        with pytest.raises(LookupError):
            net(torch.randn(3, 4))
        assert recorder.phase == "other"
        net.fails = False
        with pytest.raises(RuntimeError):
            torch.zeros(()).backward()  # no graph
        assert recorder.phase == "other"
        for broken_group in ([None], None):
            optimizer.param_groups[0]["params"], kept = broken_group, optimizer.param_groups[0]["params"]
            with pytest.raises((TypeError, AttributeError)):
                optimizer.step()
            optimizer.param_groups[0]["params"] = kept
        before = len(recorder._fresh), recorder.steps.num_steps
        train(net, optimizer, loader, 1)
        assert recorder.phase == "other" and before[1] < recorder.steps.num_steps


def test_a_second_optimizer_inside_a_closure_is_not_taken_for_the_first() -> None:
    net, optimizer, loader = make()
    other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)

    def closure() -> torch.Tensor:
        other.step()
        return torch.zeros(())

    with running() as run:
        train(net, optimizer, loader, 1)
        for _ in range(4):
            optimizer.step(closure)  # type: ignore[arg-type]
    updates = [event for event in events_of(run) if event.kind == "optimizer"]
    assert [event.ident for event in updates[NUM:]] == [1, 0] * 4
    for inner, outer in zip(updates[NUM::2], updates[NUM + 1 :: 2], strict=True):
        assert outer.start_ns <= inner.start_ns and inner.end_ns <= outer.end_ns


def test_sampled_phase_is_evaluation_before_the_events_are_counted() -> None:
    net, optimizer, loader = make()
    with running() as run:
        recorder: Recorder = run.recorder
        train(net, optimizer, loader, 1)
        assert recorder.sampled_phase() == "evaluation"  # the last forward pass was in evaluation mode
        net(torch.randn(3, 4))
        assert recorder.sampled_phase() == "other"


def test_no_fast_path_when_muted_or_in_another_thread() -> None:
    net, optimizer, loader = make()
    with running() as run:
        train(net, optimizer, loader, 1)
        assert run.recorder.shortcut.thread
        run.recorder.is_muted = True
        assert not run.recorder.shortcut.thread
        num_events = len(run.recorder._fresh)
        net(torch.randn(3, 4)).sum().backward()
        assert len(run.recorder._fresh) == num_events
        run.recorder.is_muted = False
        train(net, optimizer, loader, 1)
        assert run.recorder.shortcut.thread


def test_module_with_the_fast_path_can_be_compiled_into_a_function() -> None:
    """fullgraph=True raises if a seam is in the graph."""
    net, optimizer, loader = make()
    torch.compiler.reset()

    @torch.compile(backend="eager", fullgraph=True)
    def score(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = net(x).sum()
        return result

    with running() as run:
        train(net, optimizer, loader, 1)
        assert "_compiled_call_impl" in vars(net) and run.recorder.shortcut.thread
        x = torch.randn(5, 4)
        assert torch.equal(score(x), net.inner(x).sum())
    assert not run.complaints


def test_passage_that_is_called_after_the_end_records_nothing() -> None:
    net, optimizer, loader = make()
    with running() as run:
        train(net, optimizer, loader, 1)
        backward = torch.autograd.backward
    backward(net(torch.randn(3, 4)).sum())
    assert not run.recorder._fresh and backward is not torch.autograd.backward
