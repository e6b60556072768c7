"""Copies that start early, on a stand-in for a device: `.to("cpu", copy=True)` is its copy to the device."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from slipstream.data.transport.copy_calls import read_copy
from slipstream.data.transport.device_prefetch import DevicePrefetch
from slipstream.data.transport.nonblocking import NonBlockingCopies
from slipstream.seams.patching import Patches


class StandIn:
    """A device that records its calls."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.fault: Exception | None = None
        self._clone = torch.Tensor.clone

    def accepts(self, device: torch.device) -> bool:
        return device.type == "cpu"

    def start(self, tensor: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, Any]:
        if self.fault is not None:
            raise self.fault
        self.log.append(f"start {tensor.flatten()[0]:g}")
        return self._clone(tensor), tensor.flatten()[0].item()

    def receive(self, copy: torch.Tensor, ticket: Any) -> None:
        self.log.append(f"receive {ticket:g}")


@contextmanager
def ahead(device: StandIn, told: list[str]) -> Iterator[DevicePrefetch]:
    faults: list[str] = []
    patches = Patches(lambda seam, fault: faults.append(f"{seam}: {fault!r}"), torch.compiler.is_compiling)
    made = DevicePrefetch(device, told.append, lambda: told.append("changed"))
    made.install(patches)
    try:
        yield made
    finally:
        patches.close()
    assert not faults


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("cpu", copy=True)


def wait_until_built(iterator: Any) -> None:
    """Wait until the next batch is ready, so that the test does not depend on the speed of the machine."""
    while iterator._task_info and iterator._rcvd_idx < iterator._send_idx and iterator._data_queue.empty():
        time.sleep(0.001)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_and_copies_equal_those_of_the_unchanged_script(numbers: Any, num_workers: int) -> None:
    def script() -> list[Any]:
        torch.manual_seed(0)
        loader = DataLoader(numbers(16, noise=num_workers == 0), 4, shuffle=True, num_workers=num_workers)
        seen: list[Any] = []
        for _ in range(2):
            for batch in loader:
                seen.append((batch.tolist(), to_device(batch).tolist(), to_device(batch).tolist()))
                seen.append(torch.rand(()).item())
        return seen

    bare, device, told = script(), StandIn(), []
    with ahead(device, told):
        assert script() == bare
    assert told == ["changed"]
    received = [entry for entry in device.log if entry.startswith("receive")]
    # Each batch is received once, except the first one. The second one is not received either if it was loaded before
    # the script's copies were known.
    assert len(received) in ((7,) if num_workers == 0 else (6, 7))


def test_the_next_copy_starts_before_the_step(numbers: Any) -> None:
    device = StandIn()
    num_early = 0
    with ahead(device, []):
        iterator = iter(DataLoader(numbers(160), 4, num_workers=1))
        for batch in iterator:
            num_early += f"start {batch[0, 0] + 4:g}" in device.log
            to_device(batch)
            time.sleep(0.002)  # a step, during which the worker builds a batch
    assert num_early > 0
    assert device.log[-1] == "receive 156"


def test_without_workers_no_batch_is_built_early(numbers: Any) -> None:
    device = StandIn()
    with ahead(device, []):
        for batch in DataLoader(numbers(16), 4):
            to_device(batch)
            assert device.log[-1:] in ([], [f"receive {batch[0, 0]:g}"])


def test_a_stale_copy_is_not_returned(numbers: Any) -> None:
    with ahead(StandIn(), []):
        for batch in DataLoader(numbers(16), 4):
            batch.add_(1)
            assert torch.equal(to_device(batch), batch)


def test_other_calls_are_passed_on(numbers: Any) -> None:
    device = StandIn()
    with ahead(device, []):
        for batch in DataLoader(numbers(16), 4):
            assert batch.to("cpu") is batch
            assert batch.to(torch.float64).dtype == torch.float64
            copy = batch.to("cpu", torch.float64)
            assert copy.dtype == torch.float64 and copy.tolist() == batch.tolist()
    assert device.log == []


def test_unused_copies_end(numbers: Any) -> None:
    device = StandIn()
    with ahead(device, []):
        for number, batch in enumerate(DataLoader(numbers(40), 4)):
            if number == 0:
                to_device(batch)
    # The last copy had started before the third one counted as unused.
    assert device.log == ["start 4", "start 8", "start 12", "start 16"]


