"""Every technique there is: the modules of this package that have a card.
Imports no torch; a technique's `apply` does."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import slipstream.techniques as package
from slipstream.records import Edit, Setting
from slipstream.techniques.card import Answer, Card
from slipstream.techniques.observation import Observation


class Technique(Protocol):
    """What a technique's module offers. Optional beside it: `environment(setting) -> dict[str, str]`, variables that
    must be set before the process starts."""

    __name__: str
    __doc__: str
    CARD: Card

    def applies(self, observation: Observation) -> Answer: ...

    def settings(self, observation: Observation) -> Sequence[Setting]: ...

    def apply(self, rig: object, setting: Setting) -> None: ...

    def edit(self, observation: Observation, setting: Setting) -> list[Edit]: ...


@lru_cache(maxsize=1)
def catalogue() -> dict[str, Technique]:
    """By id, which is the file's stem."""
    found: dict[str, Technique] = {}
    for info in pkgutil.iter_modules(package.__path__):
        if info.name in _FURNITURE:
            continue
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        if hasattr(module, "CARD"):
            found[info.name] = module
    return found


_FURNITURE = {"card", "catalogue", "observation", "rig", "outfit", "__main__"}


def technique(ident: str) -> Technique:
    known = catalogue()
    if ident not in known:
        raise ValueError(f"no technique is called {ident!r}; there are: {', '.join(known)}")
    return known[ident]


def environment_of(ident: str, setting: Setting) -> dict[str, str]:
    """Variables that this technique needs before the process starts."""
    make = getattr(technique(ident), "environment", None)
    return dict(make(setting)) if make is not None else {}
