"""The place on one module where its calls can be intercepted: torch looks there on every call of that instance. What
stands in it belongs to this one object: copies and pickles of the module, however they are made, have none."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from typing_extensions import Self

NAME = "_compiled_call_impl"  # Module.compile() puts the compiled call of the script's there


class CallSlot(functools.partial[Any]):
    """A callable that vanishes when it is copied: a module's own `__getstate__` may hand out all attributes, and a copy
    that called through us would compute with the weights of the original. A partial of nothing, since that calls its
    function without a Python frame of its own."""

    __wrapped__: Any

    def __new__(cls, function: Callable[..., Any], inner: Any = None) -> Self:
        self = super().__new__(cls, function)
        self.__wrapped__ = inner  # what lies below, for those who look through us; None: the module itself
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def content(module: torch.nn.Module) -> Any:
    return vars(module).get(NAME)


def fill(module: torch.nn.Module, slot: CallSlot) -> None:
    vars(module)[NAME] = slot


def clear(module: torch.nn.Module, slot: CallSlot) -> None:
    """Puts back what was below, unless somebody has put something above."""
    if content(module) is slot:
        if slot.__wrapped__ is None:
            del vars(module)[NAME]
        else:
            vars(module)[NAME] = slot.__wrapped__


def is_compiled(module: torch.nn.Module) -> bool:
    """By the script: what stands there for us does not count."""
    below = content(module)
    while isinstance(below, CallSlot):
        below = below.__wrapped__
    return hasattr(module, "_orig_mod") or below is not None