def test_an_exception_is_raised_for_its_batch(numbers: Any, message_of: Any) -> None:
    class Broken(numbers):  # type: ignore[misc]
        def __getitem__(self, index: int) -> torch.Tensor:
            if index == 8:
                raise KeyError("eight")
            return torch.tensor([float(index)])

    with ahead(StandIn(), []):
        iterator = iter(DataLoader(Broken(16), 4, num_workers=1))
        assert next(iterator)[0].item() == 0
        wait_until_built(iterator)
        assert next(iterator)[0].item() == 4
        assert "eight" in message_of(lambda: next(iterator), KeyError)
        assert next(iterator)[0].item() == 12
        assert message_of(lambda: next(iterator), StopIteration) == ""
        iterator._shutdown_workers()  # the traceback forms a reference cycle, so workers would end late


def test_an_out_of_memory_error_disables_prefetching(numbers: Any) -> None:
    device, told = StandIn(), list[str]()
    with ahead(device, told):
        seen = []
        for batch in DataLoader(numbers(16), 4):
            device.fault = RuntimeError("out of memory") if len(seen) == 1 else None
            seen.append(to_device(batch)[0, 0].item())
    assert seen == [0, 4, 8, 12]
    assert told[-1] == "batches are no longer copied ahead: RuntimeError: out of memory"


def test_a_reset_iterator_drops_the_prefetched_batch(numbers: Any) -> None:
    with ahead(StandIn(), []):
        loader = DataLoader(numbers(16), 4, num_workers=1, persistent_workers=True)
        for _ in range(3):
            iterator = iter(loader)
            assert to_device(next(iterator))[0, 0].item() == 0
            wait_until_built(iterator)
            assert to_device(next(iterator))[0, 0].item() == 4
            wait_until_built(iterator)


def test_a_copy_is_released_with_the_scripts_reference(numbers: Any) -> None:
    with ahead(StandIn(), []):
        iterator = iter(DataLoader(numbers(16), 4))
        to_device(next(iterator))
        copy = to_device(next(iterator))
        reference = weakref.ref(copy)
        del copy
        assert reference() is None


# --- copies without waiting: `meta` stands for the device ----------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The arguments of calls of torch's own `Tensor.to`."""
    seen: list[tuple[Any, ...]] = []
    original = torch.Tensor.to

    def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append((*args, kwargs))
        return original(tensor, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", to)
    return seen


def test_only_copies_of_batches_to_the_device_are_non_blocking(numbers: Any, calls: list[Any]) -> None:
    patches = Patches(lambda seam, fault: pytest.fail(f"{seam}: {fault!r}"), torch.compiler.is_compiling)
    told: list[str] = []
    NonBlockingCopies(lambda: told.append("changed"), lambda d: d.type == "meta", lambda t: True).install(patches)
    try:
        batch = next(iter(DataLoader(numbers(8), 4)))
        assert not told
        batch.to("meta")
        batch[:, :1].to(device="meta", non_blocking=False)
        waits_not = list(calls)
        calls.clear()
        batch.to("cpu")
        batch.to("cpu", torch.float64)
        batch.to("meta", torch.float32, False)  # the script passes non_blocking=False by position
        torch.zeros(2).to("meta")  # not a loader's batch: the script may overwrite it at once
    finally:
        patches.close()
    assert waits_not == [("meta", {"non_blocking": True}), ({"device": "meta", "non_blocking": True},)]
    assert calls == [("cpu", {}), ("cpu", torch.float64, {}), ("meta", torch.float32, False, {}), ("meta", {})]
    assert told == ["changed"]


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        (("meta",), {}, ("meta", True)),
        ((), {"device": torch.device("meta"), "non_blocking": True, "copy": True}, ("meta", True)),
        (("meta", torch.float32), {}, ("meta", True)),
        (("meta", torch.float16), {}, ("meta", False)),
        ((torch.empty(1, device="meta"),), {}, ("meta", True)),
        (("meta",), {"memory_format": torch.channels_last}, ("meta", False)),
        ((torch.float64,), {}, None),
        (("nonsense",), {}, None),
    ],
)
def test_read_copy(args: tuple[Any, ...], kwargs: dict[str, Any], expected: tuple[str, bool] | None) -> None:
    copy = read_copy("to", (torch.zeros(1), *args), kwargs)
    assert (copy and (copy.device.type, copy.is_plain)) == expected
