"""How long every sample of a dataset is: the length of its first sequence, or of its `input_ids`. Asks for each sample
once, in a forked process: files that are opened for it are not to be open where the script forks its workers. Refuses
where that takes long or leaves a trace."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from slipstream.data.workers.dataset_fingerprint import difference, look
from slipstream.data.workers.rng_state import GeneratorStates
from slipstream.data.workers.worker_blockers import obstacle

MOST_S = 5.0
_TRIED = 16  # samples, before it is judged how long all of them take
_ROWS = 1000  # of a Hugging Face dataset at a time
_TOKENS = "input_ids"
_PATIENCE = 4.0  # times as long as it may take: then the process hangs


class UnknownLengthsError(Exception):
    """Why the lengths cannot be known, as half a sentence."""


def lengths_of(dataset: Any, most_s: float = MOST_S) -> Any:
    """An array of numbers. Random numbers that a sample consumes are put back, and are a reason to refuse."""
    is_forkable = "fork" in multiprocessing.get_all_start_methods()
    if _has_columns(dataset) or not is_forkable or obstacle({"dataset": dataset, "multiprocessing_context": "fork"}, 1):
        return _measure(dataset, most_s)
    answer = _ask_elsewhere(dataset, most_s)
    if isinstance(answer, str):
        raise UnknownLengthsError(answer)
    return answer


def _ask_elsewhere(dataset: Any, most_s: float) -> Any:
    """The lengths, or why they cannot be known."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(dataset, most_s, there), daemon=True)
    child.start()
    there.close()
    try:
        return here.recv() if here.poll(_PATIENCE * most_s) else "asking its samples for their lengths took too long"
    except EOFError:
        return "the process that asked its samples for their lengths died"
    finally:
        child.kill()
        child.join()
        here.close()


def _answer(dataset: Any, most_s: float, pipe: Any) -> None:
    torch.set_num_threads(1)
    try:
        pipe.send(_measure(dataset, most_s))
    except UnknownLengthsError as reason:
        pipe.send(str(reason))
    except Exception as fault:  # the dataset's own: it will raise it in the loop, or not at all
        pipe.send(f"{type(fault).__name__}: {fault}")


def _measure(dataset: Any, most_s: float) -> Any:
    draws = GeneratorStates(dataset)
    before = draws.states()
    try:
        lengths = _columns(dataset, most_s) if _has_columns(dataset) else _samples(dataset, most_s)
    finally:
        has_drawn = draws.have_moved(before)
        if has_drawn:
            draws.restore(before)
    if has_drawn:
        raise UnknownLengthsError("random numbers are drawn for its samples, and lengths may be others every time")
    return np.asarray(lengths, dtype=np.int64)


def _has_columns(dataset: Any) -> bool:
    is_hugging_face = type(dataset).__module__.startswith("datasets.")
    return is_hugging_face and _TOKENS in (getattr(dataset, "column_names", None) or ())


def _columns(dataset: Any, most_s: float) -> list[int]:
    start_s = time.monotonic()
    lengths: list[int] = []
    for start in range(0, len(dataset), _ROWS):
        lengths += [len(tokens) for tokens in dataset[start : start + _ROWS][_TOKENS]]
        _hurry(time.monotonic() - start_s, len(lengths), len(dataset), most_s)
    return lengths


def _samples(dataset: Any, most_s: float) -> list[int]:
    start_s = time.monotonic()
    lengths: list[int] = []
    fingerprint: dict[str, Any] = {}
    for index in range(len(dataset)):
        length = length_of(dataset[index])
        if length is None:
            raise UnknownLengthsError("its samples have no sequence whose length could be taken")
        lengths.append(length)
        if index == 0:  # the first may open files
            fingerprint, start_s = look(dataset, 2), time.monotonic()
        elif index == 1 and (changed := difference(fingerprint, look(dataset, 2))):
            raise UnknownLengthsError(f"reading a sample changes {changed} of the dataset")
        elif index % _TRIED == 0:
            _hurry(time.monotonic() - start_s, index, len(dataset), most_s)
    return lengths


def _hurry(spent_s: float, num_done: int, num_samples: int, most_s: float) -> None:
    needed_s = spent_s * num_samples / num_done
    if needed_s > most_s and spent_s > 0.02 * most_s:
        raise UnknownLengthsError(f"asking {num_samples:,} samples for their lengths would take about {needed_s:.0f} s")


def length_of(sample: Any) -> int | None:
    """Of a mapping its `input_ids`, or else the first value that has a length; of a tuple its first part."""
    if isinstance(sample, Mapping):
        chosen = [sample[_TOKENS]] if _TOKENS in sample else sample.values()
        return next((length for value in chosen if (length := length_of(value)) is not None), None)
    if isinstance(sample, (str, bytes)):
        return len(sample)
    shape = getattr(sample, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if isinstance(sample, (list, tuple)):
        if not sample or isinstance(sample[0], (int, float)):
            return len(sample)
        return length_of(sample[0])
    ids = getattr(sample, _TOKENS, None)
    return length_of(ids) if ids is not None else None
