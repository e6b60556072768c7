"""Reads a dataset through the sample cache in one process. This module decides which samples come from the dataset and
which from the shared arena, and detects when samples must not be cached. An error in our code never reaches the script.
An exception of the dataset does."""

from __future__ import annotations

import os
import weakref
from collections import Counter
from typing import Any

import torch
from torch.utils.data import get_worker_info

from slipstream.data.samples.serialise import SamplePayload, UnkeepableError, pack
from slipstream.data.samples.shared_arena import ArenaEntry, SharedArena
from slipstream.data.workers.dataset_fingerprint import difference, is_uncounted, look, look_closely, walk
from slipstream.data.workers.dataset_generators import generators_of
from slipstream.data.workers.outside_state import OutsideState
from slipstream.machine.free_memory import free_bytes
from slipstream.seams.rng_state import RngState

_SHARE = 0.3  # maximum share of the free memory
_PROVED = 4  # samples that each process first requests twice from the dataset
_COMPARED = 4  # cached samples of each writer that each process compares with the dataset in each epoch
_EVERY = 16  # one further cached sample is compared in every 16th batch
DRAWN = "random numbers are drawn for the samples"


class SampleCacheState:
    """The cached samples of one dataset."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = weakref.ref(dataset)
        self.arena = SharedArena(len(dataset), int(_SHARE * free_bytes()))
        self.outside = OutsideState(dataset)
        self.fingerprint: dict[str, Any] | None = None  # of the dataset and of outside variables
        self.proofs: dict[int, _Proof] = {}  # by process id, because a forked process needs a proof of its own
        self.is_kept = False
        self.is_told = False

    def begin_epoch(self, has_workers: bool) -> None:
        if self.arena.reason:
            return
        now = self.look_closely()
        if self.fingerprint is not None and (changed := difference(self.fingerprint, now)):
            self.arena.drop(f"the script changed {changed} of the dataset between epochs")
        elif has_workers:  # not without workers: a dataset that is read in this process may open files during the epoch
            self.fingerprint = now

    def look(self) -> dict[str, Any]:
        """Returns a fingerprint of the dataset and of the variables that its functions read."""
        return {**look(self.dataset(), 2), **self.outside.look()}

    def look_closely(self) -> dict[str, Any]:
        """Returns a fingerprint that covers the contents of arrays and lists too. Elements of lists that have not
        changed since the last fingerprint are not touched."""
        inside = look_closely(self.dataset(), before=self.fingerprint)
        return {**inside, **self.outside.look_closely(before=self.fingerprint)}

    def generators(self) -> list[Any]:
        return [*generators_of(self.dataset()), *self.outside.generators()]

    @property
    def proof(self) -> _Proof:
        return self.proofs.setdefault(os.getpid(), _Proof())


class _Proof:
    """The progress of one process in checking whether a dataset's samples may be cached."""

    def __init__(self) -> None:
        self.has_begun = False
        self.num_proved = 0
        self.num_bytes = 0  # of the proved samples
        # Both fingerprints are taken after the first sample. Reading another sample must not change anything.
        self.fingerprint: dict[str, Any] = {}
        self.close_fingerprint: dict[str, Any] | None = None  # until the second sample


