"""The length of the training according to a framework's trainer. test_leaks.py tests the script's own variables."""

from __future__ import annotations

import linecache
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slipstream.observe.training_length import find_length, find_trainer
from slipstream.records import Length, Trainer


def length_of(trainer: Any) -> Length | None:
    """Finds the length from a frame of an installed package whose `self` is the trainer."""
    names: dict[str, Any] = {"sys": sys, "find": find_length}
    exec(compile("def train(self):\n    return find(sys._getframe())", torch.__file__, "exec"), names)
    found: Length | None = names["train"](trainer)
    return found


@pytest.mark.parametrize(("max_steps", "expected"), [(2000, (2000, None)), (-1, (None, 3))])
def test_max_steps_overrule_epochs_in_the_hugging_face_trainer(max_steps: int, expected: tuple[Any, Any]) -> None:
    kind = type("Trainer", (), {"__module__": "transformers.trainer"})
    trainer = kind()
    trainer.args = SimpleNamespace(max_steps=max_steps, num_train_epochs=3.0)
    length = length_of(trainer)
    assert length is not None
    assert (length.num_steps, length.num_epochs) == expected


def test_length_from_the_lightning_trainer() -> None:
    trainer = type("Trainer", (), {"__module__": "lightning.pytorch.trainer.trainer"})()
    trainer.max_steps, trainer.max_epochs = 3000, None
    assert length_of(trainer) == Length(num_epochs=None, num_steps=3000, source="Trainer(max_steps=…)")


def test_trainer_takes_precedence_over_script_variables() -> None:
    trainer = type("Trainer", (), {"__module__": "transformers.trainer"})()
    trainer.args = SimpleNamespace(max_steps=2000, num_train_epochs=3.0)
    num_epochs = 7
    length = length_of(trainer)
    assert length is not None and (length.num_steps, length.num_epochs) == (2000, None), num_epochs


def test_subclass_of_a_trainer_is_a_trainer() -> None:
    """Its class is the script's own, and the script's TrainingArguments say both 2000 steps and 3 epochs."""
    base = type("Trainer", (), {"__module__": "transformers.trainer"})
    trainer = type("DistillationTrainer", (base,), {"__module__": "__main__"})()
    trainer.args = args = SimpleNamespace(max_steps=2000, num_train_epochs=3.0)
    length = length_of(trainer)
    assert length is not None and (length.num_steps, length.num_epochs) == (2000, None), args
    base = type("Trainer", (), {"__module__": "lightning.pytorch.trainer.trainer"})
    trainer = type("Fabricated", (base,), {"__module__": "__main__"})()
    trainer.max_steps, trainer.max_epochs = 3000, 7
    assert length_of(trainer) == Length(num_epochs=7, num_steps=3000, source="Trainer(max_steps=…)")


def test_what_a_subclass_of_a_trainer_replaces() -> None:
    methods = {"log": None, "compute_loss": None, "get_train_dataloader": None}
    base = type("Trainer", (), {"__module__": "transformers.trainer", **methods})
    own = {"__module__": "__main__", "compute_loss": None, "helper": None}
    trainer = type("Distiller", (type("Middle", (base,), {**own, "log": None}),), own)()
    trainer.args = SimpleNamespace(max_steps=-1, num_train_epochs=3.0)
    names: dict[str, Any] = {"sys": sys, "find": find_trainer}
    exec(compile("def train(self):\n    return find(sys._getframe())", torch.__file__, "exec"), names)
    assert names["train"](trainer) == Trainer("transformers", "Distiller", ["compute_loss", "log"])
    assert names["train"](SimpleNamespace()) is None


EPOCHS = """
step, stop, args, config = 0, 100_000, Namespace(limit={limit}), {{"budget": {limit}}}
for epoch in range(num_epochs := 3):
    for i, batch in enumerate(range(1)):
        found = find(sys._getframe())
        step += 1
        if {condition}:
            {end}
"""


def found_in(text: str, **variables: Any) -> Length | None:
    name = f"/somewhere/length_{abs(hash(text))}.py"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names: dict[str, Any] = {"sys": sys, "find": find_length, "Namespace": SimpleNamespace, **variables}
    exec(compile(text, name, "exec"), names)
    length: Length | None = names["found"]
    return length


