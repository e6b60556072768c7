"""Batches that are copied as bytes, on a stand-in for a device: `.to("cpu", copy=True)` is its copy to the device."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from slipstream.data.samples.batch_fetch import BatchedFetch
from slipstream.data.samples.sample_cache import SampleCache
from slipstream.data.transport import byte_transfer as room
from slipstream.data.transport.buffer_reuse import BufferReuse
from slipstream.data.transport.byte_transfer import ByteCopies
from slipstream.data.transport.copy_calls import waits_not
from slipstream.data.transport.nonblocking import NonBlockingCopies
from slipstream.testing.jpegs import installed


class Images(Dataset[Any]):
    def __init__(self, is_noise: bool = False) -> None:
        self.is_noise = is_noise

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.is_noise:
            return torch.rand(3, 40, 40), index
        levels = torch.randint(0, 256, (3, 40, 40), dtype=torch.uint8)
        return levels.float().div(255).sub_(0.45).div_(0.22), index


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return (Images()[index] for index in range(16))


@contextmanager
def bytes_sent(told: list[str]) -> Iterator[list[int]]:
    """The number of bytes of each tensor that was copied to the device."""
    sizes: list[int] = []
    copies = ByteCopies(lambda: told.append("changed"), told.append, lambda device: device.type == "cpu")
    before = dict(vars(ForkingPickler)["_extra_reducers"])
    bare = copies._to

    def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        sizes.append(tensor.numel() * tensor.element_size())
        return bare(tensor, *args, **{**kwargs, "copy": True})

    copies._to = to  # type: ignore[assignment]
    with installed(copies):
        yield sizes
    assert vars(ForkingPickler)["_extra_reducers"] == before


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("cpu", copy=True)


@pytest.mark.parametrize("dataset", [Images(), Stream()], ids=["map", "iterable"])
def test_batches_and_copies_equal_those_of_the_unchanged_script(dataset: Any) -> None:
    def script() -> list[torch.Tensor]:
        torch.manual_seed(0)
        loader = DataLoader(dataset, 4, shuffle=isinstance(dataset, Images) or None, num_workers=1)
        found = [tensor for x, y in loader for tensor in (x.clone(), to_device(x), to_device(y))]
        return [*found, torch.rand(3)]

    bare, told = script(), list[str]()
    with bytes_sent(told) as sizes:
        ours = script()
    assert all(torch.equal(a, b) for a, b in zip(ours, bare, strict=True))
    assert told == ["changed"] * 4
    whole = 4 * 3 * 40 * 40
    assert sizes == [whole, 3 * 1024, 4 * whole] * 3 + [whole, 3 * 1024]  # the first three copies are compared


def test_batches_of_other_techniques_are_packed() -> None:
    """Batches that are indexed at once or built from cached samples do not use torch's own fetch."""
    images = torch.randint(0, 256, (16, 3, 40, 40), dtype=torch.uint8).float().div(255)
    kept, told = SampleCache(lambda note: None, pytest.fail), list[str]()
    cases: list[tuple[Any, Dataset[Any]]] = [(BatchedFetch(pytest.fail), TensorDataset(images)), (kept, Same())]
    for part, dataset in cases:
        kept.admit(dataset, "")
        with bytes_sent(told), installed(part):
            loader = DataLoader(dataset, 4, num_workers=1, persistent_workers=True)
            for _ in range(3):
                for (batch,) in loader:
                    assert torch.equal(to_device(batch), batch)
            del loader
        assert told == ["changed"] * 12
        told.clear()


class Same(Images):
    def __getitem__(self, index: int) -> Any:
        return (torch.arange(4800, dtype=torch.float32).mul(index + 1).remainder(256).reshape(3, 40, 40),)


def test_batches_in_reused_buffers_are_packed() -> None:
    told, dataset = list[str](), Same()
    with bytes_sent(told):
        reuse = BufferReuse()
        reuse.want(dataset)
        with installed(reuse):
            for (batch,) in DataLoader(dataset, 4, num_workers=1):
                assert torch.equal(to_device(batch), batch)
    assert told == ["changed"] * 4


def one_batch(**options: Any) -> torch.Tensor:
    (images, _), *_ = DataLoader(Images(**options), 4, num_workers=1)
    return images  # type: ignore[no-any-return]


def test_a_changed_batch_is_copied_as_floats() -> None:
    with bytes_sent([]) as sizes:
        images = one_batch()
        images.mul_(2)
        assert torch.equal(to_device(images), images)
        flipped = one_batch().flip(-1)
        assert torch.equal(to_device(flipped), flipped)
    assert sizes == []


def test_other_calls_are_passed_on() -> None:
    with bytes_sent([]) as sizes:
        images = one_batch()
        assert images.to("cpu", torch.float16).dtype == torch.float16
        assert images.to(torch.float64).dtype == torch.float64
        assert images.to("meta").device.type == "meta"
        assert images.to("cpu", memory_format=torch.channels_last).is_contiguous(memory_format=torch.channels_last)
    assert sizes == []


def test_other_floats_are_sent_as_floats() -> None:
    with bytes_sent([]) as sizes:
        images = one_batch(is_noise=True)
        assert torch.equal(to_device(images), images)
    assert sizes == []


def test_without_workers_nothing_is_packed() -> None:
    with bytes_sent([]) as sizes:
        images = next(iter(DataLoader(Images(), 4)))[0]
        to_device(images)
    assert sizes == []


def test_a_difference_on_the_device_disables_byte_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    unpack = room.unpack
    monkeypatch.setattr(room, "unpack", lambda packed: torch.nextafter(unpack(packed), torch.tensor(9.0)))
    told: list[str] = []
    with bytes_sent(told) as sizes:
        for images, _ in DataLoader(Images(), 4, num_workers=1):
            assert torch.equal(to_device(images), images)
    assert told == ["batches are copied as floats again, because the bytes became other floats on the device"]
    assert len(sizes) == 3


def test_non_blocking_copies_are_passed_on() -> None:
    flags: list[bool] = []
    copies = ByteCopies(lambda: None, pytest.fail, lambda device: device.type == "cpu")
    bare = copies._to

    def to(tensor: torch.Tensor, *args: Any, non_blocking: bool = False, **kwargs: Any) -> torch.Tensor:
        flags.append(non_blocking)
        return bare(tensor, *args, **{**kwargs, "copy": True})

    copies._to = to  # type: ignore[assignment]
    with installed(copies, NonBlockingCopies(lambda: None, lambda d: d.type == "cpu", lambda t: True)):
        to_device(one_batch())
    assert flags[:2] == [True, True]


def test_pinning_keeps_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[torch.dtype] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: (pinned.append(tensor.dtype), tensor.clone())[1])
    with bytes_sent([]) as sizes:
        images = one_batch().pin_memory()
        assert torch.equal(to_device(images), images)
    assert pinned == [torch.float32, torch.uint8, torch.float32] and sizes[0] == images.numel()


def test_bytes_are_released_with_their_tensor() -> None:
    copies = ByteCopies(lambda: None, pytest.fail)
    images = torch.randint(0, 256, (4, 3, 40, 40), dtype=torch.uint8).float()
    copies.pack([images])
    assert copies._payloads.of(images) is not None
    del images
    gc.collect()
    assert len(copies._payloads._tensors) == 0


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [(("cpu",), {}, False), (("cpu",), {"non_blocking": True}, True), (("cpu", torch.float32, True), {}, True)],
)
def test_waits_not(args: tuple[Any, ...], kwargs: dict[str, Any], expected: bool) -> None:
    assert waits_not((torch.zeros(1), *args), kwargs) is expected
