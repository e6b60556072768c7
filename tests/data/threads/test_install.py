"""Threads behind a loader: batches, their order and the script's random numbers stay the same."""

from __future__ import annotations

import gc
import random
import signal
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler, SequentialSampler, TensorDataset
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

import slipstream
from slipstream.data.threads.iterator import ThreadedIter

Applied = Callable[..., Any]


class Samples(Dataset[Any]):
    """Sample i is i. With `draws` it also holds random numbers of all three libraries."""

    def __init__(self, draws: bool = False, num_samples: int = 23) -> None:
        self.draws = draws
        self.num_samples = num_samples
        self.offset = 0
        self.table = np.arange(num_samples)

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: Any) -> torch.Tensor:
        values = [float(self.table[index]) + self.offset]
        if self.draws:
            values += [torch.rand(()).item(), random.random(), np.random.rand(), torch.empty(1).normal_().item()]
        return torch.tensor(values, dtype=torch.float64)


def states() -> tuple[Any, ...]:
    kind, keys, *rest = np.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), (kind, list(keys), *rest)  # type: ignore[arg-type]


def read(dataset: Dataset[Any], *args: Any, **arguments: Any) -> tuple[list[Any], tuple[Any, ...]]:
    """Two epochs of a training that draws numbers at every step, and the states of its generators afterwards."""
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    loader = DataLoader(dataset, *args, **arguments)
    seen = [
        (batch.tolist(), torch.rand(1).item(), random.random(), np.random.rand()) for _ in range(2) for batch in loader
    ]
    return seen, states()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    for thread in data_threads():
        thread.join(5)
    assert not data_threads()


def data_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("data-")]


# --- the same batches, the same random numbers -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 3},
        {"batch_size": 3, "shuffle": True},
        {"batch_size": 3, "shuffle": True, "drop_last": True},
        {"batch_size": None, "shuffle": True},
        {"batch_sampler": BatchSampler(SequentialSampler(range(20)), 4, False)},
        {"batch_size": 50},
        {"batch_size": 3, "collate_fn": lambda samples: torch.stack(samples).flip(0)},
    ],
    ids=str,
)
def test_a_dataset_without_random_numbers_gives_the_same_batches(arguments: dict[str, Any], applied: Applied) -> None:
    bare = read(Samples(), **arguments)
    with applied(thread_workers=3) as context:
        assert read(Samples(), **arguments) == bare
    assert context.changes and not context.declined


def test_the_scripts_generator_is_drawn_from_in_the_same_order(applied: Applied) -> None:
    def train() -> Any:
        generator = torch.Generator().manual_seed(3)
        found = read(Samples(), 3, shuffle=True, generator=generator)
        return found, generator.get_state().tolist()

    bare = train()
    with applied(thread_workers=2):
        assert train() == bare


@pytest.mark.parametrize("arguments", [{}, {"persistent_workers": True}], ids=["fresh", "persistent"])
def test_threads_draw_the_same_numbers_as_the_scripts_workers(arguments: dict[str, Any], applied: Applied) -> None:
    def train() -> Any:
        torch.manual_seed(5)
        loader = DataLoader(Samples(draws=True), 3, shuffle=True, num_workers=2, **arguments)
        next(iter(loader))  # the epoch is left early; persistent workers have drawn for later batches too
        return [batch.tolist() for _ in range(2) for batch in loader], torch.rand(1).item()

    bare = train()
    with applied(thread_workers=2) as context:
        assert train() == bare
    assert not context.declined


def test_worker_init_fn_that_sets_seeds_runs_for_threads(applied: Applied) -> None:
    arguments = {"batch_size": 3, "shuffle": True, "num_workers": 2, "worker_init_fn": reseed}
    bare = read(Samples(draws=True), **arguments)
    assert bare != read(Samples(draws=True), 3, shuffle=True, num_workers=2)
    with applied(thread_workers=2) as context:
        assert read(Samples(draws=True), **arguments) == bare
    assert not context.declined


def reseed(number: int) -> None:
    """The function from torch's notes on reproducibility."""
    np.random.seed(torch.initial_seed() % 2**32)
    random.seed(torch.initial_seed() % 2**32)


