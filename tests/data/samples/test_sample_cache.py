"""Cached samples equal those of the dataset. If they would not, no sample is cached."""

from __future__ import annotations

import gc
import logging
import mmap
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, get_worker_info

from slipstream.data.samples import cache_reader, sample_cache, shared_arena
from slipstream.data.samples.serialise import pack
from slipstream.machine import free_memory
from slipstream.machine.cgroups import CgroupLimits

NUM = 144


class Made(Dataset[Any]):
    """Samples that take work and are always the same. Reads are counted in shared memory, so that workers count too. It
    is a kind of object that no fingerprint covers."""

    def __init__(self, tally: mmap.mmap | None = None) -> None:
        self.scale = 3.0
        self.labels = torch.arange(NUM)
        self.tally = tally

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, index: int) -> Any:
        if self.tally:
            self.tally[index] += 1
        image = np.full((3, 4), index, dtype=np.float32) * self.scale
        return {"image": torch.from_numpy(image.copy()), "label": self.labels[index], "name": f"{index}.jpg"}


def new_tally() -> mmap.mmap:
    return mmap.mmap(-1, NUM)


def calls(tally: mmap.mmap) -> int:
    return sum(tally[:])


def epochs(dataset: Any, number: int = 3, between: Any = None, **how: Any) -> list[Any]:
    """All batches, and the random numbers that are drawn after them."""
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    loader = DataLoader(dataset, batch_size=8, **how)
    batches = []
    for epoch in range(number):
        batches += list(loader)
        if between is not None:
            between(dataset, epoch)
    return [*batches, torch.rand(2), np.random.rand(), random.random()]


def are_same(ours: list[Any], bare: list[Any]) -> bool:
    return len(ours) == len(bare) and all(pack(a).is_same(pack(b)) for a, b in zip(ours, bare, strict=True))


@pytest.mark.parametrize("how", [{}, {"shuffle": True}, {"num_workers": 2, "shuffle": True}], ids=str)
def test_batches_are_the_same_and_the_dataset_is_rarely_read(applied: Any, how: Any) -> None:
    bare = epochs(Made(), **how)
    tally = new_tally()
    with applied(sample_cache=True) as context:
        ours = epochs(Made(tally), **how)
    assert are_same(ours, bare)
    assert context.declined == [] and len(context.changes) == 1 and "test_sample_cache.py:" in context.changes[0]
    assert NUM <= calls(tally) < 2.5 * NUM, "of three epochs"


def test_persistent_workers_share_the_cache(applied: Any) -> None:
    how = {"num_workers": 2, "shuffle": True, "persistent_workers": True}
    bare = epochs(Made(), **how)
    tally = new_tally()
    with applied(sample_cache=True):
        ours = epochs(Made(tally), **how)
    assert are_same(ours, bare)
    assert calls(tally) < 2 * NUM


def test_added_workers_share_the_cache(applied: Any) -> None:
    bare = epochs(Made(), 3, shuffle=True)
    with applied(sample_cache=True, workers=2) as context:
        ours = epochs(Made(), 3, shuffle=True)
    assert are_same(ours, bare) and len(context.changes) == 2


def test_a_script_may_change_its_samples(applied: Any) -> None:
    def spoil(samples: list[Any]) -> Any:
        for sample in samples:
            sample["image"].add_(1)
            sample.pop("name")
        return torch.stack([sample["image"] for sample in samples])

    bare = epochs(Made(), collate_fn=spoil)
    with applied(sample_cache=True) as context:
        ours = epochs(Made(), collate_fn=spoil)
    assert are_same(ours, bare) and context.changes


def test_a_subset_and_a_second_loader_over_the_same_dataset(applied: Any) -> None:
    tally = new_tally()
    half = Subset(Made(tally), range(0, NUM, 2))
    with applied(sample_cache=True) as context:
        first = epochs(half, 1)
        before = calls(tally)
        again = epochs(half, 1)
    assert are_same(first[:-3], again[:-3]) and context.changes
    assert calls(tally) - before <= 12


# --- datasets that must not be cached --------------------------------------------------------------------------------


class Torchs(Made):
    def __getitem__(self, index: int) -> Any:
        return torch.rand(2) + index


class Rarely(Made):
    def __getitem__(self, index: int) -> Any:
        return torch.ones(2) * (index if index != 40 else np.random.rand())


class OwnGenerator(Made):
    def __init__(self) -> None:
        super().__init__()
        self.parts = [np.random.default_rng(0)]

    def __getitem__(self, index: int) -> Any:
        self.parts[0].random()  # the number is drawn but not used
        return torch.ones(2) * index


