"""How long the training is to be, as far as the script's own variables tell: looked up once, at the end of a ride,
in the frames that are still running. Touches nothing, calls nothing of the user's."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from types import FrameType, SimpleNamespace
from typing import Any

from slipstream.records import Length
from slipstream.runner.turns import find_turns
from slipstream.seams.place import is_user_code

_EPOCHS = ("epochs", "num_epochs", "n_epochs", "max_epochs", "num_train_epochs", "nepochs", "total_epochs", "nb_epochs")
_STEPS = (
    "max_steps",
    "max_iters",
    "num_steps",
    "total_steps",
    "max_iterations",
    "num_iterations",
    "n_steps",
    "max_train_steps",
)
_DECIDES = "TrainingArguments("  # what a script names beside it has no say
_TRAINERS = (_DECIDES, "Trainer(")
_MAX_DEPTH = 60


def find_length(frame: FrameType | None = None) -> Length | None:
    """Epochs or steps, from the innermost variable that has such a name."""
    epochs = steps = None
    source = ""
    for label, name, value in _variables(frame):
        if epochs is None and name.lower() in _EPOCHS and _is_count(value):
            epochs, source = int(value), source or label
        elif steps is None and name.lower() in _STEPS and _is_count(value):
            steps, source = int(value), source or label
        if (epochs or steps) and label.startswith(_DECIDES):
            break
    if not (epochs or steps):
        return None
    around = find_turns(frame, bool(epochs), _trainer_of(frame) if source.startswith(_TRAINERS) else None)
    return Length(num_epochs=epochs, num_steps=steps, source=source, around=around)


def _trainer_of(frame: FrameType | None) -> Any:
    """The outermost: what it calls are its own."""
    found = None
    for _ in range(_MAX_DEPTH):
        if frame is None:
            break
        owner = None if is_user_code(frame.f_code.co_filename) else frame.f_locals.get("self")
        found = owner if owner is not None and list(_trainer(owner)) else found
        frame = frame.f_back
    return found


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e9 and value == int(value)


def _variables(frame: FrameType | None) -> Iterator[tuple[str, str, Any]]:
    main = sys.modules.get("__main__")
    for _ in range(_MAX_DEPTH):
        if frame is None:
            break
        if is_user_code(frame.f_code.co_filename):
            yield from _named(dict(frame.f_locals))
        else:
            yield from _trainer(frame.f_locals.get("self"))
        frame = frame.f_back
    if main is not None:
        yield from _named(dict(vars(main)))


def _named(variables: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for name, value in variables.items():
        yield name, name, value
        if isinstance(value, (argparse.Namespace, SimpleNamespace)) or hasattr(value, "__dataclass_fields__"):
            for key, inner in vars(value).items():
                yield f"{name}.{key}", key, inner
        elif type(value) is dict and len(value) < 200:
            for key, inner in value.items():
                if isinstance(key, str):
                    yield f"{name}[{key!r}]", key, inner


def _trainer(owner: Any) -> Iterator[tuple[str, str, Any]]:
    """Lightning's and Hugging Face's trainers know."""
    kind = type(owner)
    package = kind.__module__.split(".")[0]
    if package == "transformers" and hasattr(owner, "args"):
        has_steps = (getattr(owner.args, "max_steps", None) or 0) > 0  # they overrule epochs, which are 3 unless told
        key = "max_steps" if has_steps else "num_train_epochs"
        yield f"TrainingArguments({key}=…)", key, getattr(owner.args, key, None)
    elif package in ("lightning", "pytorch_lightning") and kind.__name__ == "Trainer":
        for key in ("max_steps", "max_epochs"):
            yield f"Trainer({key}=…)", key, getattr(owner, key, None)
