"""Obstacles to threads, checked before a loader is built."""

from __future__ import annotations

import functools
import random
import sqlite3
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from slipstream.data.threads.blockers import thread_obstacle

connection = sqlite3.connect(":memory:")


def asked(dataset: Any, num_workers: int = 0, worker_init_fn: Any = None) -> str:
    return thread_obstacle({"dataset": dataset, "num_workers": num_workers, "worker_init_fn": worker_init_fn})


class Plain(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class Global(Plain):
    def __getitem__(self, index: int) -> int:
        return int(connection.execute("select ?", [index]).fetchone()[0])


class Asking(Plain):
    def __getitem__(self, index: int) -> int:
        return index if get_worker_info() is None else 0


rng_state = random.Random(3)


def jitter(value: int) -> float:
    return value + rng_state.random()


class Transformed(Plain):
    def __init__(self, transform: Any) -> None:
        self.transform = transform


def closed_over(generator: np.random.Generator) -> Any:
    return lambda value: value + generator.random()


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        yield 1


def test_a_plain_dataset_has_no_obstacle() -> None:
    assert asked(Plain()) == asked(Plain(), 2) == asked([1, 2]) == ""


def test_obstacles_are_found() -> None:
    assert "one at a time" in asked(Stream())
    assert "through connection, an open Connection" in asked(Global())
    assert "worker_init_fn prepares a worker process" in asked(Plain(), 2, print)
    assert "worker_init_fn prepares a worker process" in asked(Plain(), 2, lambda number: torch.set_num_threads(2))
    assert asked(Plain(), 2, lambda number: np.random.seed(torch.initial_seed() % 2**32)) == ""


def test_the_seeding_function_of_transformers_is_recognised() -> None:
    def seed_worker(number: int, rank: int) -> None:
        jitter(number + rank)

    assert asked(Plain(), 2, functools.partial(seed_worker, rank=0)) != ""
    seed_worker.__module__ = "transformers.trainer_utils"
    assert asked(Plain(), 2, functools.partial(seed_worker, rank=0)) == ""
    assert "which worker it runs in" in asked(Asking(), 2)


def test_only_generators_outside_the_dataset_are_obstacles() -> None:
    assert "draws from rng_state" in asked(Transformed(jitter))
    assert "draws from generator" in asked(Transformed(closed_over(np.random.default_rng(3))))
    assert asked(Transformed(np.random.default_rng(3))) == ""


def test_worker_functions_are_no_obstacle_without_workers() -> None:
    assert asked(Plain(), 0, print) == asked(Asking()) == ""


def test_a_tensor_on_a_device_is_an_obstacle() -> None:
    dataset: Any = Plain()
    dataset.weight = torch.ones(1, device="meta")
    assert asked(dataset) == ""  # a meta tensor holds no memory of a device


def test_a_library_that_is_not_thread_safe_is_an_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import ModuleType

    monkeypatch.setitem(globals(), "reader", ModuleType("netCDF4"))
    assert "netCDF4 must not be called by several threads" in asked(Reading())


class Reading(Plain):
    def __getitem__(self, index: int) -> int:
        return int(reader.open(index))  # type: ignore[name-defined]  # noqa: F821


def test_a_refused_loader_does_not_affect_the_next_one(applied: Any) -> None:
    with applied(thread_workers=2) as context:
        assert [int(batch) for batch in DataLoader(Stream(), 1)] == [1]
        assert [int(batch) for batch in DataLoader([3, 4], 1)] == [3, 4]
    assert "one at a time" in context.declined[0] and "test_blockers.py:" in context.declined[0]
    assert len(context.changes) == 1