class SampleReader:
    """Reads samples in one process during one epoch."""

    def __init__(self, dataset: Any, state: SampleCacheState) -> None:
        self._dataset = dataset
        self._state = state
        self._arena = state.arena
        self._proof = state.proof
        self._generators = state.generators()
        info = get_worker_info()
        self._writer = info.id if info is not None else -1
        self._compared: Counter[int] = Counter()
        self._num_batches = 0
        self._must_compare = False
        self._before: RngState | None = None  # of the generators before the first sample of this batch from the dataset
        self._made: list[tuple[int, SamplePayload]] = []  # cached at the end of the batch if it drew no random number

    @property
    def is_proved(self) -> bool:
        """Whether enough samples were checked. Only then samples are cached."""
        return self._proof.num_proved >= _PROVED

    def begin_batch(self) -> bool:
        """Returns False if the batch must be read without the cache."""
        if self._arena.reason:
            self._arena.release()
            return False
        self._before = None
        self._made.clear()
        self._num_batches += 1
        self._must_compare = self._num_batches % _EVERY == 0
        try:
            changed = difference(self._proof.fingerprint, self._state.look()) if self.is_proved else ""
        except Exception as fault:
            self._arena.drop(f"{type(fault).__name__}: {fault}")
            return False
        if changed:
            self._arena.drop(f"{changed} of the dataset changed while it was read")
            return False
        return True

    def sample(self, index: Any) -> Any:
        try:
            entry = self._entry(index)
            if entry is not None:
                return self._arena.sample(entry)
            if self._before is None:
                self._before = RngState(self._generators)
        except Exception as fault:
            self._arena.drop(f"{type(fault).__name__}: {fault}")
            return self._dataset[index]
        sample = self._dataset[index]  # an exception of the dataset goes to the script
        try:
            self._check(index, sample)
        except UnkeepableError as refusal:
            self._arena.drop(str(refusal))
        except Exception as fault:
            self._arena.drop(f"{type(fault).__name__}: {fault}")
        return sample

    def end_batch(self) -> None:
        """Caches the samples of the batch if no random number was drawn. The generators are compared once per batch,
        because reading their states takes as long as making a small sample."""
        try:
            if self._before is None or self._arena.reason:
                return
            if self._before.has_moved():
                self._arena.drop(DRAWN)
                return
            for index, payload in self._made:
                if not self._arena.put(index, payload, self._writer) and not len(self._arena):
                    self._arena.drop("memory is nearly full")
        except Exception as fault:
            self._arena.drop(f"{type(fault).__name__}: {fault}")

    def _entry(self, index: Any) -> ArenaEntry | None:
        """Returns the cached sample, or None if the sample must come from the dataset."""
        is_usable = type(index) is int and index in self._arena and self.is_proved
        entry = self._arena.entry(index) if is_usable and not self._arena.reason else None
        if entry is None or self._must_compare or self._compared[entry.writer] < _COMPARED:
            return None
        return entry

    # --- samples that come from the dataset --------------------------------------------------------------------------

    def _check(self, index: Any, sample: Any) -> None:
        if self._arena.reason or type(index) is not int or index not in self._arena:
            return
        if self.is_proved:
            self._compare_or_keep(index, pack(sample))
        elif self._before is not None and self._before.has_moved():
            self._arena.drop(DRAWN)
        else:
            self._prove(index, sample)

    def _prove(self, index: int, sample: Any) -> None:
        proof = self._proof
        if not proof.has_begun:  # the first sample may open or read files, which changes the dataset
            proof.has_begun = True
            self._generators, self._before = self._state.generators(), None
            proof.fingerprint, proof.close_fingerprint = self._state.look(), self._state.look_closely()
            return
        changed = difference(proof.fingerprint, self._state.look())
        if not changed and proof.close_fingerprint is not None:  # once, because it reads whole arrays
            changed = difference(proof.close_fingerprint, self._state.look_closely())
            proof.close_fingerprint = None
        if changed:
            self._arena.drop(f"reading a sample changes {changed} of the dataset")
            return
        payload = pack(sample)
        if reason := self._request_again(index, sample, payload):
            self._arena.drop(reason)
            return
        proof.num_proved += 1
        proof.num_bytes += sum(map(len, payload.pieces))
        if proof.num_proved == _PROVED:
            self._finish_proof()

    def _request_again(self, index: int, sample: Any, payload: SamplePayload) -> str:
        """Requests a sample a second time. Returns why it must not be cached, or "" if it may. The states of the
        generators are restored."""
        before = RngState(self._generators)
        try:
            again = self._dataset[index]
        finally:
            has_drawn = before.has_moved()
            if has_drawn:
                before.restore()
        if has_drawn:
            return DRAWN
        if not pack(again).is_same(payload):
            return "a sample differs when it is requested a second time"
        if (_memory_of(sample) & _memory_of(again)) - _watched_memory(self._dataset, self._state.outside):
            return "the samples share memory with the dataset, and the script may change that memory"
        return ""

    def _finish_proof(self) -> None:
        """Drops the cache if memory is too small for all samples. Without workers, takes the fingerprint with which
        the dataset is compared at the next epoch."""
        wanted = 1.1 * self._proof.num_bytes / _PROVED * len(self._dataset)
        if wanted > self._arena.most_bytes:
            limit = f"only {self._arena.most_bytes / 1e9:.2g} GB can be used safely"
            self._arena.drop(f"all samples together would need {wanted / 1e9:.2g} GB of memory, and {limit}")
        elif self._writer < 0 and self._state.fingerprint is None:
            self._state.fingerprint = self._state.look_closely()

    def _compare_or_keep(self, index: int, payload: SamplePayload) -> None:
        entry = self._arena.entry(index)
        if entry is None:
            self._made.append((index, payload))
        elif self._arena.payload(entry).is_same(payload):
            self._compared[entry.writer] += 1
            self._must_compare = False
        else:
            self._arena.drop("a sample differs from its cached copy")


def _watched_memory(dataset: Any, outside: OutsideState) -> set[int]:
    """Returns the memory of the tensors in the fingerprint. Torch counts in-place changes of a tensor and of all its
    views, so the fingerprint detects these changes. Tensors that were made in inference mode are left out, because
    torch does not count their changes."""
    values = (*(value for _, value in walk(dataset, 2)), *outside.values())
    tensors = [value for value in values if isinstance(value, torch.Tensor) and not is_uncounted(value)]
    return set().union(*map(_memory_of, tensors))


def _memory_of(sample: Any) -> set[int]:
    """Returns the addresses of those parts of a sample that can be changed in place."""
    if isinstance(sample, dict):
        return {id(sample)}.union(*map(_memory_of, sample.values()))
    if isinstance(sample, tuple):
        return set().union(*map(_memory_of, sample))
    if isinstance(sample, list):
        return {id(sample)}.union(*map(_memory_of, sample))
    if hasattr(sample, "untyped_storage"):
        return {sample.untyped_storage().data_ptr()} if sample.numel() else set()
    return {sample.ctypes.data} if hasattr(sample, "ctypes") and sample.size else set()
