"""Maps an index of a dataset to the files that its sample reads.

The mapping is searched among the lists, arrays and tables of paths that are attributes of the dataset. A mapping is
accepted only if it predicts files that were opened for observed batches. The dataset's `__getitem__` is not called,
unless the dataset is itself a list or a tuple. Its length is asked for."""

from __future__ import annotations

import bisect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from slipstream.data.workers.dataset_fingerprint import walk

EntryOf = Callable[[int], Any]  # from an index to the entry of a list on the dataset
PathOf = Callable[[int], str]
BatchFiles = tuple[list[int], list[str]]  # the indices of a batch, and the files that were opened for it
_FEWEST_SAMPLES = 4
_DEPTH = 2  # depth of the search: the attributes of the dataset, and the attributes or elements of these


def learn_paths(dataset: Any, batches: Sequence[BatchFiles]) -> list[PathOf]:
    """Returns a function from an index to a path for each file of a sample whose path is found. Returns [] if no path
    is found, or if too few samples were observed."""
    if sum(len(indices) for indices, _ in batches) < _FEWEST_SAMPLES or not batches[0][1]:
        return []
    found: dict[str, PathOf] = {}  # keyed by the file of the first sample, because two lists may name the same files
    for entry_of in _entries_of(dataset):
        path_of = _prove(entry_of, batches)
        if path_of is not None:
            found.setdefault(path_of(batches[0][0][0]), path_of)
    return list(found.values())


def _prove(entry_of: EntryOf, batches: Sequence[BatchFiles]) -> PathOf | None:
    """Returns the first function from index to path that fits all batches, or None. The path is the entry, after a
    constant directory and before a constant suffix. The directory and the suffix may be empty."""
    first, opened = batches[0]
    part = _entry_at(entry_of, first[0])
    for whole in opened if part else ():
        at = whole.rfind(part)
        before, after = whole[:at], whole[at + len(part) :]
        if at < 0 or (before and not before.endswith(os.sep)) or (after and not after.startswith(".")):
            continue
        is_right = all(f"{before}{_entry_at(entry_of, i)}{after}" in seen for indices, seen in batches for i in indices)
        if is_right and len({_entry_at(entry_of, index) for indices, _ in batches for index in indices}) > 1:
            return lambda index: f"{before}{_entry_at(entry_of, index)}{after}"
    return None


def _entry_at(entry_of: EntryOf, index: int) -> str:
    value = entry_of(index)
    return os.fspath(value) if isinstance(value, (str, os.PathLike)) else ""


# --- the lists on a dataset ------------------------------------------------------------------------------------------


def _entries_of(dataset: Any) -> list[EntryOf]:
    if type(dataset) is Subset:
        chosen = dataset.indices
        return [_through(entry_of, chosen) for entry_of in _entries_of(dataset.dataset)]
    if type(dataset) is ConcatDataset:
        parts = [_entries_of(part) for part in dataset.datasets]
        return [_across(columns, dataset.cumulative_sizes) for columns in zip(*parts, strict=False)]
    num_samples = len(dataset)
    roots = [dataset] if isinstance(dataset, (list, tuple)) else []
    values = [*roots, *(value for _, value in walk(dataset, _DEPTH))]
    return [entry_of for value in values for entry_of in _columns(value, num_samples)]


def _through(entry_of: EntryOf, chosen: Sequence[int]) -> EntryOf:
    return lambda index: entry_of(int(chosen[index]))


def _across(columns: Sequence[EntryOf], ends: Sequence[int]) -> EntryOf:
    def entry_of(index: int) -> Any:
        part = bisect.bisect_right(ends, index)
        return columns[part](index - (ends[part - 1] if part else 0))

    return entry_of


def _columns(value: Any, num_samples: int) -> Iterator[EntryOf]:
    numpy: Any = sys.modules.get("numpy")
    pandas: Any = sys.modules.get("pandas")
    if isinstance(value, (list, tuple)) and len(value) == num_samples:
        yield from _of_rows(value)
    elif numpy is not None and type(value) is numpy.ndarray and value.ndim and len(value) == num_samples:
        if value.dtype.kind in "UO":
            yield from _of_rows(value)
    elif pandas is not None and isinstance(value, pandas.DataFrame) and len(value) == num_samples:
        for position in range(value.shape[1]):
            yield _of_column(value.iloc[:, position])
    elif pandas is not None and isinstance(value, pandas.Series) and len(value) == num_samples:
        yield _of_column(value)


def _of_rows(rows: Any) -> Iterator[EntryOf]:
    first: Any = rows[0] if len(rows) else None
    if isinstance(first, (str, os.PathLike)):
        yield lambda index: rows[index]
    elif isinstance(first, dict):
        for key in [key for key, part in first.items() if isinstance(part, (str, os.PathLike))]:
            yield lambda index, key=key: rows[index].get(key)  # type: ignore[misc]
    elif isinstance(first, (list, tuple)) or getattr(first, "ndim", 0) == 1:
        for at in [at for at, part in enumerate(first) if isinstance(part, (str, os.PathLike))]:
            yield lambda index, at=at: rows[index][at]  # type: ignore[misc]


def _of_column(column: Any) -> EntryOf:
    return lambda index: column.iat[index]
