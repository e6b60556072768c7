"""Torch's loop of a worker with something of ours around it. Stands under torch's name, so that whoever wraps it in
turn, or looks it up by name in a spawned process, takes it for torch's."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch.utils.data._utils import worker

INDEX_QUEUE, DATA_QUEUE = 2, 3  # their places among the arguments


class WorkerLoop:
    def __init__(self, original: Callable[..., None]) -> None:
        functools.update_wrapper(self, original, updated=())
        self._original = original

    def __reduce__(self) -> Any:
        """A spawned worker finds torch's own loop under this name."""
        return "_worker_loop"

    def __call__(self, *args: Any) -> None:
        raise NotImplementedError


def check_arguments() -> None:
    names = list(inspect.signature(worker._worker_loop).parameters)
    if names[INDEX_QUEUE : DATA_QUEUE + 1] != ["index_queue", "data_queue"]:
        raise NotImplementedError("this torch's worker loop takes other arguments")
