"""Finds the outermost modules, which the script itself calls. A search lasts until `settle` is called. It replaces one
class attribute and restores this attribute during every outermost call, so inner calls are unaffected, whether they are
compiled or not."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from slipstream.seams.data_threads import is_beside
from slipstream.seams.patching import Patches

Found = Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], None]


class OutermostFinder:
    """Calls `on_found` before every outermost call, until `settle` is called."""

    def __init__(self, on_found: Found) -> None:
        self._on_found = on_found
        self._original = torch.nn.Module.__call__
        self._is_searching = False

    def install(self, patches: Patches) -> None:
        self._passage = patches.passage(self._original, "outermost", self._before, self._after, self._abandon)
        patches.on_close(self.settle)
        patches.on_close(self._passage.retire)
        self.search()

    def search(self) -> None:
        self._is_searching = True
        self._put(self._passage.function)

    def settle(self) -> None:
        self._is_searching = False
        self._put(self._original)

    def _put(self, function: Callable[..., Any]) -> None:
        if torch.nn.Module.__call__ is not function:
            torch.nn.Module.__call__ = function  # type: ignore[method-assign]

    def _before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if is_beside():  # A call in a data thread is not a call of the script.
            return False
        self._put(self._original)
        self._on_found(args[0], args[1:], kwargs)
        return True

    def _after(self, token: bool, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._abandon(token)

    def _abandon(self, token: bool) -> None:
        if token and self._is_searching:
            self._put(self._passage.function)


def is_being_built(frame: FrameType | None) -> bool:
    """Whether a model's `__init__` is on the stack. An `__init__` may call parts of the model to learn their sizes, but
    the script itself does not call these parts later."""
    while frame is not None:
        if frame.f_code.co_name == "__init__" and isinstance(frame.f_locals.get("self"), torch.nn.Module):
            return True
        frame = frame.f_back
    return False
