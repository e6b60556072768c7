"""Seeds persistent workers for a new epoch. The seed travels with torch's own "resume" message, which the worker
unpickles after all messages of the last epoch and before any message of the next."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker


class ReseedingQueue:
    """Wraps a worker's index queue during a reset and adds the seed to the "resume" message."""

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
    """Unpickled in the worker: seed the generators as torch does when a worker starts. Returns torch's own message."""
    info = get_worker_info()
    if info is not None:  # the worker sends the message back to the main process, which must keep its generators
        with contextlib.suppress(Exception):  # with an unknown torch version the worker keeps its current generators
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
    object.__setattr__(info, "seed", seed)  # not by assignment, because the object is frozen
