"""The place on one module where its calls can be intercepted: torch looks there on every call of that instance. What
stands in it belongs to this one object: copies and pickles of the module, however they are made, have none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

NAME = "_compiled_call_impl"  # Module.compile() puts the compiled call of the script's there


class Slot:
    """A callable that vanishes when it is copied: a module's own `__getstate__` may hand out all attributes, and a copy
    that called through us would compute with the weights of the original."""

    def __init__(self, function: Callable[..., Any], inner: Any = None) -> None:
        self.function = function
        self.__wrapped__ = inner  # what lies below, for those who look through us; None: the module itself

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def content(module: torch.nn.Module) -> Any:
    return vars(module).get(NAME)


def fill(module: torch.nn.Module, slot: Slot) -> None:
    vars(module)[NAME] = slot


def clear(module: torch.nn.Module, slot: Slot) -> None:
    """Puts back what was below, unless somebody has put something above."""
    if content(module) is slot:
        if slot.__wrapped__ is None:
            del vars(module)[NAME]
        else:
            vars(module)[NAME] = slot.__wrapped__


def is_compiled(module: torch.nn.Module) -> bool:
    """By the script: what stands there for us does not count."""
    below = content(module)
    while isinstance(below, Slot):
        below = below.__wrapped__
    return hasattr(module, "_orig_mod") or below is not None
