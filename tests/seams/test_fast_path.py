"""The shortcut through the seams of a plain step: it tells what the long way tells, and is given up when it fails."""

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
def riding(with_shortcut: bool = True) -> Iterator[ScriptRun]:
    ride = ScriptRun(TrialSettings(mode="watch"))
    if not with_shortcut:
        ride.recorder.bar_shortcut()
    ride.start()
    try:
        yield ride
    finally:
        ride.leave(Ending("finished", 0, 0.0))


def events_of(ride: ScriptRun) -> list[Event]:
    events = [event for _, message in ride.messages if isinstance(message, Seen) for event in message.events]
    return [event for event in events if event.kind != "aside"]


class Net(torch.nn.Module):
    """Fails in a call, if asked to."""

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


def told(ride: ScriptRun) -> list[tuple[Any, ...]]:
    return [(e.kind, e.ident, e.samples, e.num_bytes, e.grad, e.training) for e in events_of(ride)]


def test_it_tells_what_the_long_way_tells() -> None:
    rides = []
    for with_shortcut in (True, False):
        with riding(with_shortcut) as ride:
            train(*make())
            is_taken = ride.recorder.shortcut.thread != 0
        assert is_taken == with_shortcut
        rides.append(ride)
    short, long = rides
    assert told(short) == told(long)
    assert short.recorder.pace.num_steps == long.recorder.pace.num_steps >= 2 * NUM
    ends = [event.end_ns for event in events_of(short)]
    assert ends == sorted(ends) and all(event.start_ns < event.end_ns for event in events_of(short))


@pytest.mark.parametrize("seam", ["loader.next", "module.call", "autograd.backward", "optimizer.step"])
def test_a_fault_in_it_is_said_once_and_the_others_go_on_the_long_way(
    seam: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bare, parts = make(), make()
    train(*bare)
    with broken(f"{seam}.clock"), riding() as ride:
        train(*parts)
        assert ride.recorder.shortcut.thread == 0
    assert all(torch.equal(a, b) for a, b in zip(bare[0].parameters(), parts[0].parameters(), strict=True))
    assert len(ride.complaints) == 1 and f"planted in {seam}.clock" in ride.complaints[0]
    kinds = {event.kind for event in events_of(ride)}
    assert {"input", "forward", "backward", "optimizer"} <= kinds  # before the fault, at the least


def test_what_the_script_raises_leaves_the_phase_as_it_was() -> None:
    net, optimizer, loader = make()
    with riding() as ride:
        recorder = ride.recorder
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
        before = len(recorder._fresh), recorder.pace.num_steps
        train(net, optimizer, loader, 1)
        assert recorder.phase == "other" and before[1] < recorder.pace.num_steps


def test_a_second_optimizer_inside_a_closure_is_not_taken_for_the_first() -> None:
    net, optimizer, loader = make()
    other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)

    def closure() -> torch.Tensor:
        other.step()
        return torch.zeros(())

    with riding() as ride:
        train(net, optimizer, loader, 1)
        for _ in range(4):
            optimizer.step(closure)  # type: ignore[arg-type]
    updates = [event for event in events_of(ride) if event.kind == "optimizer"]
    assert [event.ident for event in updates[NUM:]] == [1, 0] * 4
    for inner, outer in zip(updates[NUM::2], updates[NUM + 1 :: 2], strict=True):
        assert outer.start_ns <= inner.start_ns and inner.end_ns <= outer.end_ns


def test_the_sampler_is_told_of_evaluation_before_it_is_counted() -> None:
    net, optimizer, loader = make()
    with riding() as ride:
        recorder: Recorder = ride.recorder
        train(net, optimizer, loader, 1)
        assert recorder.sampled_phase() == "evaluation"  # the last pass was one
        net(torch.randn(3, 4))
        assert recorder.sampled_phase() == "other"


def test_muted_or_in_another_thread_nobody_takes_it() -> None:
    net, optimizer, loader = make()
    with riding() as ride:
        train(net, optimizer, loader, 1)
        assert ride.recorder.shortcut.thread
        ride.recorder.is_muted = True
        assert not ride.recorder.shortcut.thread
        num_events = len(ride.recorder._fresh)
        net(torch.randn(3, 4)).sum().backward()
        assert len(ride.recorder._fresh) == num_events
        ride.recorder.is_muted = False
        train(net, optimizer, loader, 1)
        assert ride.recorder.shortcut.thread


def test_a_module_that_has_it_can_be_compiled_into_a_function() -> None:
    """fullgraph=True raises where a seam stays in the graph."""
    net, optimizer, loader = make()
    torch.compiler.reset()

    @torch.compile(backend="eager", fullgraph=True)
    def score(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = net(x).sum()
        return result

    with riding() as ride:
        train(net, optimizer, loader, 1)
        assert "_compiled_call_impl" in vars(net) and ride.recorder.shortcut.thread
        x = torch.randn(5, 4)
        assert torch.equal(score(x), net.inner(x).sum())
    assert not ride.complaints


def test_who_kept_a_passage_past_the_end_is_not_recorded() -> None:
    net, optimizer, loader = make()
    with riding() as ride:
        train(net, optimizer, loader, 1)
        backward = torch.autograd.backward
    backward(net(torch.randn(3, 4)).sum())
    assert not ride.recorder._fresh and backward is not torch.autograd.backward