def test_fewer_threads_than_workers_draw_the_same_numbers(applied: Applied) -> None:
    bare = read(Samples(draws=True), 3, shuffle=True, num_workers=2)
    with applied(thread_workers=1):
        assert read(Samples(draws=True), 3, shuffle=True, num_workers=2) == bare


def test_threads_without_workers_draw_like_workers_and_leave_the_scripts_numbers(applied: Applied) -> None:
    silent, workers = read(Samples(), 3, shuffle=True), read(Samples(draws=True), 3, shuffle=True, num_workers=2)
    with applied(thread_workers=2):
        seen, after = read(Samples(draws=True), 3, shuffle=True)
        assert (seen, after) == read(Samples(draws=True), 3, shuffle=True)  # a second run gives the same result
    assert [step[0] for step in seen] == [step[0] for step in workers[0]]
    assert [step[1:] for step in seen] == [step[1:] for step in silent[0]] and after == silent[1]


class LeftTorch(Samples):
    def __getitem__(self, index: Any) -> torch.Tensor:
        return torch.nn.functional.dropout(super().__getitem__(index).float() + 1)


class LeftRandom(Samples):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = random._inst  # type: ignore[attr-defined]
        type(self).flip = staticmethod(self.hidden.random)  # type: ignore[attr-defined]

    def __getitem__(self, index: Any) -> torch.Tensor:
        return super().__getitem__(index) + self.flip()  # type: ignore[attr-defined]


@pytest.mark.parametrize("dataset", [LeftTorch, LeftRandom])
def test_draws_that_bypass_the_streams_are_undone(dataset: Any, applied: Applied) -> None:
    bare = read(dataset(), 3, shuffle=True)
    with applied(thread_workers=2) as context:
        assert read(dataset(), 3, shuffle=True) == bare
    assert "in a way that cannot be separated by thread" in context.declined[0]


# --- threads that work ----------------------------------------------------------------------------------------------


class Overlapping(Samples):
    """No batch is finished before another one has begun."""

    def __init__(self) -> None:
        super().__init__(num_samples=8)
        self.both = threading.Barrier(2)

    def __getitem__(self, index: Any) -> torch.Tensor:
        self.both.wait(20)
        return super().__getitem__(index)


def test_batches_are_built_in_parallel(applied: Applied) -> None:
    with applied(thread_workers=2) as context:
        batches = iter(DataLoader(Overlapping(), 2))
        assert isinstance(batches, ThreadedIter)
        assert [batch[0].item() for batch in batches] == [0, 2, 4, 6]
    assert not context.declined


class Opening(Samples):
    """Counts what it does, and opens something once."""

    num_opened = 0

    def __init__(self) -> None:
        super().__init__()
        self.handle: Any = None
        self.owner = 0

    def __getitem__(self, index: Any) -> torch.Tensor:
        if self.handle is None:
            self.handle, self.owner = object(), threading.get_ident()
            Opening.num_opened += 1
        return super().__getitem__(index)


def test_copies_are_kept_until_the_script_changes_its_dataset(applied: Applied) -> None:
    Opening.num_opened = 0
    with applied(thread_workers=2) as context:
        dataset = Opening()
        loader = DataLoader(dataset, 3)
        first = [batch.tolist() for batch in loader]
        next(iter(loader))
        assert [batch.tolist() for batch in loader] == first
        assert Opening.num_opened == 2 and dataset.handle is None
        dataset.offset = 100
        assert [batch[0].item() for batch in loader][:2] == [100, 103]
        assert Opening.num_opened == 4
    assert not context.declined


def test_a_change_of_the_dataset_during_an_epoch_takes_effect_at_once(applied: Applied) -> None:
    def train() -> list[Any]:
        dataset, seen = Samples(), []
        for step, batch in enumerate(DataLoader(dataset, 3)):
            seen.append(batch.tolist())
            dataset.offset = 1000 * (step // 2)
        return seen

    bare = train()
    with applied(thread_workers=2) as context:
        assert train() == bare
    assert "changes offset of the dataset while it is read" in context.declined[0]


def test_two_iterators_of_one_loader_at_once(applied: Applied) -> None:
    def train() -> list[Any]:
        torch.manual_seed(1)
        loader = DataLoader(Samples(), 3, shuffle=True)
        return [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)]

    bare = train()
    with applied(thread_workers=2):
        assert train() == bare


