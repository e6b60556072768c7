"""Measures the length of every sample of a dataset: the length of its first sequence, or of its `input_ids`.

A Hugging Face dataset with a column `input_ids` is measured in this process, from that column alone. Any other dataset
is read sample by sample, in a forked process where possible. Files that the dataset opens are then not open in the
script's process when the script forks its workers. The measurement is refused if it would take too long or has side
effects."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from slipstream.data.samples.hugging_face import is_hugging_face
from slipstream.data.workers.dataset_fingerprint import difference, look
from slipstream.data.workers.dataset_generators import generators_of
from slipstream.data.workers.outside_state import OutsideState
from slipstream.data.workers.worker_blockers import obstacle
from slipstream.seams.rng_state import RngState

MOST_S = 5.0
_ESTIMATE_EVERY = 16  # number of samples between two estimates of the total time
_ROWS = 1000  # rows of a Hugging Face dataset that are read at a time
_TOKENS = "input_ids"
_TIMEOUT_FACTOR = 4.0  # after this multiple of the allowed time, the process counts as hanging


class UnknownLengthsError(Exception):
    """The lengths cannot be measured. The message is the reason, as a clause."""


def lengths_of(dataset: Any, most_s: float = MOST_S) -> Any:
    """Returns the lengths of all samples as an array. Raises UnknownLengthsError, for example if a sample draws random
    numbers. The states of the generators are then restored."""
    is_forkable = "fork" in multiprocessing.get_all_start_methods()
    if _has_columns(dataset) or not is_forkable or obstacle({"dataset": dataset, "multiprocessing_context": "fork"}, 1):
        return _measure(dataset, most_s)
    answer = _measure_in_child(dataset, most_s)
    if isinstance(answer, str):
        raise UnknownLengthsError(answer)
    return answer


def _measure_in_child(dataset: Any, most_s: float) -> Any:
    """Returns the lengths, or the reason why they cannot be measured."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(dataset, most_s, there), daemon=True)
    child.start()
    there.close()
    try:
        is_answered = here.poll(_TIMEOUT_FACTOR * most_s)
        return here.recv() if is_answered else "measuring the lengths of the samples took too long"
    except EOFError:
        return "the process that measured the lengths of the samples died"
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
    except Exception as fault:  # an exception of the dataset; if it occurs again, the training loop gets it
        pipe.send(f"{type(fault).__name__}: {fault}")


def _measure(dataset: Any, most_s: float) -> Any:
    before = RngState(generators_of(dataset))
    try:
        lengths = _columns(dataset, most_s) if _has_columns(dataset) else _samples(dataset, most_s)
    finally:
        has_drawn = before.has_moved()
        if has_drawn:
            before.restore()
    if has_drawn:
        raise UnknownLengthsError("random numbers are drawn for the samples, so their lengths may change every time")
    return np.asarray(lengths, dtype=np.int64)


def _has_columns(dataset: Any) -> bool:
    return is_hugging_face(dataset) and _TOKENS in (getattr(dataset, "column_names", None) or ())


def _columns(dataset: Any, most_s: float) -> list[int]:
    start_s = time.monotonic()
    lengths: list[int] = []
    for start in range(0, len(dataset), _ROWS):
        lengths += [len(tokens) for tokens in dataset[start : start + _ROWS][_TOKENS]]
        _check_time(time.monotonic() - start_s, len(lengths), len(dataset), most_s)
    return lengths


def _samples(dataset: Any, most_s: float) -> list[int]:
    start_s = time.monotonic()
    lengths: list[int] = []
    if reason := OutsideState(dataset).obstacle():  # reading a sample would do this once more than in the plain script
        raise UnknownLengthsError(reason)
    fingerprint: dict[str, Any] = {}
    for index in range(len(dataset)):
        length = length_of(dataset[index])
        if length is None:
            raise UnknownLengthsError("the samples contain no sequence that has a length")
        lengths.append(length)
        if index == 0:  # the first sample may open files
            fingerprint, start_s = look(dataset, 2), time.monotonic()
        elif index == 1 and (changed := difference(fingerprint, look(dataset, 2))):
            raise UnknownLengthsError(f"reading a sample changes {changed} of the dataset")
        elif index % _ESTIMATE_EVERY == 0:
            _check_time(time.monotonic() - start_s, index, len(dataset), most_s)
    return lengths


def _check_time(spent_s: float, num_done: int, num_samples: int, most_s: float) -> None:
    needed_s = spent_s * num_samples / num_done
    if needed_s > most_s and spent_s > 0.02 * most_s:
        raise UnknownLengthsError(f"measuring the lengths of {num_samples:,} samples would take about {needed_s:.0f} s")


def length_of(sample: Any) -> int | None:
    """Returns the length of a sample, or None. For a mapping it is the length of `input_ids`, or else of the first
    value that has a length. For a tuple or list it is the length of the first element. If the first element is a
    number, it is the length of the tuple or list itself."""
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
