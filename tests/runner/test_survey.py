"""Which step is taken apart: one of the training, and nothing else."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from slipstream.records import Anatomy, Told
from slipstream.runner.recorder import Recorder
from slipstream.runner.spool import MemorySink
from slipstream.runner.survey import Survey
from slipstream.seams.module import ModuleSeam
from slipstream.seams.training import OptimizerSeam


class Scene:
    """A model whose calls the survey hears of, as through the module's seam."""

    def __init__(self) -> None:
        self.sink = MemorySink()
        recorder = Recorder(self.sink)
        self.modules = ModuleSeam(recorder)
        self.survey = Survey(recorder, self.modules, OptimizerSeam(recorder))
        self.net = torch.nn.Linear(4, 2)
        self.modules.models.append(weakref.ref(self.net))

    def call(self, is_training: bool) -> Any:
        x = torch.ones(3, 4)
        self.net.train(is_training)
        if self.modules.on_call is not None:
            self.modules.on_call(self.net, (x,), {})
        return self.net(x)

    def train(self) -> None:
        self.call(True).sum().backward()

    def anatomies(self) -> list[Anatomy]:
        told = [message for message in self.sink.messages if isinstance(message, Told)]
        return [one.anatomy for one in told if one.anatomy is not None]


def test_a_step_with_a_validation_in_it_is_followed_by_another() -> None:
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


def test_validation_after_every_step_is_better_than_nothing() -> None:
    scene = Scene()
    for is_last in (False, True):
        assert scene.survey.start_dissection()
        scene.call(False)
        scene.train()
        assert scene.survey.end_dissection() is is_last
    assert len(scene.anatomies()) == 1


def test_a_model_that_learns_in_evaluation_mode_is_not_validated() -> None:
    scene = Scene()
    assert scene.survey.start_dissection()
    scene.call(False).sum().backward()
    assert scene.survey.end_dissection() is True
    assert len(scene.anatomies()) == 1
