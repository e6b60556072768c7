"""The attribute of a module through which its calls can be intercepted. torch reads this attribute at every call of the
instance. The callable in the attribute belongs to this one instance. Copies and pickles of the module contain None in
its place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from typing_extensions import Self

NAME = "_compiled_call_impl"  # Module.compile() stores the compiled call in this attribute.


class CallSlot(functools.partial[Any]):
    """A callable whose copy is None. A module's own `__getstate__` may return all attributes. If this callable were
    copied too, the copied module would compute with the weights of the original. This class is a `partial` without
    arguments, because a `partial` calls its function without an additional Python frame."""

    __wrapped__: Any

    def __new__(cls, function: Callable[..., Any], inner: Any = None) -> Self:
        self = super().__new__(cls, function)
        self.__wrapped__ = inner  # The callable that this one wraps; None if it wraps the module itself
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
    """Restores the wrapped callable, unless other code has replaced the slot since."""
    if content(module) is slot:
        if slot.__wrapped__ is None:
            del vars(module)[NAME]
        else:
            vars(module)[NAME] = slot.__wrapped__


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether the script compiled the module. Slots that this package installed are ignored."""
    below = content(module)
    while isinstance(below, CallSlot):
        below = below.__wrapped__
    return hasattr(module, "_orig_mod") or below is not None
