"""Seeds workers that stay for a new epoch. The word goes with torch's own "resume" message: it is unpickled in the
worker after everything of the last epoch and before anything of the next."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker


class ReseedingQueue:
    """A worker's index queue for the length of a reset."""

    def __init__(self, queue: Any, resume_type: type, base_seed: int) -> None:
        self._queue = queue
        self._resume_type = resume_type
        self._base_seed = base_seed

    def put(self, message: Any) -> None:
        if isinstance(message, self._resume_type):
            message = _Reseed(message, self._base_seed)
        self._queue.put(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class _Reseed:
    def __init__(self, message: Any, base_seed: int) -> None:
        self._message = message
        self._base_seed = base_seed

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return reseed, (self._message, self._base_seed)


def reseed(message: Any, base_seed: int) -> Any:
    """In the worker: the generators as torch sets them when a worker starts. Gives back the bare message."""
    info = get_worker_info()
    if info is not None:  # the answer comes back through the main process, which keeps its generators
        with contextlib.suppress(Exception):  # a worker whose torch we do not know goes on with its own numbers
            _seed_worker(info, base_seed)
    return message


def _seed_worker(info: Any, base_seed: int) -> None:
    seed = base_seed + info.id
    random.seed(seed)
    torch.manual_seed(seed)
    if vars(worker)["HAS_NUMPY"]:
        import numpy as np

        generate: Any = worker._generate_state
        np.random.seed(generate(base_seed, info.id))
    object.__setattr__(info, "seed", seed)  # by the back door: it is frozen