class Counts(Made):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __getitem__(self, index: int) -> Any:
        self.count += 1
        return torch.ones(2) * index


class CountsInClass(Made):
    count = 0

    def __getitem__(self, index: int) -> Any:
        type(self).count += 1
        return torch.ones(2) * index


NUMBER_OF_CALLS = 0


class CountsGlobally(Made):
    def __getitem__(self, index: int) -> Any:
        global NUMBER_OF_CALLS
        NUMBER_OF_CALLS += 1
        return torch.ones(2) * index


class Clock(Made):
    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, time.perf_counter_ns() % 2**40])


class OwnMemory(Made):
    def __init__(self) -> None:
        super().__init__()
        self.table = np.zeros((NUM, 2))

    def __getitem__(self, index: int) -> Any:
        row = self.table[index]
        return torch.from_numpy(row.reshape(2, 1)[:, 0])


class Objects(Made):
    def __getitem__(self, index: int) -> Any:
        return {index}


SEEN: dict[str, int] = {"read": 0}
HITS = np.zeros(NUM)
OWNER = SimpleNamespace(generator=None)
LOG = logging.getLogger("samples")


class CountsInDict(Made):
    def __getitem__(self, index: int) -> Any:
        SEEN["read"] += 1
        return torch.ones(2) * index


class CountsByIndex(Made):
    """Counts in an array, whose contents leave no sign in its size or identity."""

    def __init__(self) -> None:
        super().__init__()
        self.hits = np.zeros(NUM)

    def __getitem__(self, index: int) -> Any:
        self.hits[index] += 1
        return torch.ones(2) * index


class CountsByIndexOutside(Made):
    def __getitem__(self, index: int) -> Any:
        HITS[index] += 1
        return torch.ones(2) * index


class Prints(Made):
    def __getitem__(self, index: int) -> Any:
        if index == 100:
            print("the hundredth")
        return torch.ones(2) * index


class Logs(Made):
    def __getitem__(self, index: int) -> Any:
        return torch.ones(2) * self._checked(index)

    def _checked(self, index: int) -> int:
        if index == 100:
            LOG.info("the hundredth")
        return index


class Saves(Made):
    folder = "."

    def __getitem__(self, index: int) -> Any:
        return remember(torch.ones(2) * index, index)


def remember(sample: Any, index: int) -> Any:
    if index == 100:
        with open(os.devnull, "w") as file:
            file.writelines([str(index)])
    return sample


class Nonlocal(Made):
    def __init__(self) -> None:
        super().__init__()
        count = 0

        def transform(index: int) -> Any:
            nonlocal count
            count += 1
            return torch.ones(2) * index

        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        return self.transform(index)


class Printing:
    def __call__(self, sample: Any) -> Any:
        print("transformed", file=sys.stderr)
        return sample


class Transformed(Made):
    def __init__(self) -> None:
        super().__init__()
        self.transforms = [Printing()]

    def __getitem__(self, index: int) -> Any:
        return self.transforms[0](torch.ones(2) * index)


class DrawsGlobally(Made):
    """Draws rarely, from a generator that an object outside the dataset holds."""

    def __init__(self) -> None:
        super().__init__()
        OWNER.generator = np.random.default_rng(7)

    def __getitem__(self, index: int) -> Any:
        return torch.ones(2) * (index if index != 40 else OWNER.generator.random())


REFUSED: list[tuple[Any, str]] = [
    (Torchs, "random numbers"),
    (Rarely, "random numbers"),
    (OwnGenerator, "random numbers"),
    (Counts, "changes count"),
    (CountsInClass, "changes CountsInClass.count"),
    (CountsGlobally, "sets a variable outside the function"),
    (CountsInDict, "changes SEEN['read'] outside of the dataset"),
    (CountsByIndex, "changes hits of the dataset"),
    (CountsByIndexOutside, "changes HITS outside of the dataset"),
    (Prints, "Prints.__getitem__ calls print"),
    (Logs, "Logs._checked calls info"),
    (Saves, "remember calls open"),
    (Nonlocal, "transform sets a variable outside"),
    (Transformed, "Printing.__call__ calls print"),
    (DrawsGlobally, "random numbers"),
    (Clock, "differs when it is requested a second time"),
    (OwnMemory, "share memory with the dataset"),
    (Objects, "holds a set"),
    (lambda: TensorDataset(torch.zeros(NUM, 2)), "already in memory"),
]


IN_WORKERS = [(Rarely, "random numbers"), (Counts, "changes count")]
CASES = [(make, why, 0) for make, why in REFUSED] + [(make, why, 1) for make, why in IN_WORKERS]