def test_an_unfinished_epoch_leaves_no_thread(applied: Applied) -> None:
    with applied(thread_workers=2):
        for _ in DataLoader(Samples(), 3):
            assert len(data_threads()) == 2
            break
        for thread in data_threads():
            thread.join(5)
        assert not data_threads()


@pytest.mark.parametrize("is_whole", [True, False])
def test_an_iterator_is_collected_when_it_is_released(is_whole: bool, applied: Applied) -> None:
    with applied(thread_workers=2):
        batches = iter(DataLoader(Samples(), 3))
        next(batches)
        if is_whole:
            list(batches)
            assert next(batches, None) is None
        gone = weakref.ref(batches)
        gc.disable()
        del batches
        gc.enable()
        assert gone() is None


class Weighted(Samples):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.ones(1, requires_grad=True)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.weight * index


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_grad_modes_of_the_scripts_thread_apply_in_data_threads(mode: Any, applied: Applied) -> None:
    with applied(thread_workers=2), mode():
        batch = next(iter(DataLoader(Weighted(), 3)))
    assert batch.requires_grad is (mode is torch.enable_grad)
    assert batch.is_inference() is (mode is torch.inference_mode)


def test_data_threads_use_one_openmp_thread_and_the_script_is_unaffected(applied: Applied) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with applied(thread_workers=2):
            batch = next(iter(DataLoader(Counting(), 3)))
            assert torch.get_num_threads() == 2
            new: list[int] = []
            thread = threading.Thread(target=lambda: new.append(torch.get_num_threads()))
            thread.start()
            thread.join()
        assert batch.tolist() == [1, 1, 1] and new == [2]
    finally:
        torch.set_num_threads(before)


class Counting(Samples):
    def __getitem__(self, index: Any) -> Any:
        return torch.get_num_threads()


def test_works_together_with_other_input_techniques(applied: Applied) -> None:
    dataset = TensorDataset(torch.arange(46.0).view(23, 2))

    def train() -> list[Any]:
        torch.manual_seed(1)
        loader = DataLoader(dataset, 3, shuffle=True)
        return [batch[0].tolist() for _ in range(2) for batch in loader]

    bare = train()
    with applied(thread_workers=2, batched_fetch=True, prefetch=4) as context:
        assert train() == bare
    assert not context.declined


def test_is_next_ready(applied: Applied) -> None:
    from slipstream.data.transport.device_prefetch import _is_next_ready

    with applied(thread_workers=2):
        batches: Any = iter(DataLoader(Samples(), 3))
        assert not _is_next_ready(batches)
        next(batches)
        assert batches.batch_threads.wait_for(1) and _is_next_ready(batches)
        assert 1 <= batches.num_ready() <= 2 * batches.num_threads


# --- what the script raises, and what only threads raise -------------------------------------------------------------


class Breaking(Samples):
    def __getitem__(self, index: Any) -> torch.Tensor:
        if index == 7:
            raise KeyError("seven")
        return super().__getitem__(index)


OURS = str(Path(slipstream.__file__).parent)


def frames_of(fault: BaseException) -> list[str]:
    frames = traceback.extract_tb(fault.__traceback__)
    return [f"{Path(f.filename).name}:{f.name}" for f in frames if not f.filename.startswith(OURS)]


def test_an_exception_is_raised_for_its_batch_with_the_same_traceback(applied: Applied) -> None:
    def train() -> tuple[Any, ...]:
        batches, seen, frames = iter(DataLoader(Breaking(), 3)), [], []
        while True:
            try:
                seen.append(next(batches)[0].item())
            except KeyError as fault:
                seen.append(fault.args)
                frames = frames_of(fault)[1:]
            except StopIteration:
                return seen, frames

    bare = train()
    assert ("seven",) in bare[0] and len(bare[0]) == 8
    with applied(thread_workers=2) as context:
        assert train() == bare
    assert not context.declined


