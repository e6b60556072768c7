"""A shuffled order regrouped so that a batch holds samples of similar length. The permutation is torch's own, drawn as
ever; only within a stretch of batches are samples sorted, and the batches shuffled, so every epoch is another."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import numpy as np
from torch.utils.data import RandomSampler, Sampler, default_collate

from slipstream.data.samples.lengths import UnknownLengthsError, lengths_of

STRETCH = 50  # batches among which samples are sorted
LEAST_SAVED = 0.05  # of the padded batch: below that the order is left as it is


def obstacle(arguments: dict[str, Any]) -> str:
    """What stands against regrouping a loader that is built with these arguments; "" if nothing does."""
    sampler, size = arguments["sampler"], arguments["batch_size"]
    if arguments["batch_sampler"] is not None:
        return "the script makes the batches itself (batch_sampler)"
    if not isinstance(size, int) or size < 2:
        return "it has no batches of several samples"
    if arguments["collate_fn"] in (None, default_collate):
        return "its batches are stacked as they are, and not padded by a collate_fn"
    if sampler is None:
        return "" if arguments["shuffle"] is True else "it is not shuffled, and its order may matter"
    is_torchs = type(sampler) is RandomSampler and not sampler.replacement
    if not is_torchs or sampler.num_samples != len(sampler.data_source):
        return f"its order comes from a {type(sampler).__name__}, and not from torch's own shuffling"
    return ""


class KnownLengths:
    """Of the dataset that was asked about last: a script may build its loader anew in every epoch."""

    def __init__(self, once: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self._once = once  # stands around what is done once
        self._dataset: Callable[[], Any] = lambda: None
        self._lengths: Any = None

    def of(self, dataset: Any) -> Any:
        if self._dataset() is not dataset:
            self._dataset = lambda: None
            with self._once():
                self._lengths = lengths_of(dataset)
            with suppress(TypeError):  # a list cannot be followed: it is asked every time
                self._dataset = weakref.ref(dataset)
        return self._lengths


class LengthBuckets(Sampler[int]):
    """Not a RandomSampler: a framework that replaces those by its own would undo it."""

    def __init__(
        self,
        inner: RandomSampler,
        dataset: Any,
        batch_size: int,
        tell: Callable[[float, float], None],
        refuse: Callable[[str], None],
        known: KnownLengths | None = None,
    ) -> None:
        self._inner = inner
        self._dataset = dataset
        self._batch_size = batch_size
        self._tell = tell  # the share of padding before and after
        self._refuse = refuse
        self._known = known or KnownLengths()
        self._lengths: Any = None
        self._is_off = False
        self.data_source = inner.data_source
        self.generator = inner.generator

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[int]:
        plain = iter(self._inner)
        order = [next(plain) for _ in range(len(self._inner))]
        yield from self._regrouped(order)
        yield from plain  # empty, but torch draws once more from a generator of the script's own

    def _regrouped(self, order: list[int]) -> list[int]:
        if self._is_off:
            return order
        try:
            return self._try(order)
        except UnknownLengthsError as reason:
            self._give_up(str(reason))
        except Exception as fault:  # whatever the dataset raises it will raise in the loop, or not at all
            self._give_up(f"{type(fault).__name__}: {fault}")
        return order

    def _try(self, order: list[int]) -> list[int]:
        is_first = self._lengths is None
        if is_first:
            self._lengths = self._known.of(self._dataset)
        if len(self._lengths) != len(order):
            raise UnknownLengthsError("the dataset has another length than before")
        grouped = regroup(np.asarray(order), self._lengths, self._batch_size)
        if is_first:
            shares = [padding_share(one, self._lengths, self._batch_size) for one in (np.asarray(order), grouped)]
            if shares[0] - shares[1] < LEAST_SAVED:
                raise UnknownLengthsError(f"only {shares[0]:.0%} of a batch are padding")
            self._tell(shares[0], shares[1])
        return [int(index) for index in grouped]

    def _give_up(self, why: str) -> None:
        self._is_off = True
        self._refuse(why)


def regroup(order: Any, lengths: Any, batch_size: int) -> Any:
    """Every index once. A last batch that is not full stays what it was, so that nothing is always dropped."""
    num_whole = len(order) - len(order) % batch_size
    random = np.random.default_rng(zlib.crc32(np.ascontiguousarray(order).tobytes()))  # of this permutation alone
    parts = []
    for start in range(0, num_whole, STRETCH * batch_size):
        stretch = order[start : min(start + STRETCH * batch_size, num_whole)]
        batches = stretch[np.argsort(lengths[stretch], kind="stable")].reshape(-1, batch_size)
        parts.append(batches[random.permutation(len(batches))].reshape(-1))
    return np.concatenate([*parts, order[num_whole:]])


def padding_share(order: Any, lengths: Any, batch_size: int) -> float:
    """Of what is computed, if every batch is padded to its longest."""
    sizes = lengths[order]
    batches = [sizes[at : at + batch_size] for at in range(0, len(sizes), batch_size)]
    whole = sum(int(batch.max()) * len(batch) for batch in batches)
    return 1.0 - float(sizes.sum()) / whole if whole else 0.0
