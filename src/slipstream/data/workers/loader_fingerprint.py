"""The state of a loader at the start of an epoch: a fingerprint of its dataset and its collate function, to detect what
the script changes until the next epoch, and the states of its generators, to restart the epoch."""

from __future__ import annotations

from typing import Any

import torch

from slipstream.data.workers.dataset_fingerprint import look_closely
from slipstream.seams.rng_state import RngState


def fingerprint_of(loader: Any, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """`before` is the fingerprint of the previous epoch."""
    collate = {f"collate_fn{path}": token for path, token in look_closely(loader.collate_fn, 1).items()}
    return {**look_closely(loader.dataset, before=before), **collate, "collate_fn": (id(loader.collate_fn), None)}


def save_generators(loader: Any) -> RngState:
    return RngState(one for one in (torch.default_generator, loader.generator) if one is not None)