@pytest.mark.parametrize(
    ("condition", "steps", "source"),
    [
        ("step >= args.limit", 2000, "args.limit"),
        ("step == config['budget']", 2000, "config['budget']"),
        ("step > 2000", 2001, "2000"),
        ("step + 1 == args.limit", 2000, "args.limit"),
        ("args.limit is not None and step >= args.limit", 2000, "args.limit"),
        ("args.limit > 0 and step >= args.limit", 2000, "args.limit"),
        ("i >= args.limit", 6000, "args.limit"),  # in each of three epochs
        ("args.limit < 0 and step >= args.limit", None, "num_epochs"),
        ("step >= max(args.limit, 7)", None, "num_epochs"),
        ("step % args.limit == 0", None, "num_epochs"),
        ("epoch >= args.limit", None, "num_epochs"),
        ("batch >= stop and print()", None, "num_epochs"),
    ],
)
def test_loop_that_breaks_off(condition: str, steps: int | None, source: str) -> None:
    length = found_in(EPOCHS.format(limit=2000, condition=condition, end="break"))
    assert length is not None
    assert (length.num_epochs, length.num_steps, length.source) == (3, steps, source)


def test_condition_without_a_break_is_no_limit() -> None:
    length = found_in(EPOCHS.format(limit=2000, condition="step >= args.limit", end="print(step)"))
    assert length is not None and length.num_steps is None


def test_local_counter_of_a_function_that_trains_one_epoch() -> None:
    text = """
def one_epoch(limit):
    seen = global_step = 0
    for batch in range(1):
        global_step += 1
        found = find(sys._getframe())
        if global_step >= limit:
            break
    return found
for epoch in range(epochs := 3):
    found = one_epoch(50)
"""
    length = found_in(text)
    assert length is not None and (length.num_epochs, length.num_steps) == (3, 150)


def test_steps_of_an_epoch_are_not_those_of_the_training() -> None:
    text = """
def one_epoch(num_steps):
    for _ in range(num_steps):
        found = find(sys._getframe())
        break
    return found
for epoch in range({epochs}):
    found = one_epoch(800)
"""
    assert found_in(text.format(epochs=10)) is None
    length = found_in(text.format(epochs="num_epochs := 10"))
    assert length is not None and (length.num_epochs, length.num_steps) == (10, 8000)
    loop = "for _ in range(num_steps := 800):\n    found = find(sys._getframe())"
    length = found_in(loop)
    assert length is not None and length.num_steps == 800


class Settings:
    def __init__(self) -> None:
        self.num_epochs = 9
        self.num_steps = 50  # of a noise scheduler, for example


def test_epochs_of_an_object_of_the_users() -> None:
    assert found_in("found = find(sys._getframe())", params=Settings()) == Length(
        num_epochs=9, num_steps=None, source="params.num_epochs"
    )


def rounds(num: int) -> list[Length | None]:
    """Finds the length inside a training that is repeated `num` times."""
    return [training() for _ in range(num)] if num == 1 else folds(num)


def folds(num: int) -> list[Length | None]:
    found = []
    for fold in range(num):  # outer
        found.append(training(fold))
    return found


def training(fold: int = 0) -> Length | None:
    epochs = 14
    for _epoch in range(epochs):
        for _batch in (fold,):
            return find_length(sys._getframe())
    return None


def test_loop_around_the_epochs_is_reported() -> None:
    (alone,) = rounds(1)
    assert alone == Length(num_epochs=14, source="epochs")
    for length in rounds(2):
        assert length is not None and length.num_epochs == 14
        assert length.around is not None and length.around.text == "for fold in range(num):  # outer"


@pytest.mark.parametrize(("parts", "is_apart"), [("phase", False), ("fold", True)])
def test_folds_inside_an_epoch_are_separate_trainings_and_its_phases_are_not(parts: str, is_apart: bool) -> None:
    """The phases train and val together are one epoch. Two folds train two models."""
    text = f"""
epochs = 14
for epoch in range(epochs):
    for {parts} in (1, 2):
        try:
            found = find(sys._getframe())
        finally:
            pass
"""
    name = f"/somewhere/{parts}.py"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names: dict[str, Any] = {"sys": sys, "find": find_length}
    exec(compile(text, name, "exec"), names)
    assert names["found"].num_epochs == 14
    assert (names["found"].around is not None) is is_apart


def test_loop_around_a_trainer_is_reported() -> None:
    trainer = type("Trainer", (), {"__module__": "lightning.pytorch.trainer.trainer"})()
    trainer.max_steps, trainer.max_epochs = -1, 3
    for _fold in range(2):
        length = length_of(trainer)
        assert length is not None and (length.num_epochs, length.around is not None) == (3, True)