@pytest.mark.parametrize(("make", "why", "num_workers"), CASES, ids=lambda one: getattr(one, "__name__", ""))
def test_samples_that_must_not_be_cached_are_read_from_the_dataset(
    applied: Any, make: Any, why: str, num_workers: int
) -> None:
    collate: Any = (lambda samples: [sorted(one) for one in samples]) if make is Objects else None
    how = {"num_workers": num_workers, "collate_fn": collate, "shuffle": True, "number": 2}
    CountsInClass.count = 0
    bare_dataset = make()
    bare = epochs(bare_dataset, **how)
    counted, CountsInClass.count = CountsInClass.count, 0
    with applied(sample_cache=True) as context:
        dataset = make()
        ours = epochs(dataset, **how)
    assert are_same(ours, bare) or make is Clock
    assert vars(dataset).get("count") == vars(bare_dataset).get("count") and CountsInClass.count == counted
    assert len(context.declined) == 1 and why in context.declined[0], context.declined


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        yield from range(NUM)


def test_iterable_datasets_and_ready_batches_are_refused() -> None:
    assert "already in memory" in sample_cache.obstacle(DataLoader(list(range(NUM))))  # type: ignore[arg-type]
    assert "iterable" in sample_cache.obstacle(DataLoader(Stream()))
    assert "batches" in sample_cache.obstacle(DataLoader(Made(), batch_size=None))
    spawned = DataLoader(Made(), num_workers=1, multiprocessing_context="spawn")
    assert "spawned" in sample_cache.obstacle(spawned)
    assert sample_cache.obstacle(DataLoader(Made(), num_workers=1, multiprocessing_context="fork")) == ""


# --- datasets that change --------------------------------------------------------------------------------------------


def set_scale(dataset: Any, epoch: int) -> None:
    dataset.scale = 3.0 + epoch


def set_label(dataset: Any, epoch: int) -> None:
    dataset.labels[7] = 1000 + epoch


@pytest.mark.parametrize(("between", "num_workers"), [(set_scale, 0), (set_label, 0), (set_label, 1)])
def test_a_script_that_changes_its_dataset_between_epochs(applied: Any, between: Any, num_workers: int) -> None:
    bare = epochs(Made(), between=between, num_workers=num_workers)
    with applied(sample_cache=True) as context:
        ours = epochs(Made(), between=between, num_workers=num_workers)
    assert are_same(ours, bare)
    assert "the script changed" in context.declined[0]


def test_a_script_that_changes_its_dataset_within_an_epoch(applied: Any) -> None:
    def read() -> list[Any]:
        dataset = Made()
        out = []
        for epoch in range(3):
            for step, batch in enumerate(DataLoader(dataset, batch_size=4)):
                out.append(batch)
                dataset.scale = 5.0 if (epoch, step) >= (1, 5) else 3.0
        return out

    bare = read()
    with applied(sample_cache=True) as context:
        assert are_same(read(), bare)
    assert "scale of the dataset changed while it was read" in context.declined[0]


LEVEL = 1.0
SETTINGS = {"deep": {"level": 1.0}}


class Scaled(Made):
    def __getitem__(self, index: int) -> Any:
        return torch.ones(2) * index * self._level()

    def _level(self) -> float:
        return LEVEL * level_of_settings()


def level_of_settings() -> float:
    return float(SETTINGS["deep"]["level"])


def set_global(value: float) -> None:
    global LEVEL
    LEVEL = value


def set_in_dict(value: float) -> None:
    SETTINGS["deep"]["level"] = value


@pytest.mark.parametrize(("change", "name"), [(set_global, "LEVEL"), (set_in_dict, "SETTINGS['deep']['level']")])
def test_a_script_that_changes_a_global_variable_within_an_epoch(applied: Any, change: Any, name: str) -> None:
    def read() -> list[Any]:
        change(3.0)
        dataset, out = Scaled(), []
        for epoch in range(3):
            for step, batch in enumerate(DataLoader(dataset, batch_size=4)):
                out.append(batch)
                if (epoch, step) == (1, 5):
                    change(5.0)
        return out

    bare = read()
    with applied(sample_cache=True) as context:
        assert are_same(read(), bare)
    assert f"{name} outside of the dataset changed while it was read" in context.declined[0]


def test_functions_that_only_read_variables_outside_are_cached(applied: Any) -> None:
    set_global(2.0)
    bare = epochs(Scaled())
    with applied(sample_cache=True) as context:
        assert are_same(epochs(Scaled()), bare)
    assert context.declined == [] and len(context.changes) == 1


