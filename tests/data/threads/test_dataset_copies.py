"""Copies of datasets for threads: objects with state are copied, data and locks are shared, and everything else is
refused."""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.data.threads.dataset_copies import UncopyableError, duplicate


class Holder:
    def __init__(self, **things: Any) -> None:
        vars(self).update(things)


def held(**things: Any) -> tuple[Holder, Holder]:
    first, second = duplicate(Holder(**things), 2)
    assert first is not second
    return first, second


def test_objects_with_state_are_copied() -> None:
    things = {
        "cache": {},
        "rng_state": random.Random(3),
        "noise": np.random.default_rng(3),
        "scratch": np.zeros(8),
        "buffer": torch.zeros(8),
        "inner": Holder(count=1),
    }
    first, second = held(**things)
    for name, thing in things.items():
        assert getattr(first, name) is not getattr(second, name) and getattr(first, name) is not thing
    first.scratch[:] = 1
    first.buffer[:] = 1
    assert things["scratch"].sum() == 0 and second.scratch.sum() == 0 and second.buffer.sum() == 0  # type: ignore[attr-defined]
    assert first.rng_state.random() == second.rng_state.random() == random.Random(3).random()


def test_data_is_shared(tmp_path: Path) -> None:
    np.zeros(10).tofile(tmp_path / "map")
    things = {
        "pixels": np.zeros(2**20),
        "tensor": torch.zeros(2**20),
        "map": np.memmap(tmp_path / "map"),
        "paths": [f"{n}.jpg" for n in range(2000)],
        "samples": [(f"{n}.jpg", n) for n in range(2000)],
        "annotations": {n: {"box": [1, 2], "names": ["a"]} for n in range(2000)},
        "filled_later": [None] * 2000,
        "weight": torch.nn.Parameter(torch.zeros(2)),
        "text": "x" * 10_000,
    }
    first, second = held(**things)
    for name, thing in things.items():
        assert getattr(first, name) is thing and getattr(second, name) is thing, name


def test_many_small_arrays_are_shared() -> None:
    first, second = held(rows=[np.zeros(4) for _ in range(2000)])
    assert first.rows is not second.rows and first.rows[-1] is second.rows[-1]


def test_the_memory_of_a_data_frame_is_not_copied() -> None:
    import pandas as pd

    frame = pd.DataFrame({"a": np.arange(400_000.0), "b": np.arange(400_000.0)})
    first, _ = held(frame=frame)
    assert first.frame is not frame and np.shares_memory(first.frame["a"].to_numpy(), frame["a"].to_numpy())


def test_locks_functions_and_sentinels_are_shared() -> None:
    class Local:
        pass

    mark = object()
    things = {
        "lock": threading.Lock(),
        "own": threading.local(),
        "transform": lambda x: x,
        "kind": Local,
        "mark": mark,
    }
    first, _ = held(**things, thing=Local())
    for name, thing in things.items():
        assert getattr(first, name) is thing
    assert type(first.thing) is Local


def test_getstate_decides_what_is_copied(tmp_path: Path) -> None:
    first, _ = duplicate(Reopening(tmp_path), 2)
    assert first.file is None


class Reopening:
    def __init__(self, folder: Path) -> None:
        self.file: Any = (folder / "x").open("w")

    def __getstate__(self) -> dict[str, Any]:
        self.file.close()
        return {"file": None}


def endless() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    "thing",
    [
        lambda folder: (folder / "x").open("wb"),
        lambda folder: sqlite3.connect(":memory:"),
        lambda folder: endless(),
    ],
    ids=["file", "connection", "generator"],
)
def test_objects_that_cannot_be_copied_are_refused(thing: Any, tmp_path: Path) -> None:
    owned = thing(tmp_path)
    with pytest.raises(UncopyableError, match="cannot be copied for each thread"):
        duplicate(Holder(owned=owned), 2)
    getattr(owned, "close", lambda: None)()


def test_too_many_objects_are_refused() -> None:
    with pytest.raises(UncopyableError, match="too many objects"):
        duplicate([Holder(number=n) for n in range(120_000)], 1)
    with pytest.raises(UncopyableError, match="too large"):
        duplicate([bytearray(2**20) for n in range(70)], 1)
