"""torch's profiler without a word of its own log, which else goes to the script's stderr. Gives way to a profiler of
the script's: only one can run at a time."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import profiler

IN_USE = "the script uses torch's profiler itself, and only one can run at a time"
STARTED = "the script started torch's profiler within the step"
_LEVEL = "KINETO_LOG_LEVEL"
_SILENT = "9"  # above every level that it writes at


class QuietProfile:
    """From `start` to `end`; then `results` are kineto's. Good for once. Steps end inside a range that torch opens
    around every update. A range that was opened under one profiler and is closed under the next writes into memory that
    has gone with the first: a whole step must lie between an `end` and the next `start`."""

    def __init__(self, device: str | None, **options: Any) -> None:
        self.results: Any = None
        self._device = device
        self._options = options
        self._profile: Any = None
        self._restore: Callable[[], None] = lambda: None

    def start(self) -> None:
        level = os.environ.get(_LEVEL)
        os.environ[_LEVEL] = _SILENT
        try:
            self._profile = profiler.profile(use_kineto=True, use_device=self._device, **self._options)
            self._profile.__enter__()
        finally:
            if level is None:
                del os.environ[_LEVEL]
            else:
                os.environ[_LEVEL] = level

    def give_way(self, abandon: Callable[[str], None]) -> None:
        """A profiler that the script starts meanwhile would find ours running and raise: `abandon` ends ours first."""
        prepare: Any = profiler.profile._prepare_trace

        def abandon_first(other: Any) -> Any:
            abandon(STARTED)
            return prepare(other)

        def restore() -> None:
            profiler.profile._prepare_trace = prepare  # type: ignore[method-assign]

        profiler.profile._prepare_trace = abandon_first  # type: ignore[method-assign]
        self._restore = restore

    def end(self) -> None:
        self._restore()
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.__exit__(None, None, None)
            self.results = profile.kineto_results


def is_profiler_in_use() -> bool:
    """A profiler that runs, or one that the script holds and may have prepared for a later step of its schedule."""
    if torch._C._autograd._profiler_enabled():
        return True
    # By type alone: isinstance would ask objects for their __class__, and some of them answer with code.
    held: list[Any] = [thing for thing in gc.get_objects() if issubclass(type(thing), profiler.profile)]
    return any(thing.entered and thing.kineto_results is None for thing in held)


def device_in_use() -> str | None:
    """The accelerator, once the script has woken it: a profiler must not be the one to do so."""
    for name in ("cuda", "xpu"):
        module: Any = getattr(torch, name, None)
        if module is not None and module.is_initialized():
            return name
    return None