class Files(Made):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = str(folder)

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(np.load(os.path.join(self.folder, f"{index}.npy")))


def test_rewritten_files_are_detected_at_the_start_of_an_epoch(applied: Any, tmp_path: Path) -> None:
    def write(value: float) -> None:
        for index in range(NUM):
            np.save(tmp_path / f"{index}.npy", np.full(3, index + value))

    def read() -> list[Any]:
        write(0.0)
        return epochs(Files(tmp_path), between=lambda dataset, epoch: write(0.5 * epoch), shuffle=True)

    bare = read()
    with applied(sample_cache=True) as context:
        ours = read()
    assert are_same(ours, bare) and "differs from its cached copy" in context.declined[0]


class ByWorker(Made):
    def __getitem__(self, index: int) -> Any:
        info: Any = get_worker_info()
        return torch.tensor([index, info.id])


class BySeed(Made):
    """Draws from a new generator whose seed changes in every epoch."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(np.random.default_rng(torch.initial_seed() % 2**32 + index).random())


@pytest.mark.parametrize("kind", [ByWorker, BySeed])
def test_samples_that_depend_on_worker_or_epoch_are_not_cached(applied: Any, kind: Any) -> None:
    bare = epochs(kind(), num_workers=2, shuffle=True)
    with applied(sample_cache=True) as context:
        ours = epochs(kind(), num_workers=2, shuffle=True)
    assert are_same(ours, bare) and "differs from its cached copy" in context.declined[0]


class Raises(Made):
    def __getitem__(self, index: int) -> Any:
        if index == 20:
            raise KeyError("no such sample")
        return super().__getitem__(index)


def test_an_exception_of_the_dataset_reaches_the_script(applied: Any, message_of: Callable[..., str]) -> None:
    with applied(sample_cache=True) as context:
        message = message_of(lambda: list(DataLoader(Raises(), batch_size=4)), KeyError)
    assert "no such sample" in message and context.declined == []


def num_shelves() -> int:
    """The file descriptors of shared arenas that this process holds."""
    names = (os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
    return sum("slipstream-samples" in name for name in names)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_memory_is_released_when_the_cache_is_dropped(applied: Any, num_workers: int) -> None:
    with applied(sample_cache=True) as context:
        dataset = Rarely()
        epochs(dataset, 2, num_workers=num_workers)
        assert len(context.declined) == 1 and num_shelves() == 0


def test_memory_is_released_with_the_dataset(applied: Any) -> None:
    with applied(sample_cache=True):
        for _ in range(3):  # as folds of a cross-validation
            dataset = Made()
            epochs(dataset, 1)
            assert num_shelves()
            del dataset
            gc.collect()
            assert num_shelves() == 0


def test_a_dataset_that_does_not_fit_is_not_cached(applied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_reader, "free_bytes", lambda: 4000)
    bare = epochs(Made())
    with applied(sample_cache=True) as context:
        assert are_same(epochs(Made()), bare)
    assert "all samples together would need" in context.declined[0] and context.changes == []


def test_nearly_full_memory_is_reported(applied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_arena, "free_bytes", lambda: 10**6)
    monkeypatch.setattr(shared_arena, "total_bytes", lambda: 10**9)
    with applied(sample_cache=True) as context:
        epochs(Made(), 1)
    assert context.declined == ["sample_cache: samples are not cached: memory is nearly full"] and context.changes == []


def test_the_memory_limit_of_a_container_is_used(applied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_arena, "free_bytes", lambda: 2 * 10**9)
    monkeypatch.setattr(free_memory, "read_limits", lambda root: CgroupLimits(memory_bytes=4 * 10**9))
    monkeypatch.setattr(free_memory, "_used_bytes", lambda root: 10**9)  # not of this machine
    machine = type("Machine", (), {"total": 10**12, "available": 9 * 10**11})
    monkeypatch.setattr(free_memory.psutil, "virtual_memory", lambda: machine)
    with applied(sample_cache=True) as context:
        epochs(Made(), 1)
    assert context.declined == [] and len(context.changes) == 1


def test_an_error_in_our_code_does_not_reach_the_script(applied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*args: Any) -> Any:
        raise MemoryError("planted")

    bare = epochs(Made())
    for name in ("sample", "payload", "put"):
        monkeypatch.setattr(cache_reader.SharedArena, name, break_down)
        with applied(sample_cache=True) as context:
            assert are_same(epochs(Made()), bare)
        assert "planted" in context.declined[0]
        monkeypatch.undo()
