"""The catalogue of causes. Each cause is one module of this package, and the module's name is the cause's id.

The catalogue lists the modules of the package, so a new cause needs no registration.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from slipstream.records import Finding, Session, Summary

Find = Callable[[Session, Summary], list[Finding]]


@cache
def catalogue() -> dict[str, Find]:
    """Maps each cause id to the function that looks for the cause."""
    names = sorted(module.name for module in iter_modules(__path__))
    return {name: import_module(f"{__name__}.{name}").find for name in names}
