"""Regroups a shuffled order so that a batch holds samples of similar length. The permutation is torch's own and is
drawn as usual. Samples are sorted only within a stretch of batches. The batches of a stretch are then shuffled, so
every epoch has a different order."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import numpy as np
from torch.utils.data import RandomSampler, Sampler, default_collate

from slipstream.data.samples.lengths import UnknownLengthsError, lengths_of

STRETCH = 50  # number of batches in which samples are sorted together
LEAST_SAVED = 0.05  # share of the padded batch; if less is saved, the order stays as it is


def obstacle(arguments: dict[str, Any]) -> str:
    """Returns the reason why a loader with these arguments cannot be regrouped, or "" if it can."""
    sampler, size = arguments["sampler"], arguments["batch_size"]
    if arguments["batch_sampler"] is not None:
        return "the script groups samples into batches itself (batch_sampler)"
    if not isinstance(size, int) or size < 2:
        return "its batches do not have several samples"
    if arguments["collate_fn"] in (None, default_collate):
        return "it has no collate_fn that pads its batches"
    if sampler is None:
        return "" if arguments["shuffle"] is True else "it is not shuffled, and its order may matter"
    is_torchs = type(sampler) is RandomSampler and not sampler.replacement
    if not is_torchs or sampler.num_samples != len(sampler.data_source):
        return f"its order comes from a {type(sampler).__name__}, and not from torch's own shuffling"
    return ""


class KnownLengths:
    """Remembers the lengths of the last dataset, because a script may build a new loader in every epoch."""

    def __init__(self, once: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self._once = once  # the context in which the lengths are measured
        self._dataset: Callable[[], Any] = lambda: None
        self._lengths: Any = None

    def of(self, dataset: Any) -> Any:
        if self._dataset() is not dataset:
            self._dataset = lambda: None
            with self._once():
                self._lengths = lengths_of(dataset)
            with suppress(TypeError):  # a list has no weak reference, so it is measured every time
                self._dataset = weakref.ref(dataset)
        return self._lengths


class LengthBuckets(Sampler[int]):
    """The sampler that regroups. It is not a RandomSampler, because frameworks replace a RandomSampler with their
    own."""

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
        self._tell = tell  # receives the share of padding before and after
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
        yield from plain  # empty, but torch draws once more from the script's own generator at its end

    def _regrouped(self, order: list[int]) -> list[int]:
        if self._is_off:
            return order
        try:
            return self._try(order)
        except UnknownLengthsError as reason:
            self._give_up(str(reason))
        except Exception as fault:  # not raised here; if the dataset raises it again, the loop gets it
            self._give_up(f"{type(fault).__name__}: {fault}")
        return order

    def _try(self, order: list[int]) -> list[int]:
        is_first = self._lengths is None
        if is_first:
            self._lengths = self._known.of(self._dataset)
        if len(self._lengths) != len(order):
            raise UnknownLengthsError("the length of the dataset has changed")
        grouped = regroup(np.asarray(order), self._lengths, self._batch_size)
        if is_first:
            shares = [padding_share(one, self._lengths, self._batch_size) for one in (np.asarray(order), grouped)]
            if shares[0] - shares[1] < LEAST_SAVED:
                raise UnknownLengthsError(f"only {shares[0]:.0%} of a batch is padding")
            self._tell(shares[0], shares[1])
        return [int(index) for index in grouped]

    def _give_up(self, why: str) -> None:
        self._is_off = True
        self._refuse(why)


def regroup(order: Any, lengths: Any, batch_size: int) -> Any:
    """Returns the regrouped order, with every index once. An incomplete last batch stays as it is. If it were sorted
    too, `drop_last` would drop long samples more often than short ones."""
    num_whole = len(order) - len(order) % batch_size
    random = np.random.default_rng(zlib.crc32(np.ascontiguousarray(order).tobytes()))  # depends only on the permutation
    parts = []
    for start in range(0, num_whole, STRETCH * batch_size):
        stretch = order[start : min(start + STRETCH * batch_size, num_whole)]
        batches = stretch[np.argsort(lengths[stretch], kind="stable")].reshape(-1, batch_size)
        parts.append(batches[random.permutation(len(batches))].reshape(-1))
    return np.concatenate([*parts, order[num_whole:]])


def padding_share(order: Any, lengths: Any, batch_size: int) -> float:
    """Returns the share of the padded batches that is padding, if every batch is padded to its longest sample."""
    sizes = lengths[order]
    batches = [sizes[at : at + batch_size] for at in range(0, len(sizes), batch_size)]
    whole = sum(int(batch.max()) * len(batch) for batch in batches)
    return 1.0 - float(sizes.sum()) / whole if whole else 0.0
