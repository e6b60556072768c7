"""The dissected step is a training step without a validation."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

from slipstream.observe.recorder import Recorder
from slipstream.observe.survey import Survey
from slipstream.records import Anatomy, Told
from slipstream.seams.modules.module import ModuleSeam
from slipstream.seams.training import OptimizerSeam
from slipstream.wire.spool import MemorySink


class Scene:
    """A model whose calls are reported to the survey, as by the module seam."""

    def __init__(self, rehearsal_s: float = 0.0) -> None:
        self.sink = MemorySink()
        recorder = Recorder(self.sink)
        self.modules = ModuleSeam(recorder)
        self.survey = Survey(recorder, self.modules, OptimizerSeam(recorder), rehearsal_s)
        self.net = torch.nn.Linear(4, 2)
        self.modules.models.append(weakref.ref(self.net))

    def call(self, is_training: bool) -> Any:
        x = torch.ones(3, 4)
        self.net.train(is_training)
        if self.modules.call_listener is not None:
            self.modules.call_listener.on_call(self.net, (x,), {})
        return self.net(x)

    def train(self) -> None:
        self.call(True).sum().backward()

    def anatomies(self) -> list[Anatomy]:
        told = [message for message in self.sink.messages if isinstance(message, Told)]
        return [one.anatomy for one in told if one.anatomy is not None]


def test_dissection_is_repeated_if_the_step_contains_a_validation() -> None:
    scene = Scene()
    assert scene.survey.start_dissection()
    for _ in range(8):
        scene.call(False)
    scene.train()
    assert scene.survey.end_dissection() is False
    assert scene.anatomies() == []
    assert scene.survey.start_dissection()
    scene.train()
    assert scene.survey.end_dissection() is True
    (anatomy,) = scene.anatomies()
    assert sum(one.count for one in anatomy.operators if one.name == "aten::addmm") == 1


def test_step_with_a_validation_is_used_if_every_step_has_one() -> None:
    scene = Scene()
    for is_last in (False, True):
        assert scene.survey.start_dissection()
        scene.call(False)
        scene.train()
        assert scene.survey.end_dissection() is is_last
    assert len(scene.anatomies()) == 1


def test_training_in_evaluation_mode_is_not_taken_for_a_validation() -> None:
    scene = Scene()
    assert scene.survey.start_dissection()
    scene.call(False).sum().backward()
    assert scene.survey.end_dissection() is True
    assert len(scene.anatomies()) == 1


class Tagger(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 4, padding_idx=0)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embedding(tokens).sum()


def test_padding_is_the_mean_over_several_batches() -> None:
    """The observed batch is a long one. Most of the others are shorter, and one of them occurs twice."""
    scene = Scene(rehearsal_s=0.01)
    tagger = Tagger()
    scene.modules.models.append(weakref.ref(tagger))
    lengths = [[8, 4], [8, 8], [8, 8], [8, 2]]
    for step, rows in enumerate(lengths):
        tokens = torch.zeros(2, 8, dtype=torch.int64)
        for row, length in enumerate(rows):
            tokens[row, :length] = 7 + row
        scene.survey._tokens.at_step((step + 1) * 10**9)
        if step == 3:
            assert scene.survey.start_dissection()
        if scene.modules.call_listener is not None:
            scene.modules.call_listener.on_call(tagger, (tokens,), {})
        tagger(tokens).backward()
    scene.survey.end_dissection()
    (anatomy,) = scene.anatomies()
    assert (anatomy.padding_batches, anatomy.padding_share) == (3, pytest.approx((0.25 + 0.0 + 0.375) / 3))
    assert scene.modules.call_listener is None
