"""Trainings whose memory can be measured in two ways: by the observer, and by the allocator's own running total.

The allocator's total is complete only if the profiler starts before the first tensor of the training is created.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._C._profiler import _RecordFunctionFast as Range
from torch.autograd import profiler
from torch.nn import functional

from slipstream.memory.observer import Observer
from slipstream.records import Footprint

_WARM_UP = 2
_START, _END = "count::start", "count::end"


class Convnet(nn.Module):
    def __init__(self, width: int = 16, depth: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()) for _ in range(depth)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> Any:
        features = self.stem(images)
        for block in self.blocks:
            features = features + block(features)
        return self.head(features.mean((2, 3)))


class Transformer(nn.Module):
    def __init__(self, width: int = 64, depth: int = 3, words: int = 200) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True) for _ in range(depth)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: torch.Tensor) -> Any:
        states = self.words(tokens)
        for layer in self.layers:
            states = layer(states)
        return self.head(states.mean(1))


class Recurrent(nn.Module):
    def __init__(self, width: int = 64, depth: int = 2, words: int = 200) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.recurrent = nn.LSTM(width, 2 * width, depth, batch_first=True)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.head(self.recurrent(self.words(tokens))[0][:, -1])


class Case:
    """A model and its inputs."""

    def __init__(self, make_model: Callable[[], nn.Module], make_inputs: Callable[[int], torch.Tensor]) -> None:
        self.make_model = make_model
        self.make_inputs = make_inputs


def list_cases(factor: int = 1) -> dict[str, Case]:
    """Returns the cases by name. `factor` is the size of the cases relative to the smallest cases, which tests use."""
    side, length = 16 * factor, 24 * factor

    def draw_tokens(size: int) -> torch.Tensor:
        return torch.randint(0, 200, (size, length))

    return {
        "convnet": Case(lambda: Convnet(16 * factor), lambda size: torch.randn(size, 3, side, side)),
        "transformer": Case(lambda: Transformer(64 * factor), draw_tokens),
        "lstm": Case(lambda: Recurrent(64 * factor), draw_tokens),
    }


class Training:
    """A plain training that runs one step at a time."""

    def __init__(self, case: Case, batch_size: int) -> None:
        torch.manual_seed(0)
        self._case = case
        self._batch_size = batch_size
        self.model = case.make_model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)

    def step(self, see_batch: Callable[[Any], None] = lambda batch: None) -> None:
        batch = (self._case.make_inputs(self._batch_size), torch.randint(0, 10, (self._batch_size,)))
        see_batch(batch)
        loss = functional.cross_entropy(self.model(batch[0]), batch[1])
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


def observe(case: Case, batch_size: int) -> Footprint:
    """Returns the memory of a step as `slipstream memory` observes it."""
    training = Training(case, batch_size)
    for _ in range(_WARM_UP):
        training.step()
    observer = Observer([training.model], [training.optimizer])
    assert observer.start(), observer.reason
    training.step(observer.see_batch)
    observer.turn()
    training.step(observer.see_batch)
    footprint = observer.stop()
    assert footprint is not None, observer.reason
    return footprint


def count_peak(case: Case, batch_size: int) -> int:
    """Returns the allocator's peak in the step that `observe` reports. The observer does not run."""
    gc.collect()
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")
    counter = profiler.profile(use_kineto=True, profile_memory=True)
    with counter:
        training = Training(case, batch_size)
        for _ in range(_WARM_UP + 1):
            training.step()
        with Range(_START):
            pass
        training.step()
        with Range(_END):
            pass
    results: Any = counter.kineto_results
    return _most(results.experimental_event_tree())


def _most(roots: list[Any]) -> int:
    totals: list[tuple[int, int, int]] = []
    start_ns = end_ns = 0
    stack = list(roots)
    while stack:
        event = stack.pop()
        stack.extend(event.children)
        if event.name == "[memory]":
            fields = event.extra_fields
            totals.append((event.start_time_ns, fields.total_allocated, fields.alloc_size))
        elif event.name == _START:
            start_ns = event.start_time_ns
        elif event.name == _END:
            end_ns = event.start_time_ns
    totals.sort()
    before = totals[0][1] - totals[0][2]  # The total at the start, which contains what an earlier profile has counted
    return max(total for time_ns, total, _ in totals if start_ns <= time_ns <= end_ns) - before
