"""The state of a loader at the start of an epoch. A fingerprint of its dataset and its collate function detects what
the script changes until the next epoch. The saved states of its generators allow the epoch to be restarted.

Worker processes also have their own copies of the variables outside the dataset, so the fingerprint for workers covers
these variables. Threads share these variables with the script."""

from __future__ import annotations

from typing import Any

import torch

from slipstream.data.workers.dataset_fingerprint import difference, look, look_closely
from slipstream.data.workers.outside_state import OutsideState
from slipstream.seams.rng_state import RngState


def fingerprint_of(loader: Any, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns the fingerprint of the loader. `before` is the fingerprint of the previous epoch."""
    collate = {f"collate_fn{path}": token for path, token in look_closely(loader.collate_fn, 1).items()}
    return {**look_closely(loader.dataset, before=before), **collate, "collate_fn": (id(loader.collate_fn), None)}


def fingerprint_for_workers(loader: Any, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns the fingerprint of the loader and of the variables outside that the dataset's functions read."""
    return {**fingerprint_of(loader, before), **OutsideState(loader.dataset).look_closely(before=before)}


class WorkerWatch:
    """Detects during an epoch that the script changes the dataset's own attributes, or a variable outside that the
    dataset's functions read. The contents of arrays and lists are not compared, because this runs for every batch."""

    def __init__(self, dataset: Any) -> None:
        self._outside = OutsideState(dataset)
        self._before = self._look(dataset)

    def changed(self, dataset: Any) -> str:
        """Returns the name of the first attribute or variable that changed, or "" if none did."""
        return difference(self._before, self._look(dataset))

    def _look(self, dataset: Any) -> dict[str, Any]:
        return {**look(dataset, 1), **self._outside.look(1)}


def save_generators(loader: Any) -> RngState:
    return RngState(one for one in (torch.default_generator, loader.generator) if one is not None)
