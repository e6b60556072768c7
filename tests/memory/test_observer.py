"""Every live byte of a step, compared with the allocator's own count of that step; the script's results do not
change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import checkpoint

from slipstream.memory.observer import Observer
from slipstream.memory.remedies import list_remedies
from slipstream.memory.trace_marks import LineMarks
from slipstream.records import Footprint
from slipstream.testing.memory_trainings import Case, count_peak, list_cases, observe

CASES = list_cases()
WIDTH, HIDDEN, SIZE = 32, 256, 64


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.drop = nn.Dropout(0.5)
        self.down = nn.Linear(HIDDEN, 4)

    def forward(self, inputs: torch.Tensor) -> Any:
        hidden = torch.relu(self.up(inputs))
        doubled = hidden * 2 + hidden.sin()
        return self.down(self.drop(doubled))


class Loop:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Perceptron()
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-2)
        self.kept: list[torch.Tensor] = []
        self.keeps = False

    def step(self) -> None:
        inputs, labels = torch.randn(SIZE, WIDTH), torch.randint(0, 4, (SIZE,))
        outputs = self.model(inputs)
        loss = functional.cross_entropy(outputs, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.keeps:
            self.kept.append(outputs)

    def observe(self) -> Footprint:
        observer = Observer([self.model], [self.optimizer])
        assert observer.start(), observer.reason
        self.step()
        observer.turn()
        self.step()
        footprint = observer.stop()
        assert footprint is not None, observer.reason
        return footprint


@pytest.mark.parametrize("name", CASES)
def test_the_sum_by_kind_equals_the_allocators_count(name: str) -> None:
    footprint = observe(CASES[name], 8)
    counted = count_peak(CASES[name], 8)
    assert sum(footprint.kinds.values()) == footprint.peak_bytes
    assert footprint.peak_bytes == pytest.approx(counted, rel=0.02)
    assert footprint.kinds["other"] < 0.02 * counted  # nothing but the training is alive
    assert (footprint.num_samples, footprint.batch_size) == (8, 8)


def test_kinds_modules_and_lines() -> None:
    loop = Loop()
    loop.step()
    footprint = loop.observe()
    weights = sum(p.numel() * 4 for p in loop.model.parameters())
    hidden = SIZE * HIDDEN * 4
    assert footprint.kinds["parameters"] == weights
    assert footprint.kinds["optimizer_state"] == 2 * weights + 4 * 4  # two moments, and a counter for each tensor
    assert footprint.phases["optimizer"]["gradients"] == weights
    # The output of relu is also the input of the sine. The product and the sum are freed. Dropout keeps its mask and
    # its output.
    assert footprint.phases["forward"]["activations"] >= 2 * hidden
    by_path = {module.path: module for module in footprint.modules}
    assert by_path["up"].kinds["parameters"] == (WIDTH + 1) * HIDDEN * 4
    assert by_path["up"].class_name == "Linear" and by_path["up"].output_bytes == 0  # relu keeps its own output
    texts = {line.site.text: line.kinds for line in footprint.lines}
    assert texts["hidden = torch.relu(self.up(inputs))"]["activations"] >= hidden
    assert set(footprint.phases) >= {"forward", "backward", "optimizer"}
    assert [moment.at_ms for moment in footprint.moments] == sorted(moment.at_ms for moment in footprint.moments)
    assert footprint.growth is None
    assert footprint.capacity_bytes > footprint.peak_bytes


def test_the_training_is_unchanged() -> None:
    bare, observed = Loop(), Loop()
    torch.manual_seed(1)
    for _ in range(5):
        bare.step()
    state = torch.get_rng_state()
    torch.manual_seed(1)
    observed.step()
    observed.observe()
    observed.step()
    observed.step()
    assert torch.equal(state, torch.get_rng_state())
    for one, other in zip(bare.model.parameters(), observed.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in observed.model.modules())
    assert not _get_current_function_mode_stack()


def test_what_a_step_leaves_behind() -> None:
    loop = Loop()
    loop.keeps = True
    loop.step()
    growth = loop.observe().growth
    assert growth is not None and growth.num_bytes >= SIZE * 4 * 4
    assert growth.site is not None and growth.site.text == "return self.down(self.drop(doubled))"


def test_a_profiler_of_the_script_has_priority() -> None:
    loop = Loop()
    with torch.autograd.profiler.profile():
        observer = Observer([loop.model], [loop.optimizer])
        assert not observer.start()
    assert "uses torch's profiler" in observer.reason
    assert observer.stop() is None


def test_stopped_in_the_lead_in() -> None:
    loop = Loop()
    observer = Observer([loop.model], [loop.optimizer])
    observer.start()
    assert observer.stop() is None and not observer.reason


def test_lines_leave_from_below_another_mode() -> None:
    class Theirs(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    lines, theirs = LineMarks(), Theirs()
    lines.enter()
    with theirs:
        lines.leave()
        assert _get_current_function_mode_stack() == [theirs]
    assert not _get_current_function_mode_stack()


class Stack(nn.Module):
    def __init__(self, *, is_checkpointed: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(8))
        self.is_checkpointed = is_checkpointed

    def forward(self, states: torch.Tensor) -> Any:
        for block in self.blocks:
            if self.is_checkpointed:
                states = states + checkpoint.checkpoint(block, states, use_reentrant=False)
            else:
                states = states + block(states)
        return states[:, :10]


@pytest.fixture
def stacks() -> Iterator[tuple[Footprint, Footprint]]:
    def make(is_checkpointed: bool) -> Case:
        return Case(lambda: Stack(is_checkpointed=is_checkpointed), lambda size: torch.randn(size, 64))

    yield observe(make(False), 512), observe(make(True), 512)


def test_checkpointing_frees_what_was_predicted(stacks: tuple[Footprint, Footprint]) -> None:
    plain, checkpointed = stacks
    [remedy] = [remedy for remedy in list_remedies(plain) if remedy.name == "checkpointing"]
    assert remedy.what.startswith("8 x Sequential in blocks")
    assert plain.peak_bytes - remedy.freed_bytes == pytest.approx(checkpointed.peak_bytes, rel=0.15)
