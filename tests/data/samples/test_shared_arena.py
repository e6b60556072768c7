from __future__ import annotations

import os
import signal
from typing import Any

import torch

from slipstream.data.samples.serialise import pack
from slipstream.data.samples.shared_arena import SharedArena


def in_child(act: Any) -> int:
    """The exit status of a forked process that calls the function."""
    process = os.fork()
    if process == 0:
        try:
            act()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(process, 0)[1]


def test_a_parent_finds_the_samples_of_its_child() -> None:
    arena = SharedArena(4, 1 << 20)
    assert arena.entry(2) is None and 3 in arena and 4 not in arena and -1 not in arena
    assert in_child(lambda: arena.put(2, pack(([1.5, "a"], torch.arange(3))), writer=1)) == 0
    entry = arena.entry(2)
    assert entry is not None and entry.writer == 1 and len(arena) == 1
    numbers, tensor = arena.sample(entry)
    assert numbers == [1.5, "a"] and tensor.tolist() == [0, 1, 2]


def test_the_lock_of_a_killed_child_is_released() -> None:
    arena = SharedArena(4, 1 << 20)

    def die() -> None:
        with arena._locked():
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(die) == signal.SIGKILL
    assert arena.put(0, pack(1), writer=-1)


def test_a_full_arena_keeps_its_samples() -> None:
    arena = SharedArena(3, 3000)
    assert arena.put(0, pack(torch.zeros(400)), -1)
    assert not arena.put(1, pack(torch.zeros(400)), -1)
    entry = arena.entry(0)
    assert entry is not None and arena.sample(entry).shape == (400,) and arena.entry(1) is None


def test_all_processes_see_the_first_reason() -> None:
    arena = SharedArena(1, 1000)
    assert arena.reason == ""
    in_child(lambda: arena.drop("it drew a number"))
    arena.drop("something else")
    assert arena.reason == "it drew a number"
