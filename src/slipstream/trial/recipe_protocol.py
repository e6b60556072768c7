"""The interface between a trial and the techniques: a function that applies a recipe, and what it returns. The packages
with techniques are above this one, so that the function is passed in and never imported here."""

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
        """Time spent so far on work that a whole training does once."""
        ...

    def on_model(self, change: Callable[[Any], None]) -> None:
        """Calls `change` with every module with parameters that the script itself calls, once, before its first
        call."""
        ...

    def wrap_call(self, module: Any, wrapper: Callable[..., Any]) -> None:
        """Replaces the call of this instance by wrapper(call, *args, **kwargs)."""
        ...


# The last argument is true for a proof, which uses the base's random numbers.
ApplyRecipe = Callable[[Recipe, Patches, Complain, bool], AppliedRecipe]


def name_of(apply_recipe: ApplyRecipe | None) -> str:
    """The name by which a spawned child of the script finds the function."""
    return f"{apply_recipe.__module__}:{apply_recipe.__qualname__}" if apply_recipe is not None else ""


def find(name: str) -> ApplyRecipe | None:
    module, _, function = name.partition(":")
    return cast(ApplyRecipe, getattr(importlib.import_module(module), function)) if name else None


def find_schedule(name: str) -> Any:
    """The schedule class of `memory`, which is in a package above this one."""
    module, _, schedule = name.partition(":")
    return getattr(importlib.import_module(module), schedule)
