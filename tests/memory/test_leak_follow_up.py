"""What a step leaves behind, followed up in a `memory` run: losses kept with their graphs, a sum of them, a cache that
fills in the first epoch, and a healthy training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from slipstream.diagnose.memory_growth import find_growth, has_stopped
from slipstream.observe.leaks import NUM_LOOKS, LeakFollowUp
from slipstream.records import Ending, Footprint, Leak, Memory, Seen, Told
from slipstream.seams.stop import StopTrial
from slipstream.testing.made_sessions import made_session
from slipstream.trial.lifecycle import TrialSettings, start_run

SCHEDULE = "slipstream.memory.schedule:MemorySchedule"
DATA = TensorDataset(torch.randn(40, 8), torch.randint(0, 4, (40,)))


class Kept:
    """What the trainings below keep, as an object of the user's code."""

    def __init__(self) -> None:
        self.losses: list[torch.Tensor] = []
        self.total: Any = 0.0
        self.cache: dict[int, torch.Tensor] = {}

    def loss(self, step: int, x: torch.Tensor, loss: torch.Tensor) -> None:
        self.losses.append(loss)

    def sum(self, step: int, x: torch.Tensor, loss: torch.Tensor) -> None:
        self.total += loss

    def batch(self, step: int, x: torch.Tensor, loss: torch.Tensor) -> None:
        if step % 10 not in self.cache:
            self.cache[step % 10] = x * 2

    def nothing(self, step: int, x: torch.Tensor, loss: torch.Tensor) -> None:
        self.total += loss.item()


def train(keep: str, fixed_size: int = -1) -> None:
    kept = Kept()
    put: Callable[..., None] = getattr(kept, keep)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = 0
    for _ in range(40):
        for x, y in DataLoader(DATA, 4):
            loss = nn.functional.cross_entropy(model(x.view(fixed_size, 8)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            put(step, x, loss)
            step += 1


def run_memory(keep: str) -> tuple[list[Footprint], list[Leak], list[Memory]]:
    started = start_run(TrialSettings(mode="check", schedule=SCHEDULE, seconds=60))
    with pytest.raises(StopTrial):
        train(keep)
    started.leave(Ending("stopped", 0, 0.0))
    assert not started.complaints
    reports = [message for _, message in started.messages if isinstance(message, Told)]
    memory = [one for _, message in started.messages if isinstance(message, Seen) for one in message.memory]
    footprints = [one.footprint for one in reports if one.footprint is not None]
    assert [one.batch_size for one in footprints] == [4, 2, 1], "batches are still cut afterwards"
    return footprints, [leak for one in reports for leak in one.leaks or []], memory


def growth_of(leaks: list[Leak], memory: list[Memory]) -> Any:
    return find_growth(msgspec.structs.replace(made_session(memory=memory), leaks=leaks))


def test_losses_with_their_graphs_keep_growing() -> None:
    (footprint, *_), leaks, memory = run_memory("loss")
    assert footprint.growth is not None and has_stopped(memory) is None
    (leak,) = leaks
    assert leak.name == "kept.losses" and leak.site is not None and leak.site.text == "self.losses.append(loss)"
    assert growth_of(leaks, memory).graphs_per_step == pytest.approx(1.0, abs=0.1)


def test_the_leak_of_a_script_that_fails_on_smaller_batches_is_reported() -> None:
    """The script raises when batches are cut, and its variables are gone when the run ends."""
    started = start_run(TrialSettings(mode="check", schedule=SCHEDULE, seconds=60))
    with pytest.raises(RuntimeError, match="shape"):
        train("loss", fixed_size=4)
    started.leave(Ending("stopped", 0, 0.0))
    reports = [message for _, message in started.messages if isinstance(message, Told)]
    (leak,) = [leak for one in reports for leak in one.leaks or []]
    assert leak.name == "kept.losses"


def test_a_sum_keeps_graphs_and_no_tensor() -> None:
    (footprint, *_), leaks, memory = run_memory("sum")
    assert footprint.growth is None
    (leak,) = leaks
    assert leak.is_sum and leak.site is not None and leak.site.text == "self.total += loss"
    assert growth_of(leaks, memory) is not None


def test_a_cache_fills_and_stops_growing() -> None:
    (footprint, *_), _, memory = run_memory("batch")
    assert footprint.growth is not None and footprint.growth.num_bytes == 4 * 8 * 4
    stopped = has_stopped(memory)
    assert stopped is not None and 10 <= stopped <= 24
    assert growth_of([], memory) is None


def test_a_healthy_training_is_not_followed_up() -> None:
    (footprint, *_), leaks, memory = run_memory("nothing")
    assert footprint.growth is None and not leaks and growth_of(leaks, memory) is None
    assert len([one for one in memory if one.num_tensors >= 0]) < 3


def test_counts_span_a_short_epoch() -> None:
    assert LeakFollowUp(200).every * (NUM_LOOKS - 1) >= 250
    assert LeakFollowUp(10).every * (NUM_LOOKS - 1) >= 48
    assert LeakFollowUp(None).every == LeakFollowUp(10).every
    assert LeakFollowUp(10**6).every * (NUM_LOOKS - 1) == 400
