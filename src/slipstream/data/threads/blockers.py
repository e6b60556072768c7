"""Reasons why a loader's batches cannot be built in threads.

`thread_obstacle` runs in the script's process, before any thread is started. It returns the reason as a clause, or ""
if there is none. It does not test whether the dataset can be copied. An attempt to copy the dataset shows that
later."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torch.utils.data import IterableDataset, IterDataPipe, MapDataPipe, get_worker_info

from slipstream.data.workers.dataset_fingerprint import walk
from slipstream.data.workers.worker_blockers import handle_kind, held_on_device
from slipstream.seams.rng_state import is_generator
from slipstream.seams.user_code import is_user_code

_UNSAFE = ("netCDF4", "tables", "osgeo")  # their C libraries must not be called by two threads at once
_SEEDING = {"torch", "numpy", "np", "random", "seed", "manual_seed", "initial_seed"}
_SEEDERS = {
    ("transformers", "seed_worker"),
    ("lightning", "pl_worker_init_function"),
    ("lightning_fabric", "pl_worker_init_function"),
}
_MOST = 256  # maximum number of functions that are examined


def thread_obstacle(arguments: dict[str, Any]) -> str:
    dataset = arguments["dataset"]
    if isinstance(dataset, (IterDataPipe, MapDataPipe)):
        return "data pipes do their own sharding and seeding"
    if isinstance(dataset, IterableDataset):
        return "an iterable dataset yields its samples one at a time"
    held = held_on_device(dataset)
    if held:
        return f"the dataset holds a tensor on {held}"
    named = list(_named(dataset))
    if arguments["num_workers"]:
        if arguments["worker_init_fn"] is not None and not only_seeds(arguments["worker_init_fn"]):
            return "its worker_init_fn prepares a worker process, and threads share one process"
        if any(name == get_worker_info.__name__ or value is get_worker_info for name, value in named):
            return "the dataset asks which worker it runs in"
    return next((reason for name, value in named if (reason := _global_obstacle(name, value))), "")


def only_seeds(function: Any) -> bool:
    """Whether a worker_init_fn uses only names that serve to set seeds. Such a function can run in the script's
    process, and seeds a random number stream there."""
    function = function.func if isinstance(function, functools.partial) else function
    if not isinstance(function, FunctionType):
        return False
    if (function.__module__.partition(".")[0], function.__name__) in _SEEDERS:
        return True
    modules = [value for name, value in _outside(function) if isinstance(value, ModuleType)]
    return set(function.__code__.co_names) <= _SEEDING and all(module.__name__ in _SEEDING for module in modules)


def _global_obstacle(name: str, value: Any) -> str:
    """Returns the reason why threads must not share an object outside the dataset, or "" if they may. Each thread has
    its own copy of the dataset, but all threads share global and enclosed variables."""
    if issubclass(type(value), ModuleType):  # `isinstance` raises for a proxy of a dead object
        is_unsafe = value.__name__.partition(".")[0] in _UNSAFE
        return f"{value.__name__} must not be called by several threads" if is_unsafe else ""
    if is_generator(value):
        return f"the dataset draws from {name}, which is outside the dataset: threads would draw from it in any order"
    kind = handle_kind(value)
    return f"the dataset reads through {name}, an open {kind} that threads must not share" if kind else ""


def _named(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Yields the global and enclosed names that the user's functions behind the dataset use, with their values."""
    seen: set[CodeType] = set()
    waiting = list(_functions(dataset))
    for _, value in walk(dataset):
        waiting.extend(_functions(value))
    while waiting and len(seen) < _MOST:
        function = waiting.pop()
        code = function.__code__
        if code in seen or not is_user_code(code.co_filename):
            continue
        seen.add(code)
        for name, value in _outside(function):
            yield name, value
            if type(value) is FunctionType:
                waiting.append(value)


def _functions(thing: Any) -> Iterator[FunctionType]:
    if isinstance(thing, FunctionType):
        yield thing
        return
    for owner in type(thing).__mro__:
        yield from (value for value in list(vars(owner).values()) if isinstance(value, FunctionType))


def _outside(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name in function.__code__.co_names:
        yield name, function.__globals__.get(name)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:  # the cell is still empty
            continue
