from __future__ import annotations

import gc
import io
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from slipstream.data.transport import buffer_pool
from slipstream.data.transport.buffer_mirror import MIRRORS
from slipstream.data.transport.buffer_pool import SPARE, lent_storages
from slipstream.data.transport.buffer_reuse import BufferReuse, install_pool
from slipstream.seams.patching import Patches

Applied = Callable[..., Any]
Pair = namedtuple("Pair", "image label")


class Rich(Dataset[Any]):
    """Has every type that torch's collate function supports, with a random number of the worker."""

    def __len__(self) -> int:
        return 44

    def __getitem__(self, index: int) -> Any:
        return {
            "image": torch.full((3, 8, 8), float(index)) + torch.rand(()),
            "pair": Pair(torch.tensor([index, 1], dtype=torch.int16), index),
            "both": (float(index), [np.full(5, index, np.float32), np.int64(index)]),
            "flag": torch.tensor(index % 2 == 0),
            "name": f"sample {index}",
            "none": torch.zeros(0),
        }


class Box:
    """A custom batch class of the script."""

    def __init__(self, x: torch.Tensor, y: list[Any]) -> None:
        self.x, self.y = x, y


class Forgetful(Box):
    """Leaves out one of its tensors when it is pickled."""

    def __reduce__(self) -> Any:
        return Forgetful, (self.x, [])


def forgetful(samples: Any) -> Box:
    image = torch.stack([sample["image"] for sample in samples])
    return Forgetful(image, [image.new_ones(30_000)])


def boxed(samples: Any) -> Box:
    return Box(
        torch.stack([sample["image"] for sample in samples]).transpose(1, 2), [sample["name"] for sample in samples]
    )


def twisted(samples: Any) -> Any:
    """Tensors that share memory, a tensor that is a part of its storage, and arrays in C and Fortran order."""
    whole = torch.stack([sample["image"] for sample in samples])
    large = np.arange(2**15, dtype=np.float32).reshape(2**7, 2**8) + len(samples)
    return whole, whole[:, 0], torch.rand(9)[2:5].clone(), large, np.asfortranarray(large), large


