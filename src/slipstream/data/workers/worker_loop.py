"""A base class for wrappers around torch's worker loop. A wrapper has the name of torch's function, so other code can
wrap it like torch's function. A spawned process looks the name up and gets torch's own function, unless a subclass
pickles in another way."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch.utils.data._utils import worker

INDEX_QUEUE, DATA_QUEUE = 2, 3  # positions among the arguments of the loop


class WorkerLoop:
    def __init__(self, original: Callable[..., None]) -> None:
        functools.update_wrapper(self, original, updated=())
        self._original = original

    def __reduce__(self) -> Any:
        """Pickles as a name, under which a spawned worker finds torch's own loop."""
        return "_worker_loop"

    def __call__(self, *args: Any) -> None:
        raise NotImplementedError


def check_arguments() -> None:
    names = list(inspect.signature(worker._worker_loop).parameters)
    if names[INDEX_QUEUE : DATA_QUEUE + 1] != ["index_queue", "data_queue"]:
        raise NotImplementedError("the worker loop of this torch version takes other arguments")