class Ending(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(7)
        raise OSError("the list is torn")


def test_an_exception_of_the_sampler_is_raised_for_its_batch(applied: Applied) -> None:
    seen: list[Any] = []
    with applied(thread_workers=2):
        try:
            seen.extend(batch[0].item() for batch in iter(DataLoader(Samples(), 2, sampler=Ending())))
        except OSError as fault:
            seen.append(str(fault))
    assert seen == ["the list is torn"] or seen == [0, 2, 4, "the list is torn"]


class MainThreadOnly(Samples):
    """Behaves like a connection of sqlite, a signal handler or an environment of lmdb."""

    def __getitem__(self, index: Any) -> torch.Tensor:
        if index > 9 and threading.current_thread() is not threading.main_thread():
            raise RuntimeError("made in another thread")
        return super().__getitem__(index)


def test_a_batch_that_fails_only_in_threads_is_built_without_them(applied: Applied) -> None:
    bare = read(MainThreadOnly(), 3, shuffle=True)
    with applied(thread_workers=2) as context:
        assert read(MainThreadOnly(), 3, shuffle=True) == bare
    assert len(context.declined) == 1 and "RuntimeError: made in another thread" in context.declined[0]


class Owning(Samples):
    def __init__(self) -> None:
        super().__init__()
        self.file = open(__file__)  # noqa: SIM115


def test_a_dataset_that_cannot_be_copied_is_read_without_threads(applied: Applied) -> None:
    dataset = Owning()
    bare = read(dataset, 3, shuffle=True)
    with applied(thread_workers=2) as context:
        assert read(dataset, 3, shuffle=True) == bare
    dataset.file.close()
    assert "cannot be copied for each thread" in context.declined[0]


def test_an_error_in_our_code_does_not_affect_the_script(applied: Applied, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise MemoryError("planted")

    bare = read(Samples(), 3, shuffle=True)
    monkeypatch.setattr("slipstream.data.threads.iterator.BatchThreads", fail)
    with applied(thread_workers=2) as context:
        assert read(Samples(), 3, shuffle=True) == bare
    assert "MemoryError: planted" in context.declined[0]


def test_a_timeout_raises_torchs_error(applied: Applied, message_of: Any) -> None:
    with applied(thread_workers=1):
        dataset = Stuck()
        batches = iter(DataLoader(dataset, 3, num_workers=1, timeout=0.05))
        assert "timed out after 0.05 seconds" in message_of(lambda: next(batches), RuntimeError)
        dataset.free.set()


class Stuck(Samples):
    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()

    def __getitem__(self, index: Any) -> torch.Tensor:
        self.free.wait(20)
        return super().__getitem__(index)


def test_a_default_device_disables_threads(applied: Applied) -> None:
    with applied(thread_workers=2), torch.device("cpu"):
        assert type(iter(DataLoader(Samples(), 3))) is _SingleProcessDataLoaderIter


ENDING = """
import os, signal, sys, threading, time
import torch
from torch.utils.data import DataLoader
from slipstream.data.threads.install import Threads
from slipstream.seams.patching import Patches

class Slow:
    def __len__(self): return 100
    def __getitem__(self, index):
        time.sleep(0.02 if index < 8 else 0.5)
        return index

threads = Threads(print)
threads.install(Patches(print, lambda: False))
threads.expect(2)
batches = iter(DataLoader(Slow(), 4))
print(next(batches).tolist(), flush=True)
if sys.argv[1] == "interrupt":
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    list(batches)
"""


@pytest.mark.parametrize(("how", "code"), [("leave", 0), ("interrupt", -signal.SIGINT)])
def test_the_program_can_end_while_threads_are_working(how: str, code: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ENDING)
    run = subprocess.run([sys.executable, script, how], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout) == (code, "[0, 1, 2, 3]\n"), run.stderr
    assert ("KeyboardInterrupt" in run.stderr) is (how == "interrupt")


@pytest.mark.parametrize("ending", ["index", "idx"])
def test_the_device_is_set_with_either_name_of_the_function(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    for name in ("current_device_index", "set_device_index", "current_device_idx", "set_device_idx"):
        monkeypatch.delattr(torch.accelerator, name, raising=False)
    monkeypatch.setattr(torch.accelerator, f"current_device_{ending}", lambda: 3, raising=False)
    monkeypatch.setattr(torch.accelerator, f"set_device_{ending}", told.append, raising=False)
    iterator: Any = SimpleNamespace(_pin_memory=True, _pin_memory_device="")
    pin = ThreadedIter._pinning(iterator)
    assert pin is not None and pin("batch") == "batch" and told == [3]
