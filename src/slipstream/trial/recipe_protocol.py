"""The interface between a trial and the techniques: a function that applies a recipe, and what this function returns.
The package `techniques` is above this one. Therefore this package gets the function as an argument, or finds it by its
name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol, cast

from slipstream.records import Edit, Recipe, TechniqueNote
from slipstream.seams.patching import Complain, Patches


class AppliedRecipe(Protocol):
    """A recipe that has been applied. `change_notes`, `decline_notes` and `edits` grow while the script runs."""

    technique: str  # the technique to which the next calls belong
    is_racing: bool  # whether the trial is timed against others
    change_notes: list[TechniqueNote]
    decline_notes: list[TechniqueNote]
    edits: list[Edit]
    last_words: list[Callable[[], str]]  # each returns text for the summary line, or ""

    @property
    def once_ns(self) -> int:
        """The time in ns that was spent so far on work that a training does only once."""
        ...

    def on_model(self, change: Callable[[Any], None]) -> None:
        """Calls `change` once for every module that has parameters and that the script itself calls, before the first
        call of the module."""
        ...

    def wrap_call(self, module: Any, wrapper: Callable[..., Any]) -> None:
        """Replaces the call of this instance by wrapper(call, *args, **kwargs)."""
        ...


# The last argument is true for a separate trial in which only the numerics are checked. This trial draws the same
# random numbers as the base.
ApplyRecipe = Callable[[Recipe, Patches, Complain, bool], AppliedRecipe]


def name_of(apply_recipe: ApplyRecipe | None) -> str:
    """Returns the name by which a spawned child of the script finds the function."""
    return f"{apply_recipe.__module__}:{apply_recipe.__qualname__}" if apply_recipe is not None else ""


def find(name: str) -> ApplyRecipe | None:
    module, _, function = name.partition(":")
    return cast(ApplyRecipe, getattr(importlib.import_module(module), function)) if name else None


def find_schedule(name: str) -> Any:
    """Returns the schedule class of `memory`. The class is in a package above this one."""
    module, _, schedule = name.partition(":")
    return getattr(importlib.import_module(module), schedule)
