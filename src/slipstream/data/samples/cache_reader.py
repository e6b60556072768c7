"""One process reading a dataset whose samples may be kept: for which it asks the dataset, which it takes from the
shelf, and how it finds out that they must not be kept. A fault of ours never reaches the script; what the dataset
raises does."""

from __future__ import annotations

import os
import weakref
from collections import Counter
from typing import Any

import torch
from torch.utils.data import get_worker_info

from slipstream.data.samples.serialise import SamplePayload, UnkeepableError, pack
from slipstream.data.samples.shared_arena import ArenaEntry, SharedArena
from slipstream.data.workers.dataset_fingerprint import difference, look, look_closely, walk
from slipstream.data.workers.rng_state import GeneratorStates, States
from slipstream.machine.free_memory import free_bytes

_SHARE = 0.3  # of the memory that is free
_PROVED = 4  # samples asked for twice, in each process
_COMPARED = 4  # kept samples asked for again, of each writer, in each process and epoch
_EVERY = 16  # batches between two more of these
DRAWN = "random numbers are drawn for its samples"
_PLAIN = (bool, int, float, str, bytes)


class SampleCacheState:
    """The samples of one dataset."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = weakref.ref(dataset)
        self.arena = SharedArena(len(dataset), int(_SHARE * free_bytes()))
        self.fingerprint: dict[str, Any] | None = None  # the dataset as the samples were made from it
        self.trusts: dict[int, _Trust] = {}  # by process: a fork inherits its parent's, and does not go by it
        self.is_kept = False
        self.is_told = False

    def begin_epoch(self, has_workers: bool) -> None:
        if self.arena.reason:
            return
        now = look_closely(self.dataset(), before=self.fingerprint)
        if self.fingerprint is not None and (changed := difference(self.fingerprint, now)):
            self.arena.drop(f"the script changed {changed} of the dataset between epochs")
        elif has_workers:  # a dataset that is read here opens files and the like while it is read
            self.fingerprint = now

    @property
    def trust(self) -> _Trust:
        return self.trusts.setdefault(os.getpid(), _Trust())


class _Trust:
    """How far one process has come in finding out whether a dataset may be kept."""

    def __init__(self) -> None:
        self.has_begun = False
        self.num_proved = 0
        self.num_bytes = 0  # of these
        self.fingerprint: dict[str, Any] = {}  # the dataset after its first sample: reading must not change it


class SampleReader:
    """One process, one epoch."""

    def __init__(self, dataset: Any, keeping: SampleCacheState) -> None:
        self._dataset = dataset
        self._keeping = keeping
        self._arena = keeping.arena
        self._trust = keeping.trust
        self._draws = GeneratorStates(dataset)
        info = get_worker_info()
        self._writer = info.id if info is not None else -1
        self._compared: Counter[int] = Counter()
        self._num_batches = 0
        self._must_compare = False
        self._before: States | None = None  # of the generators, when this batch first asked the dataset
        self._made: list[tuple[int, SamplePayload]] = []  # in this batch: kept once it has drawn nothing

    @property
    def is_proved(self) -> bool:
        """Samples are kept from here on."""
        return self._trust.num_proved >= _PROVED

    def begin_batch(self) -> bool:
        """False: the loader goes on without us."""
        if self._arena.reason:
            self._arena.let_go()
            return False
        self._before = None
        self._made.clear()
        self._num_batches += 1
        self._must_compare = self._num_batches % _EVERY == 0
        if self.is_proved:
            changed = difference(self._trust.fingerprint, _fingerprint(self._dataset))
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
                self._before = self._draws.states()
        except Exception as fault:
            self._arena.drop(f"{type(fault).__name__}: {fault}")
            return self._dataset[index]
        sample = self._dataset[index]  # what it raises is the script's own
        try:
            self._judge(index, sample)
        except UnkeepableError as refusal:
            self._arena.drop(str(refusal))
        except Exception as fault:
            self._arena.drop(f"{type(fault).__name__}: {fault}")
        return sample

    def end_batch(self) -> None:
        """Generators are looked at once for a batch: to read their states takes as long as to make a small sample."""
        try:
            if self._before is None or self._arena.reason:
                return
            if self._draws.have_moved(self._before):
                self._arena.drop(DRAWN)
                return
            for index, payload in self._made:
                if not self._arena.put(index, payload, self._writer) and not len(self._arena):
                    self._arena.drop("memory is nearly full")
        except Exception as fault:
            self._arena.drop(f"{type(fault).__name__}: {fault}")

    def _entry(self, index: Any) -> ArenaEntry | None:
        """None: the dataset must be asked."""
        is_usable = type(index) is int and index in self._arena and self.is_proved
        entry = self._arena.entry(index) if is_usable and not self._arena.reason else None
        if entry is None or self._must_compare or self._compared[entry.writer] < _COMPARED:
            return None
        return entry

    # --- a sample that the dataset gave ------------------------------------------------------------------------------

    def _judge(self, index: Any, sample: Any) -> None:
        if self._arena.reason or type(index) is not int or index not in self._arena:
            return
        if self.is_proved:
            self._compare_or_keep(index, pack(sample))
        elif self._before is not None and self._draws.have_moved(self._before):
            self._arena.drop(DRAWN)
        else:
            self._prove(index, sample)

    def _prove(self, index: int, sample: Any) -> None:
        trust = self._trust
        if not trust.has_begun:  # the first may open files, or read them
            trust.has_begun = True
            self._draws, self._before = GeneratorStates(self._dataset), None
            trust.fingerprint = _fingerprint(self._dataset)
            return
        if changed := difference(trust.fingerprint, _fingerprint(self._dataset)):
            self._arena.drop(f"reading a sample changes {changed} of the dataset")
            return
        payload = pack(sample)
        if reason := self._second_time(index, sample, payload):
            self._arena.drop(reason)
            return
        trust.num_proved += 1
        trust.num_bytes += sum(map(len, payload.pieces))
        if trust.num_proved == _PROVED:
            self._settle()

    def _second_time(self, index: int, sample: Any, payload: SamplePayload) -> str:
        """Why the same question is not answered alike; "" if it is. Leaves the random numbers as they were."""
        before = self._draws.states()
        again = self._dataset[index]
        if self._draws.have_moved(before):
            self._draws.restore(before)
            return DRAWN
        if not pack(again).is_same(payload):
            return "a sample comes out otherwise when it is asked for again"
        if (_memory_of(sample) & _memory_of(again)) - _watched_memory(self._dataset):
            return "its samples are parts of its own memory, which the script may change"
        return ""

    def _settle(self) -> None:
        """Whether all of the samples have room."""
        wanted = 1.1 * self._trust.num_bytes / _PROVED * len(self._dataset)
        if wanted > self._arena.most_bytes:
            room = f"{self._arena.most_bytes / 1e9:.2g} GB are safe to take"
            self._arena.drop(f"all of its samples would need {wanted / 1e9:.2g} GB of memory, and {room}")
        elif self._writer < 0 and self._keeping.fingerprint is None:
            self._keeping.fingerprint = look_closely(self._dataset)

    def _compare_or_keep(self, index: int, payload: SamplePayload) -> None:
        entry = self._arena.entry(index)
        if entry is None:
            self._made.append((index, payload))
        elif self._arena.payload(entry).is_same(payload):
            self._compared[entry.writer] += 1
            self._must_compare = False
        else:
            self._arena.drop("a sample came out otherwise than before")


def _fingerprint(dataset: Any) -> dict[str, Any]:
    """With the class's own numbers: a counter may stand there."""
    own = {f"{type(dataset).__name__}.{k}": v for k, v in vars(type(dataset)).items() if isinstance(v, _PLAIN)}
    return {**look(dataset, 2), **own}


def _watched_memory(dataset: Any) -> set[int]:
    """Of tensors in the portrait: a change of any view of them is a change of theirs, and counted by torch."""
    return set().union(*(_memory_of(value) for _, value in walk(dataset, 2) if isinstance(value, torch.Tensor)))


def _memory_of(sample: Any) -> set[int]:
    """Where the parts of a sample lie that can be changed in place."""
    if isinstance(sample, dict):
        return {id(sample)}.union(*map(_memory_of, sample.values()))
    if isinstance(sample, tuple):
        return set().union(*map(_memory_of, sample))
    if isinstance(sample, list):
        return {id(sample)}.union(*map(_memory_of, sample))
    if hasattr(sample, "untyped_storage"):
        return {sample.untyped_storage().data_ptr()} if sample.numel() else set()
    return {sample.ctypes.data} if hasattr(sample, "ctypes") and sample.size else set()
