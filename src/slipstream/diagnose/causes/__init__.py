"""The catalogue of causes: one module each, its stem is the cause's id. It finds them by looking into itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from slipstream.records import Finding, Session, Summary

Find = Callable[[Session, Summary], list[Finding]]


@cache
def catalogue() -> dict[str, Find]:
    """Cause id to the function that looks for it."""
    names = sorted(module.name for module in iter_modules(__path__))
    return {name: import_module(f"{__name__}.{name}").find for name in names}
