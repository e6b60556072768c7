"""Added workers and persistent workers must not change what the script sees."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset


def read(loader: Any, num_epochs: int = 3, draws: bool = True) -> list[Any]:
    """Batches of several epochs, with numbers that the script's own generator draws in between."""
    seen: list[Any] = []
    for _ in range(num_epochs):
        for batch in loader:
            seen.append(batch.tolist())
            if draws:
                seen.append(torch.rand(()).item())  # as dropout does
        seen.append(torch.rand(()).item())
    return seen


class EagerSampler:
    """Draws its order when an iterator is created, and counts how often that happens."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples
        self.num_asked = 0

    def __len__(self) -> int:
        return self.num_samples // 4

    def __iter__(self) -> Any:
        self.num_asked += 1
        order = torch.randperm(self.num_samples).tolist()
        return iter([order[i : i + 4] for i in range(0, len(order), 4)])


def shuffled(dataset: Any) -> Any:
    return DataLoader(dataset, batch_size=4, shuffle=True)


def with_generator(dataset: Any) -> Any:
    return DataLoader(dataset, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(7))


def eager(dataset: Any) -> Any:
    return DataLoader(dataset, batch_sampler=EagerSampler(len(dataset)))


@pytest.mark.parametrize("build", [shuffled, with_generator, eager])
def test_added_workers_give_the_same_batches(applied: Any, numbers: Any, build: Any) -> None:
    torch.manual_seed(0)
    bare = read(build(numbers()))
    with applied(workers=2) as context:
        torch.manual_seed(0)
        assert read(build(numbers())) == bare
    [change] = context.changes
    assert change.startswith("workers: num_workers 0 -> 2 at test_persistent_epochs.py:")


def test_model_built_after_the_iterator_gets_the_same_weights(applied: Any, numbers: Any) -> None:
    """Torch's workers would draw the shuffle's seed at iter(), before these weights."""

    def script() -> tuple[list[float], list[Any]]:
        torch.manual_seed(0)
        first, second = shuffled(numbers()), shuffled(numbers(8))
        batches = iter(first)
        weights = torch.nn.Linear(2, 2).weight.flatten().tolist()
        pairs = [(a.tolist(), b.tolist()) for a, b in zip(batches, second, strict=False)]
        return weights, pairs

    bare = script()
    with applied(workers=2):
        assert script() == bare


def test_added_workers_persist_and_end(applied: Any) -> None:
    with applied(workers=2):
        loader = DataLoader(Identities(), batch_size=2)
        epochs = [sorted({int(p) for batch in loader for p in batch}) for _ in range(3)]
        assert os.getpid() not in epochs[0]
        assert epochs[0] == epochs[1] == epochs[2] and len(epochs[0]) == 2
        processes = loader._iterator._workers
        del loader
    assert not any(process.is_alive() for process in processes)


class Identities(Dataset[Any]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        return os.getpid()


@pytest.mark.parametrize("noise", [False, True])
def test_persistent_workers_draw_like_restarted_ones(applied: Any, numbers: Any, noise: bool) -> None:
    """Compares the shuffle, the augmentation in the workers and the main random numbers in every epoch."""

    def build() -> Any:
        return DataLoader(numbers(noise=noise), batch_size=4, shuffle=True, num_workers=2)

    torch.manual_seed(0)
    bare = read(build())
    with applied(persistent_workers=True) as context:
        torch.manual_seed(0)
        loader = build()
        assert loader.persistent_workers
        assert read(loader) == bare
    assert context.changes == [c for c in context.changes if "workers stay between epochs" in c] and context.changes


def test_torch_alone_draws_another_shuffle(numbers: Any) -> None:
    """The module exists because of this difference. If torch removes it, this test fails."""
    epochs = []
    for stay in (False, True):
        torch.manual_seed(0)
        epochs.append(read(DataLoader(numbers(), 4, shuffle=True, num_workers=1, persistent_workers=stay), 2))
    assert epochs[0] != epochs[1]


def test_eager_sampler_is_iterated_as_often_as_with_restarted_workers(applied: Any, numbers: Any) -> None:
    counts = []
    for choices in ({}, {"persistent_workers": True}):
        with applied(**choices):
            sampler = EagerSampler(24)
            read(DataLoader(numbers(), batch_sampler=sampler, num_workers=1), 2)
            counts.append(sampler.num_asked)
    assert counts[0] == counts[1]


def test_an_unfinished_epoch_can_be_restarted(applied: Any, numbers: Any) -> None:
    def script(loader: Any) -> list[Any]:
        seen: list[Any] = []
        for _ in range(3):
            for number, batch in enumerate(loader):
                seen.append(batch.tolist())
                if number == 1:
                    break
            seen.append(torch.rand(()).item())
        return seen

    torch.manual_seed(0)
    bare = script(shuffled(numbers()))
    with applied(workers=2):
        torch.manual_seed(0)
        loader = shuffled(numbers())
        assert script(loader) == bare
        workers = loader._iterator._workers
        script(loader)
        assert loader._iterator._workers is workers  # the same workers served every epoch


def test_two_iterators_of_one_loader_at_once(applied: Any, numbers: Any) -> None:
    def script() -> list[Any]:
        torch.manual_seed(0)
        loader = shuffled(numbers(8))
        nested = [(a.tolist(), b.tolist()) for a in loader for b in loader]
        zipped = [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)]
        return [*nested, *zipped, torch.rand(()).item()]

    bare = script()
    with applied(workers=1):
        assert script() == bare


def test_a_change_of_the_dataset_between_epochs_is_detected(applied: Any, numbers: Any) -> None:
    def script(loader: Any) -> list[Any]:
        torch.manual_seed(0)
        seen: list[Any] = []
        for epoch in range(3):
            loader.dataset.offset = 100 * epoch
            seen += [batch.tolist() for batch in loader]
        return seen

    for choices, num_workers in (({"workers": 2}, 0), ({"persistent_workers": True}, 2)):
        bare = script(DataLoader(numbers(16), 4, num_workers=num_workers))
        with applied(**choices) as context:
            assert script(DataLoader(numbers(16), 4, num_workers=num_workers)) == bare
        assert any("changed offset of the dataset between epochs" in sentence for sentence in context.declined)


def test_a_change_of_contents_between_epochs_is_detected(applied: Any) -> None:
    import numpy as np

    class Rows(Dataset[Any]):
        def __init__(self) -> None:
            self.rows = np.arange(16.0)

        def __len__(self) -> int:
            return 16

        def __getitem__(self, index: int) -> Any:
            return self.rows[index]

    with applied(workers=1) as context:
        loader: Any = DataLoader(Rows(), 4)
        assert [n for batch in loader for n in batch.tolist()] == list(range(16))
        loader.dataset.rows *= 2
        assert [n for batch in loader for n in batch.tolist()] == list(range(0, 32, 2))
    assert any("changed rows of the dataset" in sentence for sentence in context.declined)


def test_workers_restart_if_contents_are_too_large_to_compare(applied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from slipstream.data.workers import dataset_fingerprint

    monkeypatch.setattr(dataset_fingerprint, "_MOST_VALUES", 10)
    with applied(workers=1) as context:
        loader: Any = DataLoader(Identities(), 4)
        loader.dataset.names = ["a"] * 11
        epochs = [{int(p) for batch in loader for p in batch} for _ in range(2)]
    assert epochs[0].isdisjoint(epochs[1]) and any("too large" in sentence for sentence in context.declined)


def test_at_most_four_loaders_have_added_workers(applied: Any, numbers: Any) -> None:
    def read_one(loader: Any) -> list[float]:
        return [row[0] for batch in loader for row in batch.tolist()]

    with applied(workers=1) as context:
        loaders = [DataLoader(numbers(8), 2) for _ in range(5)]
        for _ in range(2):
            assert [read_one(loader) for loader in loaders] == [list(map(float, range(8)))] * 5
        assert [loader.num_workers for loader in loaders] == [1, 1, 1, 1, 0]
        del loaders[0]
        fresh = DataLoader(numbers(8), 2)
        assert read_one(fresh) == list(map(float, range(8))) and fresh.num_workers == 1
    assert any("four other loaders already have added workers" in sentence for sentence in context.declined)


def test_a_change_of_the_dataset_during_an_epoch_removes_added_workers(applied: Any, numbers: Any) -> None:
    with applied(workers=2) as context:
        loader = DataLoader(numbers(32), 4)
        for _batch in loader:
            loader.dataset.offset += 1
        expected = [[float(i + loader.dataset.offset), 0.0] for i in range(32)]
        assert [row for batch in loader for row in batch.tolist()] == expected
        assert loader.num_workers == 0
    assert any("while it is read" in sentence for sentence in context.declined)


def test_the_loader_works_without_workers_that_cannot_start(
    applied: Any, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.multiprocessing

    torch.manual_seed(0)
    bare = read(shuffled(numbers()))

    class Process(torch.multiprocessing.Process):  # type: ignore[name-defined, misc]
        def start(self) -> None:
            raise OSError(12, "Cannot allocate memory")

    with applied(workers=2) as context:
        torch.manual_seed(0)
        loader = shuffled(numbers())
        monkeypatch.setattr(torch.multiprocessing, "Process", Process)
        assert read(loader) == bare
        monkeypatch.undo()
    assert any("could not be started (OSError" in sentence for sentence in context.declined)


def test_workers_that_start_only_partly_end_silently(
    applied: Any, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.multiprocessing

    started: list[Any] = []

    class Process(torch.multiprocessing.Process):  # type: ignore[name-defined, misc]
        def start(self) -> None:
            if started:
                raise OSError(12, "Cannot allocate memory")
            started.append(self)
            super().start()

    noise: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", noise.append)
    with applied(workers=2):
        loader = shuffled(numbers())
        with monkeypatch.context() as patch:
            patch.setattr(torch.multiprocessing, "Process", Process)
            assert len(read(loader, 1, draws=False)) == 7
        gc.collect()
        assert not started[0].is_alive()
    assert not noise


@pytest.mark.parametrize("kept", [False, True])
def test_workers_do_not_stay_if_the_dataset_cannot_be_examined(
    applied: Any, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    from slipstream.data.workers import persistent_epochs

    examine, epochs = persistent_epochs.fingerprint_for_workers, []

    def fail(*args: Any) -> Any:
        raise ReferenceError("weakly-referenced object no longer exists")

    with applied(**({"persistent_workers": True} if kept else {"workers": 1})) as context:
        loader: Any = DataLoader(Identities(), 4, num_workers=1 if kept else 0)
        for function in (examine, fail, examine):
            monkeypatch.setattr(persistent_epochs, "fingerprint_for_workers", function)
            epochs.append({int(p) for batch in loader for p in batch})
    assert epochs[0].isdisjoint(epochs[1]) and any("cannot be checked" in sentence for sentence in context.declined)
    assert epochs[1].isdisjoint(epochs[2]) if kept else epochs[1] == epochs[2] == {os.getpid()}


class Loading(Dataset[Any]):
    """A dataset that reads another loader in each sample."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> float:
        return float(sum(batch.sum() for batch in self.inner))