def outline(thing: Any) -> Any:
    """Everything that a script can observe of a batch, including values."""
    if isinstance(thing, torch.Tensor):
        saved = io.BytesIO()
        torch.save(thing, saved)
        storage = thing.untyped_storage()
        facts = (thing.dtype, thing.shape, thing.stride(), thing.storage_offset(), thing.is_shared(), storage.nbytes())
        return facts, storage.resizable(), len(saved.getvalue()), thing.tolist(), thing._version
    if isinstance(thing, np.ndarray):
        flags = thing.flags
        facts = (flags.owndata, flags.writeable, flags.c_contiguous, flags.aligned, flags.fnc, type(thing.base))
        return thing.dtype, thing.tobytes(), facts
    if isinstance(thing, dict):
        return dict, {key: outline(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return type(thing), [outline(value) for value in thing]
    return (Box, outline(vars(thing))) if isinstance(thing, Box) else thing


def read(num_epochs: int = 2, **arguments: Any) -> Any:
    torch.manual_seed(7)
    loader = DataLoader(shuffle=True, batch_size=8, **{"num_workers": 2, **arguments})
    batches = [outline(batch) for _ in range(num_epochs) for batch in loader]
    return batches, torch.get_rng_state().tolist()


@pytest.fixture(autouse=True)
def nobody_keeps_buffers() -> Iterator[None]:
    yield
    gc.collect()
    assert len(MIRRORS) == 0, "an iterator went and left its buffers"


def num_buffers() -> int:
    return sum(len(mirror._buffers) for mirror in MIRRORS._by_key.values())


# --- nothing changes for the script ----------------------------------------------------------------------------------


@pytest.mark.parametrize("collate", [None, boxed, forgetful, twisted])
def test_batches_are_the_same_in_every_respect(applied: Applied, collate: Any) -> None:
    bare = read(dataset=Rich(), collate_fn=collate)
    with applied(buffer_reuse=True) as context:
        assert read(dataset=Rich(), collate_fn=collate) == bare
        assert read(dataset=Rich(), collate_fn=collate, persistent_workers=True)[0][:6] == bare[0][:6]
    assert "reuses shared memory" in context.changes[0] and not context.declined


def test_memory_is_reused_only_when_nothing_holds_it(applied: Applied) -> None:
    data = TensorDataset(torch.arange(4000.0).reshape(1000, 4), torch.arange(1000))
    with applied(buffer_reuse=True):
        loader = DataLoader(data, 10, num_workers=1)
        addresses = [(x.data_ptr(), y.data_ptr()) for x, y in loader]
        assert len({x for x, _ in addresses}) <= 2 + SPARE and len({y for _, y in addresses}) <= 2 + SPARE
        assert num_buffers() == 0
        kept = [(x, y[3:7].numpy()) for x, y in loader]
        stored = [x.untyped_storage() for x, _ in loader]
        weight = torch.ones(4, requires_grad=True)
        loss = sum((x * weight).sum() for x, _ in loader)
    assert torch.equal(torch.cat([x for x, _ in kept]), data.tensors[0])
    assert [y.tolist() for _, y in kept] == [list(range(at + 3, at + 7)) for at in range(0, 1000, 10)]
    assert [storage.tolist() for storage in stored] == [x.untyped_storage().tolist() for x, _ in DataLoader(data, 10)]
    loss.backward()  # type: ignore[union-attr]
    assert torch.equal(weight.grad, data.tensors[0].sum(0))


def test_changing_sizes_need_few_buffers(applied: Applied) -> None:
    """Lengths change from batch to batch. Buffers of unused sizes are dropped."""
    rows = [torch.full((17_000 + number % 17 * 400,), float(number)) for number in range(120)]
    with applied(buffer_reuse=True):
        iterator = iter(DataLoader(rows, 1, num_workers=1))  # type: ignore[arg-type]
        for number in range(120):
            assert torch.equal(next(iterator)[0], rows[number])
            (mirror,) = MIRRORS._by_key.values()
            assert sum(one.num_bytes for one in mirror._buffers.values()) <= (2 + SPARE + 2) * 4 * len(rows[16])
        del mirror, iterator


def test_small_tensors_are_sent_in_the_message(applied: Applied) -> None:
    rows = [torch.arange(float(number + 1)) for number in range(80)]

    def play() -> list[Any]:
        return [outline(batch) for batch in DataLoader(rows, 1, num_workers=1)]  # type: ignore[arg-type]

    bare = play()
    with applied(buffer_reuse=True):
        assert play() == bare
        iterator = iter(DataLoader(rows, 1, num_workers=1))  # type: ignore[arg-type]
        assert len(list(iterator)) == 80 and num_buffers() == 0
        del iterator


def test_a_tensor_that_the_dataset_keeps_is_shared_by_torch(applied: Applied) -> None:
    """Torch moves such a tensor to shared memory in place, so the worker sees changes by the script."""

    def play() -> list[float]:
        kept = [torch.zeros(4) for _ in range(3)]
        loader = DataLoader(kept * 8, 1, num_workers=1, collate_fn=lambda samples: samples[0])  # type: ignore[arg-type]
        return [float(batch.add_(1).sum()) for batch in loader]

    bare = play()
    assert max(bare) > 4
    with applied(buffer_reuse=True):
        assert play() == bare


class Keeper(Dataset[Any]):
    """Builds each batch once with torch's own collate function and sends it repeatedly."""

    def __init__(self) -> None:
        self.batches: dict[int, Any] = {}

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        if index % 4 not in self.batches:
            self.batches[index % 4] = default_collate([torch.full((9000,), float(index)), torch.zeros(9000)])
        return self.batches[index % 4]


def test_a_batch_that_the_worker_keeps_is_not_overwritten(applied: Applied) -> None:
    def play() -> list[Any]:
        return [outline(batch) for batch in DataLoader(Keeper(), None, num_workers=2)]

    bare = play()
    with applied(buffer_reuse=True):
        assert play() == bare


class Twice(Keeper):
    """Sends each batch twice and then drops it."""

    def __getitem__(self, index: int) -> Any:
        if index % 2 == 0:
            self.batches[0] = default_collate([torch.full((9000,), float(index))] * 2)
            return self.batches[0]
        return self.batches.pop(0)


def test_a_batch_that_is_sent_twice_is_not_overwritten_after_its_first_use(applied: Applied) -> None:
    with applied(buffer_reuse=True):
        iterator = iter(DataLoader(Twice(), None, num_workers=1, prefetch_factor=3))
        for number in range(24):
            batch = next(iterator)
            time.sleep(0.02)  # the worker has time to overwrite the batch
            assert set(batch.flatten().tolist()) == {number // 2 * 2.0}
            del batch
        del iterator


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        for number in range(info.id, 50 + 9 * info.id, info.num_workers):
            yield torch.full((6,), float(number))


def test_iterable_datasets_end_as_without_buffers(applied: Applied) -> None:
    def play() -> list[Any]:
        loader = DataLoader(Stream(), 4, num_workers=2, persistent_workers=True)
        return [batch.tolist() for _ in range(2) for batch in loader]

    bare = play()
    with applied(buffer_reuse=True):
        assert play() == bare


def test_unfinished_epochs_and_two_iterators_at_once(applied: Applied) -> None:
    data = TensorDataset(torch.arange(60.0).reshape(60, 1))
    with applied(buffer_reuse=True):
        loader = DataLoader(data, 3, num_workers=2, persistent_workers=True)
        for at, _ in enumerate(loader):
            if at == 2:
                break
        assert [x.flatten().tolist() for (x,) in loader] == [[at, at + 1, at + 2] for at in range(0, 60, 3)]
        other = DataLoader(data, 3, num_workers=1)
        pairs = [(x, y) for (x,), (y,) in zip(other, DataLoader(data, 3, num_workers=1), strict=True)]
        assert all(torch.equal(x, y) for x, y in pairs)
        del loader


def test_batches_arrive_in_several_threads(applied: Applied) -> None:
    """When torch pins memory, its pinning thread receives the batches."""
    data = TensorDataset(torch.arange(1_200_000.0).reshape(60, 20_000))

    def sums(into: list[float]) -> None:
        into.extend(float(x.double().sum()) for (x,) in DataLoader(data, 2, num_workers=1))

    with applied(buffer_reuse=True):
        found: list[list[float]] = [[], [], []]
        threads = [threading.Thread(target=sums, args=(one,)) for one in found]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [[float(x.double().sum()) for (x,) in DataLoader(data, 2)]] * 3


def test_works_together_with_other_techniques(applied: Applied) -> None:
    data = TensorDataset(torch.arange(640.0).reshape(160, 4), torch.arange(160))

    def play() -> Any:
        torch.manual_seed(3)
        loader = DataLoader(data, 8, shuffle=True)
        return [outline([x.clone(), y.clone()]) for _ in range(2) for x, y in loader], torch.get_rng_state().tolist()

    bare = play()
    with applied(workers=2, batched_fetch=True, buffer_reuse=True, prefetch=4) as context:
        assert play() == bare
    assert len(context.changes) == 4


# --- other processes -------------------------------------------------------------------------------------------------


def _hold(queue: Any, answers: Any) -> None:
    batch = queue.get()
    answers.put("got it")
    queue.get()
    answers.put(batch.tolist())


@pytest.mark.parametrize("way", ["queue", "fork"])
def test_memory_that_another_process_has_is_never_overwritten(applied: Applied, way: str) -> None:
    data = TensorDataset(torch.arange(400.0).reshape(200, 2))
    context = torch.multiprocessing.get_context("fork")
    with applied(buffer_reuse=True):
        iterator = iter(DataLoader(data, 4, num_workers=1))
        for _ in range(8):
            (batch,) = next(iterator)
        wanted = batch.tolist()
        queue, answers = context.Queue(), context.Queue()
        if way == "queue":
            child = context.Process(target=_hold, args=(queue, answers))
            child.start()
            queue.put(batch)
        else:
            stand_in = type("StandIn", (), {"get": lambda self, given=[batch]: given.pop() if given else queue.get()})
            child = context.Process(target=_hold, args=(stand_in(), answers))
            child.start()
            del stand_in
            gc.collect()  # a class is part of a reference cycle
        assert answers.get(timeout=20) == "got it"
        del batch
        assert sum(len(x) for (x,) in iterator) == 200 - 8 * 4
        queue.put(None)
        assert answers.get(timeout=20) == wanted
        child.join()
        del iterator


def _send_away(answers: Any) -> None:
    """Runs in a separate process, like a worker, because the patches of torch are not removed there."""
    pool = install_pool(2, 8)
    kind: Any = torch.UntypedStorage
    with lent_storages():
        kept, gone = kind._new_shared(100_000), kind._new_shared(100_000)
    is_lent = pool.owner(kept) is not None and pool.owner(gone) is not None
    ForkingPickler.dumps(torch.empty(0).set_(gone))
    answers.put((is_lent, pool.owner(kept) is not None, pool.owner(gone) is None))


def test_a_storage_that_a_worker_shares_itself_is_abandoned() -> None:
    context = torch.multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_send_away, args=(answers,))
    child.start()
    assert answers.get(timeout=20) == (True, True, True)
    child.join()


def test_spawned_workers_use_buffers(applied: Applied) -> None:
    data = TensorDataset(torch.arange(400.0).reshape(200, 2))
    with applied(buffer_reuse=True, read_ahead=4):
        iterator = iter(DataLoader(data, 4, num_workers=1, multiprocessing_context="spawn"))
        assert [len(x) for (x,) in iterator] == [4] * 50
        assert 1 <= num_buffers() <= 2 + SPARE
        del iterator


# --- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["no room", "fails"])
def test_full_shared_memory_is_left_to_torch(applied: Applied, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    bare = read(1, dataset=Rich())

    def fail(*args: Any) -> Any:
        raise RuntimeError("no space left on device")

    if what == "no room":
        monkeypatch.setattr(buffer_pool, "_free_bytes", lambda: 64)
    else:
        monkeypatch.setattr(buffer_pool.Pool, "_is_vacant", fail)
    with applied(buffer_reuse=True):
        assert read(1, dataset=Rich()) == bare


def test_sharing_by_file_name_is_declined() -> None:
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        assert "by file name" in buffer_pool.why_not()
        patches = Patches(lambda seam, fault: None, lambda: False)
        with pytest.raises(NotImplementedError, match="by file name"):
            BufferReuse().install(patches)
        patches.close()
    finally:
        torch.multiprocessing.set_sharing_strategy(before)
