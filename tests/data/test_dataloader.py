"""slipstream.DataLoader gives torch's batches in torch's order with every choice."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info

import slipstream
from slipstream.data import dataloader
from slipstream.data.dataloader import LoaderChoice
from slipstream.data.samples.serialise import pack
from slipstream.seams.loader import read_loader

NUM = 200


class Made(Dataset[Any]):
    offset = 0.0

    def __init__(self) -> None:
        self.scale = 1.0

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        made = np.full(3, index, dtype=np.float32) * self.scale
        return made, index, -1 if info is None else info.id


class Wanting:
    """Replaces the decision of LoaderTrial, because a step without work would always want all workers."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, load_s: float, step_s: float, num_cores: int) -> tuple[int, str]:
        return self.count, "the test says so"


def epochs(loader: Any, number: int = 3, between: Any = None) -> tuple[list[Any], list[int]]:
    """The batches without the workers' numbers, followed by random numbers, and the workers' numbers."""
    batches, makers = [], []
    torch.manual_seed(3)
    for epoch in range(number):
        for x, y, maker in loader:
            batches.append((x, y))
            makers += maker.tolist()
        if between is not None:
            between(loader.dataset, epoch)
    return [*batches, torch.rand(2)], makers


def are_same(ours: list[Any], bare: list[Any]) -> bool:
    return len(ours) == len(bare) and all(pack(a).is_same(pack(b)) for a, b in zip(ours, bare, strict=True))


@pytest.fixture
def two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.data.dataloader.num_wanted", Wanting(2))
    monkeypatch.setattr("slipstream.data.dataloader.BETTER", 1e9)


def test_importing_slipstream_does_not_import_torch() -> None:
    code = "import sys, slipstream; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert issubclass(slipstream.DataLoader, TorchLoader)
    with pytest.raises(AttributeError, match="no attribute 'Loader'"):
        slipstream.Loader  # noqa: B018


def test_a_batch_that_differs_is_replaced_by_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = TensorDataset(torch.randn(50, 3), torch.arange(50), torch.zeros(50))
    bare, _ = epochs(TorchLoader(dataset, batch_size=8))
    loader = slipstream.DataLoader(dataset, batch_size=8)
    monkeypatch.setattr("slipstream.data.samples.batch_fetch.gather_of", lambda dataset: lambda indices: indices)
    assert are_same(epochs(loader)[0], bare)
    assert loader.choice.reason == "a batch that was indexed at once differs from torch's"


@pytest.mark.parametrize("how", [{"shuffle": True}, {"drop_last": True}], ids=str)
def test_workers_take_over_during_an_epoch_without_changing_batches(two_workers: None, how: Any) -> None:
    bare, _ = epochs(TorchLoader(Made(), batch_size=7, **how))
    loader = slipstream.DataLoader(Made(), batch_size=7, **how)
    assert loader.choice.how == "undecided"
    ours, makers = epochs(loader)
    assert are_same(ours, bare)
    assert loader.choice.how == "workers" and loader.choice.num_workers == 2
    assert makers[: 7 * 8] == [-1] * 56 and set(makers[7 * 14 :]) == {0, 1}, "plain at first, then by workers"


def test_the_scripts_generator_ends_in_the_same_state(two_workers: None) -> None:
    bare, ours = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    one = epochs(TorchLoader(Made(), 7, shuffle=True, generator=bare))[0]
    assert are_same(epochs(slipstream.DataLoader(Made(), 7, shuffle=True, generator=ours))[0], one)
    assert torch.equal(bare.get_state(), ours.get_state())