def test_a_loader_inside_a_worker_has_no_workers(applied: Any, numbers: Any) -> None:
    with applied(workers=2):
        inner = DataLoader(numbers(8), 1)
        assert inner.num_workers == 2
        assert [batch.tolist() for batch in DataLoader(Loading(inner), 2)] == [[28.0, 28.0]] * 4


class Failing(Dataset[Any]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        if index == 9:
            raise KeyError("the ninth")
        return index


def test_an_exception_of_the_dataset_is_raised_for_its_batch(applied: Any, message_of: Any) -> None:
    with applied(workers=2):
        batches = iter(DataLoader(Failing(), 2))
        assert [next(batches).tolist() for _ in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
        assert "the ninth" in message_of(lambda: next(batches), KeyError)
        assert next(batches).tolist() == [10, 11]
        batches._shutdown_workers()  # the traceback forms a reference cycle, so workers would end late


def test_a_loader_in_a_reference_cycle_ends_without_waiting(
    applied: Any, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch alone finds its queues closed, waits five seconds for each worker and kills it."""
    import gc

    with applied(workers=1):
        holder: dict[str, Any] = {"loader": shuffled(numbers())}
        holder["self"] = holder
        list(holder["loader"])
        (process,) = holder["loader"]._iterator._workers
        monkeypatch.setattr(process, "terminate", lambda: pytest.fail("the worker had to be killed"))
        del holder
        gc.collect()
        assert process.exitcode == 0


def test_a_loader_that_only_the_loop_references(applied: Any, numbers: Any) -> None:
    with applied(workers=1):
        assert [row[0] for batch in DataLoader(numbers(8), 2) for row in batch.tolist()] == list(range(8))


OUTSIDE = {"offset": 0}


class Outside(Dataset[Any]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        return moved(index)


def moved(index: int) -> int:
    return index + OUTSIDE["offset"]


def test_workers_restart_if_a_global_variable_changes_between_epochs(applied: Any) -> None:
    OUTSIDE["offset"] = 0
    with applied(workers=1) as context:
        loader: Any = DataLoader(Outside(), 4)
        assert [n for batch in loader for n in batch.tolist()] == list(range(16))
        OUTSIDE["offset"] = 100
        assert [n for batch in loader for n in batch.tolist()] == list(range(100, 116))
    assert any("changed OUTSIDE['offset'] outside of the dataset" in sentence for sentence in context.declined)


def test_a_global_variable_that_changes_during_an_epoch_removes_added_workers(applied: Any) -> None:
    OUTSIDE["offset"] = 0
    with applied(workers=1) as context:
        loader: Any = DataLoader(Outside(), 4)
        for _batch in loader:
            OUTSIDE["offset"] += 1
        assert [n for batch in loader for n in batch.tolist()] == list(range(4, 20))
        assert loader.num_workers == 0
    assert any("while it is read" in sentence for sentence in context.declined)
