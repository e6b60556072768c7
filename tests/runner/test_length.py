"""How long a framework's trainer says that it trains. What the script's own variables say is in test_growth.py."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slipstream.records import Length
from slipstream.runner.length import find_length


def length_of(trainer: Any) -> Length | None:
    """As found from a frame of an installed package whose `self` is the trainer."""
    names: dict[str, Any] = {"sys": sys, "find": find_length}
    exec(compile("def train(self):\n    return find(sys._getframe())", torch.__file__, "exec"), names)
    found: Length | None = names["train"](trainer)
    return found


@pytest.mark.parametrize(("max_steps", "expected"), [(2000, (2000, None)), (-1, (None, 3))])
def test_steps_overrule_the_epochs_of_hugging_faces_trainer(max_steps: int, expected: tuple[Any, Any]) -> None:
    kind = type("Trainer", (), {"__module__": "transformers.trainer"})
    trainer = kind()
    trainer.args = SimpleNamespace(max_steps=max_steps, num_train_epochs=3.0)
    length = length_of(trainer)
    assert length is not None
    assert (length.num_steps, length.num_epochs) == expected


def test_lightnings_trainer_knows_too() -> None:
    trainer = type("Trainer", (), {"__module__": "lightning.pytorch.trainer.trainer"})()
    trainer.max_steps, trainer.max_epochs = 3000, None
    assert length_of(trainer) == Length(num_epochs=None, num_steps=3000, source="Trainer(max_steps=…)")


def test_the_trainer_decides_whatever_the_script_names() -> None:
    trainer = type("Trainer", (), {"__module__": "transformers.trainer"})()
    trainer.args = SimpleNamespace(max_steps=2000, num_train_epochs=3.0)
    num_epochs = 7
    length = length_of(trainer)
    assert length is not None and (length.num_steps, length.num_epochs) == (2000, None), num_epochs
