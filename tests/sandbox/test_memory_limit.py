"""Sets the system's memory limit on this process for a short time, and reads the memory in use."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
import torch

from slipstream.sandbox.memory_limit import MemoryLimit, read_mapped
from slipstream.sandbox.oom_messages import tells_shortage

MIB = 1 << 20
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")


def take(num_bytes: int) -> torch.Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8)


@pytest.fixture
def limit() -> Iterator[MemoryLimit]:
    made = MemoryLimit(read_mapped().data + 300 * MIB)
    yield made
    made.lift()


def test_allocation_beyond_the_limit_raises(limit: MemoryLimit) -> None:
    limit.begin(torch.nn.Linear(2, 2))
    assert limit.start_bytes == pytest.approx(read_mapped().data, abs=16 * MIB)
    assert take(100 * MIB).numel() == 100 * MIB
    with pytest.raises(RuntimeError) as raised:
        take(400 * MIB)
    assert tells_shortage(str(raised.value))
    limit.lift()
    assert take(400 * MIB).numel() == 400 * MIB


def test_a_limit_that_cannot_be_enforced_has_its_reason(limit: MemoryLimit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.sandbox.memory_limit.sys.platform", "darwin")
    limit.begin(torch.nn.Linear(2, 2))
    assert limit.fault == "only Linux can enforce a memory limit on a process" and not MemoryLimit().fault


def test_limit_does_not_apply_to_children(limit: MemoryLimit) -> None:
    limit.begin(torch.nn.Linear(2, 2))
    child = os.fork()
    if not child:
        import mmap

        try:
            mmap.mmap(-1, 400 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_peak_is_measured_although_the_memory_was_freed() -> None:
    limit = MemoryLimit()
    limit.begin(torch.nn.Linear(2, 2))
    before = take(700 * MIB)  # an earlier, higher peak must not hide the later one
    del before
    limit.level()
    level = read_mapped().data
    passing = take(200 * MIB)
    del passing
    assert limit.weigh() - level == pytest.approx(200 * MIB, abs=8 * MIB)


def test_messages_of_a_shortage() -> None:
    assert tells_shortage("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    assert not tells_shortage("can't start new thread") and tells_shortage("can't start new thread", is_held=True)
    assert not tells_shortage("RuntimeError: shape '[32, -1]' is invalid for input of size 40", is_held=True)