def test_a_fast_loader_gets_no_workers(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("slipstream.data.dataloader.num_wanted", Wanting(0))
    loader = slipstream.DataLoader(Made(), batch_size=7)
    with caplog.at_level(logging.INFO, "slipstream"):
        _, makers = epochs(loader)
    assert set(makers) == {-1} and loader.choice.how == "plain"
    assert [record.getMessage() for record in caplog.records] == ["DataLoader: plain, because the test says so"]


def test_arrays_are_indexed_at_once() -> None:
    dataset = TensorDataset(torch.randn(50, 3), torch.arange(50), torch.zeros(50))
    bare, _ = epochs(TorchLoader(dataset, batch_size=8, shuffle=True))
    loader = slipstream.DataLoader(dataset, batch_size=8, shuffle=True)
    assert loader.choice.how == "gather"
    assert are_same(epochs(loader)[0], bare)


def test_given_arguments_are_kept() -> None:
    loader = slipstream.DataLoader(Made(), 7, num_workers=1, prefetch_factor=3)
    assert (loader.num_workers, loader.prefetch_factor, loader.choice) == (
        1,
        3,
        LoaderChoice("plain", 0, "num_workers is given"),
    )
    assert set(epochs(loader, 1)[1]) == {0}
    plain = slipstream.DataLoader(Made(), 7, num_workers=0)
    assert set(epochs(plain, 2)[1]) == {-1}


def test_worker_arguments_are_used_once_workers_start(two_workers: None) -> None:
    given = {"prefetch_factor": 3, "persistent_workers": False, "timeout": 60, "multiprocessing_context": "fork"}
    loader = slipstream.DataLoader(Made(), 7, pin_memory=False, **given)
    epochs(loader, 2)
    worker_loader = loader._worker_loader
    assert (
        worker_loader.prefetch_factor,
        worker_loader.persistent_workers,
        worker_loader.timeout,
        worker_loader.num_workers,
    ) == (3, False, 60, 2)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from range(9)


class Order:
    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Any:
        yield from reversed(range(20))


def test_iterable_datasets_and_custom_samplers_get_no_workers() -> None:
    assert "iterable dataset" in slipstream.DataLoader(Stream()).choice.reason
    loader = slipstream.DataLoader(Made(), 5, sampler=Order())
    assert "order" in loader.choice.reason and len(epochs(loader, 1)[0]) == 5
    assert [int(one) for batch in slipstream.DataLoader(Stream(), 3) for one in batch] == list(range(9))


def test_workers_see_a_change_of_the_dataset_between_epochs(two_workers: None) -> None:
    def scale(dataset: Any, epoch: int) -> None:
        dataset.scale = 2.0 + epoch

    bare, _ = epochs(TorchLoader(Made(), 7), between=scale)
    ours, makers = epochs(slipstream.DataLoader(Made(), 7), between=scale)
    assert are_same(ours, bare) and set(makers[NUM:]) == {0, 1}


def test_two_iterators_at_once_do_not_share_batches(two_workers: None) -> None:
    loader = slipstream.DataLoader(Made(), 7)
    epochs(loader, 1)
    pairs = [(a[1].tolist(), b[1].tolist()) for a, b in zip(loader, loader, strict=True)]
    assert all(one == other for one, other in pairs) and sum(len(one) for one, _ in pairs) == NUM


def test_an_unfinished_epoch_is_followed_by_a_complete_one(two_workers: None) -> None:
    loader = slipstream.DataLoader(Made(), 7)
    epochs(loader, 1)
    for _ in loader:
        break
    assert torch.cat([y for _, y, _ in loader]).tolist() == list(range(NUM))


def test_an_obstacle_to_workers_is_reported(two_workers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataloader, "obstacle", lambda arguments, count: "the dataset holds an open file")
    loader = slipstream.DataLoader(Made(), 7)
    _, makers = epochs(loader)
    assert set(makers) == {-1} and loader.choice == LoaderChoice(
        "plain", 0, "the dataset holds an open file", loader.choice.load_ms, loader.choice.step_ms
    )


class Drawing(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(()).item(), threading.current_thread() is threading.main_thread()


@pytest.fixture
def threads() -> Iterator[None]:
    """Removes the patches after the test, because they last until the process ends."""
    yield
    dataloader._patches().close()
    dataloader._patches.cache_clear()
    dataloader._threads.cache_clear()


def drawn(loader: Any) -> tuple[list[Any], list[bool]]:
    torch.manual_seed(4)
    read = [batch for _ in range(2) for batch in loader]
    return [[x.tolist(), noise.tolist()] for x, noise, _ in read] + [torch.rand(2).tolist()], [
        bool(flag) for *_, flags in read for flag in flags
    ]


@pytest.mark.usefixtures("threads")
def test_threads_build_the_batches_of_as_many_workers() -> None:
    loader = slipstream.DataLoader(Drawing(), batch_size=4, shuffle=True, thread_workers=2)
    assert loader.choice == LoaderChoice("threads", 0, "thread_workers is 2")
    assert read_loader(loader, 0, None, None).num_threads == 2
    batches, is_main = drawn(loader)
    assert not any(is_main) and loader.choice.how == "threads"
    # Without persistent workers torch draws the seed of the workers once an epoch, as threads do.
    assert batches == drawn(TorchLoader(Drawing(), batch_size=4, shuffle=True, num_workers=2))[0]


@pytest.mark.usefixtures("threads")
def test_dataset_that_threads_cannot_read_is_read_without_them() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(range(4))

    loader = slipstream.DataLoader(Stream(), thread_workers=2)
    assert (loader.choice.how, loader.choice.reason) == (
        "plain",
        "an iterable dataset yields its samples one at a time",
    )
    assert [int(batch) for batch in loader] == [0, 1, 2, 3]

    class Locked(Drawing):
        def __reduce__(self) -> Any:
            raise TypeError("not to be copied")

    loader = slipstream.DataLoader(Locked(), batch_size=4, thread_workers=2)
    assert len(list(loader)) == 10 and loader.choice.how == "plain"


def test_script_with_threads_ends_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nimport slipstream\nfrom torch.utils.data import TensorDataset\n"
        "loader = slipstream.DataLoader(TensorDataset(torch.arange(40)), batch_size=4, thread_workers=2)\n"
        "print(next(iter(loader))[0].tolist())\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 1, 2, 3]\n", "")
