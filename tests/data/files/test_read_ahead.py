from __future__ import annotations

import os
import pickle
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Sampler, Subset
from torch.utils.data._utils import worker

from slipstream.data.files import read_ahead, readahead_thread
from slipstream.data.files.index_to_path import learn_paths
from slipstream.data.files.read_ahead import draws_at_once
from slipstream.data.files.readahead_thread import ReadaheadThread

Applied = Callable[..., Any]
NUM_FILES = 48


class Files(Dataset[Any]):
    """Has tuples with a path, as torchvision's folders. A sample holds a random number of the process that reads it."""

    def __init__(self, folder: Path, missing: int = -1) -> None:
        self.samples = [(str(folder / f"{number:03}.bin"), number % 3) for number in range(NUM_FILES)]
        for number, (path, _) in enumerate(self.samples):
            if number != missing:
                Path(path).write_bytes(bytes([number]) * 5000)

    def __len__(self) -> int:
        return NUM_FILES

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        with open(path, "rb") as file:
            return torch.tensor(list(file.read(3))), label, torch.rand(())


class Named(Files):
    """Has names relative to a folder, without their suffix, and a second file for each sample."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        self.names = np.array([f"{number:03}" for number in range(NUM_FILES)])
        for name in self.names:
            (folder / f"{name}.mask").write_bytes(b"m")

    def __getitem__(self, index: int) -> Any:
        (self.folder / f"{self.names[index]}.mask").read_bytes()
        return super().__getitem__(index)


def read(dataset: Any, num_epochs: int = 2, **arguments: Any) -> Any:
    torch.manual_seed(11)
    loader = DataLoader(dataset, 4, **{"shuffle": True, **arguments})
    batches = [[x.tolist() for x in batch] for _ in range(num_epochs) for batch in loader]
    return batches, torch.get_rng_state().tolist()


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)


# --- which files are requested ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_files_of_upcoming_batches_are_requested_before_the_batches_are_drawn(
    applied: Applied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(readahead_thread, "advise", lambda path: asked.append(path) or 100)
    dataset = Files(tmp_path)
    torch.manual_seed(3)
    order = [index for batch in DataLoader(range(NUM_FILES), 4, shuffle=True) for index in batch.tolist()]  # type: ignore[arg-type]
    with applied(read_ahead=3) as context:
        torch.manual_seed(3)
        iterator = iter(DataLoader(dataset, 4, shuffle=True, num_workers=num_workers))
        state = vars(iterator)[read_ahead._STATE]
        num_taken = 0
        while state.is_watching:
            next(iterator)
            num_taken += 1
        wait_until(lambda: bool(context.changes) and state.adviser.is_idle())
        num_drawn = num_taken + 2 * num_workers  # workers prefetch two batches each
        ahead = [dataset.samples[index][0] for index in order[4 * num_drawn : 4 * (num_drawn + 3)]]
        assert len(ahead) == 12 and set(ahead) <= set(asked)
        assert not {dataset.samples[index][0] for index in order[4 * (num_drawn + 3) :]} & set(asked)
        list(iterator)
        wait_until(state.adviser.is_idle)
        assert len(asked) == len(set(asked)) <= NUM_FILES
        reference = weakref.ref(iterator)
        del iterator
        assert reference() is None  # the thread holds neither the iterator nor its loader
    assert context.changes == ["read_ahead: files of Files are read 3 batches ahead"] and not context.declined


def is_in_memory(path: str) -> bool:
    handle = os.open(path, os.O_RDONLY)
    try:
        return os.preadv(handle, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False
    finally:
        os.close(handle)


def forget(path: str) -> None:
    handle = os.open(path, os.O_RDWR)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="needs a system that says what lies in memory")
def test_advise_reads_a_file_into_the_page_cache(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    Path(path).write_bytes(os.urandom(300_000))
    try:
        for _ in range(50):  # the system does not always drop new pages at once
            forget(path)
            if not is_in_memory(path):
                break
            time.sleep(0.02)
        else:
            pytest.skip("this file system keeps its files in memory")
    except OSError:
        pytest.skip("this file system does not say what lies in memory")
    assert readahead_thread.advise(path) == 300_000
    wait_until(lambda: is_in_memory(path))


def test_unreadable_files_are_ignored(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert [readahead_thread.advise(str(tmp_path / name)) for name in ("missing", "pipe", "")] == [0, 0, 0]
    (tmp_path / "file").write_bytes(bytes(2**21))
    handle = os.open(tmp_path / "file", os.O_RDONLY)
    readahead_thread.read(handle, 2**22)
    assert os.read(handle, 1) == b""
    os.close(handle)


def test_no_more_bytes_than_the_budget_are_requested_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(readahead_thread, "advise", lambda path: asked.append(int(path)) or 60)
    adviser = ReadaheadThread(num_in_flight=0, budget=100)
    adviser.paths = [str]
    for batch in range(6):
        adviser.announce([batch])
    adviser.start(None, [], lambda paths: None)
    for num_begun in range(3):
        wait_until(lambda: len(asked) == 2 + num_begun and adviser.is_idle())  # noqa: B023
        adviser.begin()
    wait_until(lambda: len(asked) == 5 and adviser.is_idle())
    assert asked == [0, 1, 2, 3, 4]
    adviser.end()
    assert adviser._thread is not None
    adviser._thread.join(5)
    assert not adviser._thread.is_alive()


# --- where the files are ---------------------------------------------------------------------------------------------


def notes_of(paths: list[list[str]], at: list[list[int]]) -> Any:
    return [(indices, [path for index in indices for path in paths[index]]) for indices in at]


def test_paths_are_found_in_attributes_of_the_dataset(tmp_path: Path) -> None:
    files = Named(tmp_path)
    both = [[f"{tmp_path}/{number:03}.mask", f"{tmp_path}/{number:03}.bin"] for number in range(NUM_FILES)]
    found = learn_paths(files, notes_of(both, [[5, 40, 7], [9, 1]]))
    assert {tuple(sorted(path(index) for path in found)) for index in (0, 11)} == {
        tuple(sorted(both[0])),
        tuple(sorted(both[11])),
    }
    assert learn_paths(files, notes_of(both, [[5, 40]])) == []  # two samples are not enough
    wrong = notes_of(both, [[5, 40, 7], [9, 1]])
    wrong[1][1][0], wrong[1][1][1] = "elsewhere", "elsewhere too"
    assert learn_paths(files, wrong) == []


@pytest.mark.parametrize("kind", ["subset", "joined", "table", "rows", "wrapped", "list"])
def test_paths_through_other_datasets(tmp_path: Path, kind: str) -> None:
    files = Files(tmp_path)
    paths = [path for path, _ in files.samples]
    dataset: Any = files
    if kind == "subset":
        dataset = Subset(files, list(reversed(range(NUM_FILES))))
        paths.reverse()
    elif kind == "joined":
        dataset, paths = ConcatDataset([files, files]), paths + paths
    elif kind == "table":
        frame = pytest.importorskip("pandas").DataFrame({"label": range(NUM_FILES), "file": paths})
        dataset = Files(tmp_path)
        dataset.samples, dataset.frame = [], frame
    elif kind == "rows":
        dataset.samples = [{"file": Path(path), "label": 1} for path in paths]
    elif kind == "wrapped":
        dataset = Subset(files, range(NUM_FILES))
    elif kind == "list":
        dataset = paths
    picked = [3, len(paths) - 2, 8, 20]
    (found,) = learn_paths(dataset, notes_of([[path] for path in paths], [picked[:2], picked[2:]]))
    assert [found(index) for index in range(len(paths))] == paths


# --- nothing changes for the script ----------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}], ids=str)
def test_same_batches_and_random_numbers(applied: Applied, tmp_path: Path, arguments: Any) -> None:
    dataset = Named(tmp_path)
    bare = read(dataset, **arguments)
    with applied(read_ahead=4, buffer_reuse=True) as context:
        assert read(dataset, **arguments) == bare
        wait_until(lambda: any("read_ahead: files of Named" in change for change in context.changes))


def test_works_together_with_persistent_workers(applied: Applied, tmp_path: Path) -> None:
    dataset = Files(tmp_path)
    bare = read(dataset, num_workers=2)
    with applied(persistent_workers=True, read_ahead=4, buffer_reuse=True) as context:
        assert read(dataset, num_workers=2) == bare
    assert len(context.changes) == 3


class Downwards(Sampler[int]):
    def __iter__(self) -> Any:
        for index in reversed(range(NUM_FILES)):
            torch.rand(())  # drawn when the index is requested
            yield index

    def __len__(self) -> int:
        return NUM_FILES


def test_a_custom_sampler_is_not_asked_early(applied: Applied, tmp_path: Path) -> None:
    dataset = Files(tmp_path)
    assert not draws_at_once(Downwards())
    for num_workers in (0, 1):
        bare = read(dataset, shuffle=False, sampler=Downwards(), num_workers=num_workers)
        with applied(read_ahead=4) as context:
            assert read(dataset, shuffle=False, sampler=Downwards(), num_workers=num_workers) == bare
        assert any("only one batch at a time" in why for why in context.declined) == (num_workers == 0)


def test_a_dataset_without_files_is_declined(applied: Applied, numbers: Any) -> None:
    bare = read(numbers(24, noise=True), num_workers=1)
    with applied(read_ahead=4) as context:
        assert read(numbers(24, noise=True), num_workers=1) == bare
        wait_until(lambda: bool(context.declined))
    assert "does not determine which files" in context.declined[0] and not context.changes


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_missing_file_raises_in_the_script(
    applied: Applied, tmp_path: Path, message_of: Callable[..., str], num_workers: int
) -> None:
    dataset = Files(tmp_path, missing=30)

    def play() -> str:
        iterator = iter(DataLoader(dataset, 4, num_workers=num_workers))
        message = message_of(lambda: list(iterator), FileNotFoundError)
        if num_workers:
            iterator._shutdown_workers()  # type: ignore[attr-defined]
        return message

    bare = play()
    with applied(read_ahead=4):
        assert play() == bare


def test_spawned_workers_find_torchs_own_loop(applied: Applied) -> None:
    with applied(read_ahead=4) as context:
        assert b"_worker_loop" in pickle.dumps(worker._worker_loop)
        DataLoader(list(range(8)), 4, num_workers=1, multiprocessing_context="spawn")  # type: ignore[arg-type]
    assert "not forked" in context.declined[0]
