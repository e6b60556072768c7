"""Makes a loader return its batches in consecutive pieces. The samples of every batch stay together and in order, so
the number of updates and the samples of each update stay the same. Batches that cannot be divided evenly are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from slipstream.techniques._recompute.record_random import RefusedError
from slipstream.techniques._recompute.split_batch import bounds


class Divided(BatchSampler):
    """Replaces the batch sampler that a loader was built with."""

    def __init__(self, whole: BatchSampler, num_pieces: int) -> None:
        super().__init__(whole.sampler, whole.batch_size // num_pieces, whole.drop_last)
        self.whole = whole
        self.num_pieces = num_pieces

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.whole:
            for start, stop in bounds(len(batch), self.num_pieces):
                yield batch[start:stop]

    def __len__(self) -> int:
        full, rest = divmod(len(self.whole.sampler), self.whole.batch_size)  # type: ignore[arg-type]
        return full * self.num_pieces + (0 if self.whole.drop_last else min(rest, self.num_pieces))

    def share(self, index: int) -> float:
        """Returns the share of its batch's samples that the piece with this index in the epoch holds."""
        number, place = divmod(index, self.num_pieces)
        full, rest = divmod(len(self.whole.sampler), self.whole.batch_size)  # type: ignore[arg-type]
        total = self.whole.batch_size if number < full or not rest else rest
        start, stop = bounds(total, self.num_pieces)[place]
        return (stop - start) / total


def divide(loader: Any, num_pieces: int) -> Divided:
    """Divides the loader's batches from its next epoch on, and returns the new batch sampler. Raises RefusedError if
    that is not possible."""
    loader = base_of(loader)
    sampler = getattr(loader, "batch_sampler", None)
    if not isinstance(loader, DataLoader):
        raise RefusedError(f"the batches come from {type(loader).__name__} and not from a DataLoader")
    if isinstance(loader.dataset, IterableDataset) or sampler is None:
        raise RefusedError("the dataset is iterable, so it is not known where a batch ends")
    if type(sampler) is not BatchSampler:
        raise RefusedError(f"{type(sampler).__name__} makes the batches, and their sizes are not known")
    if loader._iterator is not None:
        raise RefusedError("the loader's workers have already started with whole batches")
    _refuse_odd(sampler.batch_size, num_pieces)
    divided = Divided(sampler, num_pieces)
    vars(loader)["batch_sampler"] = divided  # DataLoader does not allow the attribute to be set after construction
    return divided


def restore(loader: Any) -> None:
    loader = base_of(loader)
    sampler = vars(loader).get("batch_sampler")
    if isinstance(sampler, Divided):
        vars(loader)["batch_sampler"] = sampler.whole


def base_of(loader: Any) -> Any:
    """Returns the loader that makes the batches. Accelerate's loaders wrap it."""
    return vars(loader).get("base_dataloader", loader) if hasattr(loader, "__dict__") else loader


def _refuse_odd(batch_size: int, num_pieces: int) -> None:
    if batch_size % num_pieces:
        raise RefusedError(f"a batch of {batch_size} cannot be split into {num_pieces} equal pieces")
