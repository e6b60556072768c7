"""Finds how long the training will be, as far as the script's own variables say. Reads the running frames once, at the
end of a trial, and changes nothing.

Also finds a loop in the user's source that repeats all epochs in every iteration, such as a loop over folds, seeds or
settings. The number of its iterations is not known."""

from __future__ import annotations

import argparse
import ast
import linecache
import re
import sys
from collections.abc import Iterator, Mapping
from types import FrameType, SimpleNamespace
from typing import Any

from slipstream.observe.leaks import is_user_class
from slipstream.observe.loop_limits import find_limit
from slipstream.observe.user_loops import MAX_DEPTH, Loop, loops_around
from slipstream.records import Length, Site, Trainer
from slipstream.seams.user_code import is_user_code

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
_DECIDES = "TrainingArguments("  # takes precedence over the script's other variables
_TRAINERS = (_DECIDES, "Trainer(")
_LIBRARIES = {"transformers": "transformers", "lightning": "lightning", "pytorch_lightning": "lightning"}


def find_length(frame: FrameType | None = None) -> Length | None:
    """Returns the epochs or steps, from the innermost variable with a usual name for epochs or steps. If the script's
    own loop ends at a limit, that number of steps takes precedence, unless the length comes from a framework's
    trainer."""
    epochs = steps = None
    source = steps_name = ""
    for label, name, value in _variables(frame):
        if epochs is None and name.lower() in _EPOCHS and _is_count(value):
            epochs, source = int(value), source or label
        elif steps is None and name.lower() in _STEPS and _is_count(value):
            steps, steps_name, source = int(value), name, source or label
        if (epochs or steps) and label.startswith(_DECIDES):
            break
    if steps is not None and _is_per_epoch(frame, steps_name):
        steps = steps * epochs if epochs else None
    limit = None if source.startswith(_TRAINERS) else find_limit(frame)
    if limit is not None:
        steps = limit.num_steps * (epochs or 1) if limit.is_per_epoch else limit.num_steps
        source = limit.source
    if not (epochs or steps):
        return None
    around = find_turns(frame, bool(epochs), _trainer_of(frame) if source.startswith(_TRAINERS) else None)
    return Length(num_epochs=epochs, num_steps=steps, source=source, around=around)


def _is_per_epoch(frame: FrameType | None, name: str) -> bool:
    """Whether the variable with this name limits a `for` loop that is inside a loop over epochs."""
    is_inside = False
    for running in loops_around(frame):
        if is_inside and _COUNTS[True].search(_head(running.loop)):
            return True
        if isinstance(running.loop, ast.For) and re.search(rf"\b{name}\b", ast.unparse(running.loop.iter)):
            is_inside = True
    return False


def _trainer_of(frame: FrameType | None) -> Any:
    """Returns the outermost trainer, because it runs the inner ones."""
    found = None
    for _ in range(MAX_DEPTH):
        if frame is None:
            break
        owner = None if is_user_code(frame.f_code.co_filename) else frame.f_locals.get("self")
        found = owner if owner is not None and list(_trainer(owner)) else found
        frame = frame.f_back
    return found


def find_trainer(frame: FrameType | None) -> Trainer | None:
    """Returns the framework's object that runs the loop, and what the script's subclass of it replaces."""
    owner = _trainer_of(frame)
    if owner is None:
        return None
    kinds = type(owner).__mro__
    first = next(at for at, kind in enumerate(kinds) if kind.__module__.split(".")[0] in _LIBRARIES)
    library = _LIBRARIES[kinds[first].__module__.split(".")[0]]
    own = {name for kind in kinds[:first] for name in vars(kind) if hasattr(kinds[first], name) and name[:2] != "__"}
    return Trainer(library, type(owner).__name__, sorted(own))


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e9 and value == int(value)


def _variables(frame: FrameType | None) -> Iterator[tuple[str, str, Any]]:
    main = sys.modules.get("__main__")
    for _ in range(MAX_DEPTH):
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
        elif is_user_class(type(value)):  # only epochs: a number of steps may mean something else here
            settings = getattr(value, "__dict__", {}).items()
            yield from ((f"{name}.{key}", key, inner) for key, inner in settings if key in _EPOCHS)
        elif type(value) is dict and len(value) < 200:
            for key, inner in value.items():
                if isinstance(key, str):
                    yield f"{name}[{key!r}]", key, inner


def _trainer(owner: Any) -> Iterator[tuple[str, str, Any]]:
    """Yields the lengths that the trainers of Lightning and Hugging Face store."""
    # The class itself is often a subclass of the user or of another library.
    packages = {kind.__module__.split(".")[0]: kind.__name__ for kind in reversed(type(owner).__mro__)}
    if "transformers" in packages and hasattr(owner, "args"):
        # Steps take precedence over epochs, which default to 3
        has_steps = (getattr(owner.args, "max_steps", None) or 0) > 0
        key = "max_steps" if has_steps else "num_train_epochs"
        yield f"TrainingArguments({key}=…)", key, getattr(owner.args, key, None)
    elif "Trainer" in (packages.get("lightning"), packages.get("pytorch_lightning")):
        for key in ("max_steps", "max_epochs"):
            yield f"Trainer({key}=…)", key, getattr(owner, key, None)


_COUNTS = {True: re.compile(r"epoch", re.IGNORECASE), False: re.compile(r"step|iter|epoch", re.IGNORECASE)}
# A loop inside the epoch loop counts only if its variable's name shows that it trains something else each time. Other
# inner loops go through parts of one epoch.
_APART = re.compile(r"fold|split|seed|trial|client|member", re.IGNORECASE)


def find_turns(frame: FrameType | None, has_epochs: bool, trainer: Any = None) -> Site | None:
    """Returns the loop directly around the loop that counts epochs (or steps), or around the call of the trainer if
    there is one. If there is no such loop, returns a loop over folds, seeds or the like inside the counting loop."""
    loops = list(loops_around(frame, lambda one: trainer is None or one.f_locals.get("self") is trainer))
    if trainer is None:
        counting = [at for at, (_, loop, _) in enumerate(loops) if _COUNTS[has_epochs].search(_head(loop))]
        if not counting:
            return None
        inside, loops = loops[: counting[-1]], loops[counting[-1] + 1 :]
        loops = loops or [one for one in inside if _is_apart(one[1])]
    if not loops:
        return None
    file, loop, _ = loops[0]
    return Site(file, loop.lineno, linecache.getline(file, loop.lineno).strip())


def _is_apart(loop: Loop) -> bool:
    """Whether the name of the loop variable contains "fold", "seed" or the like. Only the variable counts, because a
    loop over the batches of a fold mentions the fold too."""
    return not isinstance(loop, ast.While) and bool(_APART.search(ast.unparse(loop.target)))


def _head(loop: Loop) -> str:
    if isinstance(loop, ast.While):
        return ast.unparse(loop.test)
    return f"{ast.unparse(loop.target)} {ast.unparse(loop.iter)}"
