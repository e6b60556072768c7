from __future__ import annotations

from typing import Any

import pytest
import torch

from slipstream.data.transport.batch_pickler import pack
from slipstream.data.transport.buffer_pool import (
    DROPPED,
    FREE,
    OUT,
    RETIRED,
    SMALL,
    SPARE,
    VACANT,
    Buffer,
    Pool,
    most_buffers,
)

LARGE = SMALL + 64
new_shared: Any = torch.UntypedStorage._new_shared  # type: ignore[no-untyped-call]


def made_pool(depth: int = 2, most: int = 64) -> Pool:
    return Pool(depth, most, new_shared)


def send(pool: Pool, num_bytes: int) -> Buffer | None:
    """Takes a buffer and sends it as a batch of one tensor. Returns the buffer, or None."""
    buffer = pool.take(num_bytes)
    pool.close_batch([buffer] if buffer is not None else [])
    return buffer


def test_a_buffer_is_reused_when_both_processes_have_released_it() -> None:
    pool = made_pool()
    first = send(pool, LARGE)
    assert first is not None and pool.states[first.number] == OUT
    assert send(pool, LARGE) is not first
    pool.states[first.number] = FREE  # as the main process does
    held = torch.empty(0).set_(first.storage)
    assert send(pool, LARGE) is not first
    del held
    storage = first.storage
    assert send(pool, LARGE) is not first
    del storage
    assert pool.take(LARGE) is first


def test_a_script_that_keeps_its_batches_gets_new_memory() -> None:
    pool = made_pool(depth=2)
    assert sum(send(pool, LARGE) is not None for _ in range(12)) == 2 + SPARE


def test_buffers_of_unused_sizes_are_dropped() -> None:
    pool = made_pool(depth=2, most=3)
    first = send(pool, LARGE)
    assert first is not None
    number = first.number
    pool.states[number] = FREE
    del first
    assert all(send(pool, LARGE + 8 * more) is not None for more in (1, 2, 3))
    assert pool.states[number] == DROPPED  # until the main process has unmapped the buffer
    assert send(pool, LARGE + 80) is None  # at most three buffers are allowed, and three are in use
    pool.states[number] = VACANT


def test_a_retired_buffer_is_never_reused() -> None:
    pool = made_pool()
    first = send(pool, LARGE)
    assert first is not None
    pool.states[first.number] = RETIRED
    second = pool.take(LARGE)
    assert second is not None and second is not first and pool.owner(first.storage) is None
    assert second.number == first.number and pool.states[second.number] == VACANT


def test_small_sizes_get_a_buffer_when_they_occur_again() -> None:
    pool = made_pool()
    assert send(pool, 64) is None
    assert send(pool, 64) is not None and send(pool, 72) is None


def test_an_error_in_the_pool_only_disables_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = made_pool()
    assert pool.lend(LARGE) is not None
    monkeypatch.setattr(pool, "_may_grow", lambda num_bytes: 1 / 0)
    assert pool.lend(LARGE + 8) is None and not pool.is_in_service


def test_the_limit_of_open_files_is_divided_among_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))
    assert most_buffers(1) == 128 and most_buffers(8) == 16


class Wrapper(torch.Tensor):
    """Shows the storage of a large tensor and holds none."""

    @staticmethod
    def __new__(cls: Any, inner: torch.Tensor) -> Any:
        make: Any = torch.Tensor._make_wrapper_subclass
        return make(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


def test_wrapper_tensors_and_objects_without_tensors_are_sent_by_torch() -> None:
    pool = made_pool()
    assert pack(pool, (0, [Wrapper(torch.ones(40_000))])) is None
    assert pack(pool, (0, {"a": [1, 2], "b": None})) is None
    assert pack(pool, (0, [torch.ones(3).to_sparse()])) is None
    assert pack(pool, (0, list(range(50_000)))) is None
    assert pack(pool, (0, [torch.ones(40_000)])) is not None
