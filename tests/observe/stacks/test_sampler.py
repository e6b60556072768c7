"""How stack samples are classified, with frames of real calls."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, cast

import torch

from slipstream.observe.fetch_recorder import FetchRecorder
from slipstream.observe.recorder import Recorder
from slipstream.observe.stacks.sampler import StackSampler
from slipstream.wire.spool import MemorySink


def frames_inside(module: torch.nn.Module) -> list[FrameType]:
    """torch's own frame around the module's forward, with this file below it."""
    seen: list[FrameType] = []
    module.register_forward_hook(lambda *_: seen.append(cast(FrameType, sys._getframe(1))))
    module(torch.ones(2))
    return seen


def test_a_module_that_is_called_while_a_batch_is_built_is_a_transform() -> None:
    sampler = StackSampler(cast(Any, None), lambda: 0)
    (frame,) = frames_inside(torch.nn.Identity())
    stages = {phase: sampler._classify(frame, phase, True)[1] for phase in ("input", "forward")}
    assert stages == {"input": "transform", "forward": "compute"}


def test_worker_samples_count_as_start_until_the_first_batch() -> None:
    recorder = Recorder(MemorySink())
    fetches = FetchRecorder(recorder.queue, recorder.clock, loader=0, worker=0)
    sampler = StackSampler(recorder, lambda: 0, fetches)
    for _ in range(2):
        sampler._count(sys._getframe(), 1)
        fetches.begin_fetch()
    assert [key[0] for key in sampler._counts] == ["start", "input"]


def test_samples_between_forward_and_backward_are_the_loss() -> None:
    recorder = Recorder(MemorySink())
    sampler = StackSampler(recorder, lambda: 0)

    def stage() -> str:
        return sampler._classify(sys._getframe(), "other", True)[1]

    stages = [stage()]
    for kind, grad in (("forward", True), ("backward", False), ("forward", False)):
        recorder.leave(recorder.enter(kind), cast(Any, kind), 1, grad=grad)
        stages.append(stage())
    assert stages == ["other", "loss", "other", "other"]


def test_zero_grad_between_forward_and_backward_is_not_the_loss() -> None:
    recorder = Recorder(MemorySink())
    sampler = StackSampler(recorder, lambda: 0)
    recorder.leave(recorder.enter("forward"), "forward", 1, grad=True)
    stages: list[str] = []

    class Optimizer:
        def zero_grad(self) -> None:
            stages.append(sampler._classify(cast(FrameType, sys._getframe(1)), "other", True)[1])

    optimizer = Optimizer()
    optimizer.zero_grad()
    assert stages == ["other"]


def test_the_loss_of_a_validation_is_evaluation_too() -> None:
    recorder = Recorder(MemorySink())

    def phase_after(kind: str, ident: int, training: bool = True) -> str:
        recorder.leave(recorder.enter(kind), cast(Any, kind), ident, grad=training, training=training)
        return recorder.sampled_phase()

    learning = [phase_after("forward", 1), phase_after("forward", 2), phase_after("backward", -1)]
    assert learning == ["other"] * 3
    assert [phase_after("forward", 1, training=False), phase_after("forward", 2)] == ["evaluation"] * 2
    assert phase_after("forward", 1) == "other"


def test_script_lines_in_a_closure_do_not_count_as_optimizer() -> None:
    recorder = Recorder(MemorySink())
    stepping = recorder.enter("optimizer")
    phases = [recorder.sampled_phase()]
    for kind in ("forward", "backward"):
        recorder.leave(recorder.enter(kind), cast(Any, kind), 1, grad=True, training=True)
        phases.append(recorder.sampled_phase())
    recorder.leave(stepping, "optimizer", 0)
    assert phases == ["optimizer", "other", "optimizer"]


def test_the_line_that_requests_a_batch_does_not_build_it() -> None:
    """Neither while a library's dataset gives a sample, nor while the iterator is made."""
    sampler = StackSampler(cast(Any, None), lambda: 0)
    files: list[str] = []
    seen = {"see": lambda: files.append(sampler._classify(sys._getframe(1), "input", True)[2])}
    text = "class Data(list):\n    def __getitem__(self, i):\n        see()\n        return i\n"
    text += "class Order(list):\n    def __iter__(self):\n        see()\n        return iter([[0], [1]])\n"
    exec(compile(text, torch.__file__, "exec"), seen)
    made: dict[str, Any] = seen
    loader = torch.utils.data.DataLoader(made["Data"]([0, 1]), batch_sampler=made["Order"]([[0], [1]]))
    assert len(list(loader)) == 2
    assert files == ["", "", ""]
