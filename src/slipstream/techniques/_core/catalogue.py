"""The catalogue of techniques: all modules of the package that have a card. Does not import torch; only a technique's
`apply` does."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

import slipstream.techniques as package
from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import Answer, Card
from slipstream.techniques._core.observation import Observation


class Technique(Protocol):
    """The interface of a technique's module. A module may define four more functions. `environment(setting)` returns
    the variables that must be set before the process starts. `applies_with(observation, recipe)` and
    `settings_with(observation, recipe)` answer for a recipe that has other techniques. `import_edit(observation,
    setting)` returns the edits that use `slipstream.DataLoader`."""

    __name__: str
    __doc__: str
    CARD: Card

    def applies(self, observation: Observation) -> Answer: ...

    def settings(self, observation: Observation) -> Sequence[Setting]: ...

    def apply(self, context: object, setting: Setting) -> None: ...

    def edit(self, observation: Observation, setting: Setting) -> list[Edit]: ...


class _Catalogue(Mapping[str, Technique]):
    """Imports a technique when it is looked up, because `run` needs only the techniques of its recipe."""

    def __init__(self) -> None:
        found = pkgutil.iter_modules(package.__path__)
        self._names = [info.name for info in found if not info.ispkg]

    def __getitem__(self, ident: str) -> Technique:
        if ident not in self._names:
            raise KeyError(ident)
        return importlib.import_module(f"{package.__name__}.{ident}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, ident: object) -> bool:
        return ident in self._names


@lru_cache(maxsize=1)
def catalogue() -> Mapping[str, Technique]:
    """Returns all techniques by id, which is the stem of the file name."""
    return _Catalogue()


def technique(ident: str) -> Technique:
    known = catalogue()
    if ident not in known:
        raise ValueError(f"no technique is called {ident!r}; the techniques are: {', '.join(known)}")
    return known[ident]


def import_edits_of(technique: Technique, observation: Observation, setting: Setting) -> list[Edit]:
    """Returns the edits that use `slipstream.DataLoader`. The patched source then needs slipstream. Returns no edits
    for a technique that `slipstream.DataLoader` does not have."""
    make = getattr(technique, "import_edit", None)
    return list(make(observation, setting)) if make is not None else []


def environment_of(ident: str, setting: Setting) -> dict[str, str]:
    """Returns the variables that this technique needs before the process starts."""
    make = getattr(technique(ident), "environment", None)
    return dict(make(setting)) if make is not None else {}
