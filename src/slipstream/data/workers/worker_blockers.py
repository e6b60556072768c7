"""Reasons why a loader's batches cannot be built in worker processes.

`obstacle` runs in the script's process, before workers are started, with arguments of the loader. It returns the reason
as a clause, or "" if there is none.

`does_shard` tells whether an iterable dataset divides its data among workers. If a dataset does not divide its data,
each worker yields all of the data. A dataset counts as divided only if its code is seen to ask which worker it runs
in."""

from __future__ import annotations

import ast
import io
import multiprocessing
import pickle
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.utils.data import IterableDataset, IterDataPipe, MapDataPipe, get_worker_info

from slipstream.data.workers.dataset_fingerprint import walk
from slipstream.seams.loader import start_method_of

# Handles that processes must not share, because an offset, a transaction or a connection belongs to one process.
_UNSHARED = ("h5py.", "sqlite3.", "lmdb.", "socket.", "zipfile.", "tarfile.", "netCDF4.", "tables.file.", "_io.")
_HARMLESS = (io.BytesIO, io.StringIO)
_MOST_PICKLED = 2**31  # maximum size of the pickle in bytes, because each spawned worker gets its own copy


def obstacle(arguments: dict[str, Any], num_workers: int) -> str:
    dataset = arguments["dataset"]
    if num_workers and multiprocessing.current_process().daemon:
        return "the process that builds the loader may not start other processes"
    if isinstance(dataset, (IterDataPipe, MapDataPipe)):
        return "data pipes do their own sharding and seeding"
    if isinstance(dataset, IterableDataset):
        reason = _iterable_obstacle(dataset, max(num_workers, arguments.get("num_workers") or 0))
        if reason:
            return reason
    if num_workers == 0:
        return ""
    held = held_on_device(dataset)
    if held:
        return f"the dataset holds a tensor on {held}"
    if start_method(arguments) == "fork":
        handle = _shared_handle(dataset)
        return f"the dataset holds an open {handle}, which processes must not share" if handle else ""
    return _spawn_obstacle(arguments)


def _iterable_obstacle(dataset: Any, num_workers: int) -> str:
    if not does_shard(dataset):
        return "the iterable dataset does not divide its data among workers (get_worker_info), so each would repeat it"
    if num_workers > 1:
        return (
            "each worker of an iterable dataset batches its own share, so the number and size of batches would change"
        )
    return ""


def start_method(arguments: dict[str, Any]) -> str:
    return start_method_of(arguments.get("multiprocessing_context"))


def held_on_device(dataset: Any) -> str:
    return next(
        (
            str(v.device)
            for _, v in walk(dataset)
            if isinstance(v, torch.Tensor) and v.device.type not in ("cpu", "meta")
        ),
        "",
    )


def _shared_handle(dataset: Any) -> str:
    for path, value in walk(dataset):
        kind = handle_kind(value)
        if kind:
            return f"{kind} ({path.lstrip('.')})"
    return ""


def handle_kind(value: Any) -> str:
    """Returns the name of the type if `value` is an open handle that cannot be shared, or "" for anything else."""
    if any(value is stream for stream in (sys.stdin, sys.stdout, sys.stderr)):
        return ""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    is_open = kind.startswith(_UNSHARED) and not isinstance(value, _HARMLESS) and not getattr(value, "closed", False)
    return type(value).__name__ if is_open else ""


# --- spawn and forkserver: the script is imported again and the dataset is pickled ------------------------------------


def _spawn_obstacle(arguments: dict[str, Any]) -> str:
    if not is_main_guarded():
        return 'workers are spawned here, and the script has no `if __name__ == "__main__":` around its training'
    for name in ("dataset", "collate_fn", "worker_init_fn"):
        reason = _pickle_obstacle(arguments.get(name))
        if reason:
            return f"workers are spawned here, and the {name} {reason}"
    return ""


def is_main_guarded() -> bool:
    """Whether the line of the main module that is running now is skipped when another process imports the module."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if path is None:
        return True  # in a notebook or an interactive session, no main module is imported again
    line = 0
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals is vars(main) and frame.f_code.co_name == "<module>":
            line = frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    if line == 0:
        return True  # not called from the main module, so importing it does not run this code
    try:
        with open(path, "rb") as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError):
        return False
    return any(_is_guard(part) and part.lineno <= line <= (part.end_lineno or 0) for part in tree.body)


def _is_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
    )


class _Sink:
    """A file object that counts the bytes written and discards them."""

    num_bytes = 0

    def write(self, data: Any) -> int:
        self.num_bytes += len(data)
        if self.num_bytes > _MOST_PICKLED:
            raise OverflowError
        return len(data)


def _pickle_obstacle(thing: Any) -> str:
    try:
        pickle.Pickler(_Sink(), protocol=5).dump(thing)
    except OverflowError:
        return "is too large to be sent to each worker"
    except Exception as fault:  # the user's __getstate__ may raise anything
        return f"cannot be pickled ({type(fault).__name__})"
    return ""


_QUESTION = get_worker_info.__name__
_MOST = 64  # maximum number of functions that are examined


def does_shard(dataset: Any) -> bool:
    if _asks(dataset):
        return True
    inner = vars(dataset).get("dataset") if hasattr(dataset, "__dict__") else None
    return isinstance(inner, IterableDataset) and does_shard(inner)  # a wrapper yields the samples of `inner`


def _asks(dataset: Any) -> bool:
    """Whether `__iter__`, or a function of its class or module that it calls, asks which worker it runs in."""
    seen: set[CodeType] = set()
    waiting = list(_functions(type(dataset), "__iter__"))
    while waiting and len(seen) < _MOST:
        function = waiting.pop()
        if function.__code__ in seen:
            continue
        seen.add(function.__code__)
        for name in _names(function.__code__):
            if name == _QUESTION or function.__globals__.get(name) is get_worker_info:
                return True
            waiting.extend(_functions(type(dataset), name))
            called = function.__globals__.get(name)
            if isinstance(called, FunctionType) and not called.__module__.startswith("torch."):
                waiting.append(called)
    return False


def _functions(owner: type, name: str) -> Iterator[FunctionType]:
    found = getattr(owner, name, None)
    if isinstance(found, property):
        found = found.fget
    found = getattr(found, "__wrapped__", found)
    if isinstance(found, FunctionType):
        yield found


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
