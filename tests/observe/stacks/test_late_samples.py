"""Samples of arithmetic after the last call of a dataset's method, which are taken in torch's code."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
from torch.utils.data import Dataset, Subset
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from slipstream.observe.recorder import Recorder
from slipstream.observe.stacks.late_samples import line_of_arithmetic, returned_from
from slipstream.observe.stacks.sampler import StackSampler
from slipstream.wire.spool import MemorySink


def _only_picks(x: Any, i: int) -> Any:
    return x[i], x[i + 1 :]


def _computes(x: Any, i: int) -> Any:
    y = (x[i] @ x) ** 2
    return y, i


def _computes_at_the_end(x: Any, i: int) -> Any:
    y = abs(x[i] @ x)
    return y / 255


def _calls_at_the_end(x: Any, i: int) -> Any:
    y = x[i] @ x
    return abs(y)


@pytest.mark.parametrize(
    ("function", "below"),
    [(_computes, 1), (_computes_at_the_end, 2), (_calls_at_the_end, None), (_only_picks, None)],
    ids=lambda it: str(it),
)
def test_line_with_arithmetic_after_the_last_call(function: Any, below: int | None) -> None:
    code = function.__code__
    assert line_of_arithmetic(code) == (None if below is None else code.co_firstlineno + below)


class Computed(Dataset[Any]):
    def __init__(self) -> None:
        self.frames: list[FrameType] = []

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        self.frames.append(sys._getframe(1))
        return index * 2


class Picked(Computed):
    def __getitem__(self, index: int) -> Any:
        self.frames.append(sys._getframe(1))
        return self.frames, index


def _frame_of_torch(kept: Computed, dataset: Any) -> FrameType:
    _MapDatasetFetcher(dataset, True, list, False).fetch([0, 1])
    frame = kept.frames[0]
    while not frame.f_code.co_filename.endswith("fetch.py"):
        assert frame.f_back is not None
        frame = frame.f_back
    return frame


def test_late_sample_is_assigned_to_the_line_of_the_dataset() -> None:
    for wrap in (lambda data: data, lambda data: Subset(data, [0, 1, 2])):
        kept = Computed()
        found = returned_from(_frame_of_torch(kept, wrap(kept)))
        assert found is not None and found.code is Computed.__getitem__.__code__
        assert found.line == found.code.co_firstlineno + 2


def test_late_sample_of_a_dataset_that_only_indexes_stays_in_torch() -> None:
    kept = Picked()
    assert returned_from(_frame_of_torch(kept, kept)) is None
    assert returned_from(sys._getframe()) is None


def test_late_sample_counts_as_a_transform() -> None:
    kept = Computed()
    frame = _frame_of_torch(kept, kept)
    sampler = StackSampler(Recorder(MemorySink()), lambda: 0)
    _, stage, file, _, function, expression, _, in_call, _ = sampler._returned_key(frame, returned_from(frame) or ...)  # type: ignore[arg-type]
    assert (stage, file, function, expression, in_call) == (
        "transform",
        __file__,
        "__getitem__",
        "return index * 2",
        True,
    )
