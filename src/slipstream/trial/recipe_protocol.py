"""What a ride knows of techniques: somebody puts a recipe in place and answers with this. The rooms that make recipes
lie above the runner, so it is handed in and never imported."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol, cast

from slipstream.records import Edit, Recipe
from slipstream.seams.patching import Complain, Patches


class AppliedRecipe(Protocol):
    """A recipe in place. `changes`, `declined` and `edits` grow while the script rides."""

    technique: str  # in whose name the next calls are made
    is_racing: bool  # whether the ride is timed against others
    changes: list[str]
    declined: list[str]
    edits: list[Edit]
    last_words: list[Callable[[], str]]  # for the line that sums up; "": nothing to say

    @property
    def once_ns(self) -> int:
        """Spent so far on what a whole training pays once."""
        ...

    def on_model(self, change: Callable[[Any], None]) -> None:
        """`change` meets every module with parameters that the script itself calls, once, before its first call."""
        ...

    def wrap_call(self, module: Any, wrapper: Callable[..., Any]) -> None:
        """wrapper(call, *args, **kwargs) stands around this instance's call."""
        ...


ApplyRecipe = Callable[
    [Recipe, Patches, Complain, bool], AppliedRecipe
]  # the last: with the base's random numbers, for a proof


def name_of(fit: ApplyRecipe | None) -> str:
    """How a spawned child of the script finds it again."""
    return f"{fit.__module__}:{fit.__qualname__}" if fit is not None else ""


def find(name: str) -> ApplyRecipe | None:
    module, _, function = name.partition(":")
    return cast(ApplyRecipe, getattr(importlib.import_module(module), function)) if name else None


def find_schedule(name: str) -> Any:
    """Of `memory`: a schedule from a room above the runner."""
    module, _, schedule = name.partition(":")
    return getattr(importlib.import_module(module), schedule)
