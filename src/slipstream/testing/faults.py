"""Breaks one of slipstream's callbacks on purpose, so that tests can check that the training continues without this
callback.

`python -m slipstream.testing.faults NAME train.py ARGS` runs the script as `slipstream run` does, with callback NAME
broken. No command of slipstream uses this module.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from slipstream.seams import patching


class PlantedError(RuntimeError):
    """The error that a callback raises if it was broken on purpose."""


@contextlib.contextmanager
def broken(name: str) -> Iterator[None]:
    """Makes every callback that is registered under this name raise an error when it is called."""

    def tamper(registered: str, callback: Callable[..., Any]) -> Callable[..., Any]:
        return _raiser(name) if registered == name else callback

    with _tampering(tamper):
        yield


@contextlib.contextmanager
def listing() -> Iterator[set[str]]:
    """Collects the names of the callbacks that are called. No callback is broken."""
    called: set[str] = set()

    def tamper(registered: str, callback: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any) -> Any:
            called.add(registered)
            return callback(*args)

        return noting

    with _tampering(tamper):
        yield called


@contextlib.contextmanager
def _tampering(tamper: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    before, patching.tamper = patching.tamper, tamper
    try:
        yield
    finally:
        patching.tamper = before


def _raiser(name: str) -> Callable[..., Any]:
    def raising(*args: Any) -> Any:
        raise PlantedError(f"planted in {name}")

    return raising


def main() -> None:
    from slipstream.trial.run_mode import run_watched

    name, *script = sys.argv[1:]
    sys.argv = script
    with broken(name):
        run_watched(script)


if __name__ == "__main__":
    main()
