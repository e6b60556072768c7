"""What stands against building a loader's batches in threads, as half a sentence; "" if nothing does. Asked in the
riding process, before the loader is built. Whether the dataset can be copied is seen when that is tried."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from torch.utils.data import IterableDataset, IterDataPipe, MapDataPipe, get_worker_info

from slipstream.data.obstacles import handle_kind, held_on_device

_UNSAFE = ("netCDF4", "tables", "osgeo")  # their C libraries must not be called by two threads at once


def thread_obstacle(arguments: dict[str, Any]) -> str:
    dataset = arguments["dataset"]
    if isinstance(dataset, (IterDataPipe, MapDataPipe)):
        return "data pipes share and seed themselves"
    if isinstance(dataset, IterableDataset):
        return "an iterable dataset gives its samples one by one"
    held = held_on_device(dataset)
    if held:
        return f"the dataset holds a tensor on {held}"
    if arguments["num_workers"]:
        if arguments["worker_init_fn"] is not None:
            return "its worker_init_fn prepares a process, and threads share theirs"
        if any(name == get_worker_info.__name__ or value is get_worker_info for name, value in _named(dataset)):
            return "the dataset asks which worker it runs in"
    return _global_obstacle(dataset)


def _global_obstacle(dataset: Any) -> str:
    """Every thread has a dataset of its own, but they share what lies in modules."""
    for name, value in _named(dataset):
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] in _UNSAFE:
            return f"{value.__name__} must not be called by several threads"
        kind = handle_kind(value)
        if kind:
            return f"the dataset reads through the global {name}, an open {kind}, which threads must not share"
    return ""


def _named(dataset: Any) -> Iterator[tuple[str, Any]]:
    """The names that methods of the dataset's class use, with what they mean in their modules."""
    for owner in type(dataset).__mro__:
        for function in list(vars(owner).values()):
            if isinstance(function, FunctionType) and not function.__module__.startswith("torch."):
                for name in function.__code__.co_names:
                    yield name, function.__globals__.get(name)
