"""Runs torch's profiler without its log, because the log would go to the script's stderr. Can be ended when the script
starts a profiler of its own, because only one profiler can run at a time."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import profiler

IN_USE = "the script itself uses torch's profiler, and only one can run at a time"
STARTED = "the script started torch's profiler during the step"
_LEVEL = "KINETO_LOG_LEVEL"
_SILENT = "9"  # above every level that the profiler uses


class QuietProfile:
    """Profiles from `start` to `end`; afterwards `results` holds kineto's results. An instance can be used once. A
    whole step must run between an `end` and the next `start`, because a step ends inside a range that torch opens
    around every update. A range that is opened under one profiler and closed under the next one writes into memory that
    was freed with the first profiler."""

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
        """Calls `abandon` when the script starts a profiler. `abandon` must end our profiler. If our profiler still
        ran, the script's profiler would raise an exception."""
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
    """Whether a profiler runs, or the script has entered one that may be prepared for a later step of its schedule."""
    if torch._C._autograd._profiler_enabled():
        return True
    # Compares types only: isinstance would read the objects' __class__, which can be a property that runs code.
    held: list[Any] = [thing for thing in gc.get_objects() if issubclass(type(thing), profiler.profile)]
    return any(thing.entered and thing.kineto_results is None for thing in held)


def device_in_use() -> str | None:
    """Returns the accelerator if the script has initialised it. A profiler must not initialise it."""
    for name in ("cuda", "xpu"):
        module: Any = getattr(torch, name, None)
        if module is not None and module.is_initialized():
            return name
    return None
