"""Obstacles to workers, for datasets as users write them."""

from __future__ import annotations

import logging
import multiprocessing
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from slipstream.data.workers.worker_blockers import obstacle, start_method
from slipstream.seams.loader import start_method_of


def ask(dataset: Any, wanted: int = 2, **arguments: Any) -> str:
    return obstacle({"dataset": dataset, "multiprocessing_context": "fork", **arguments}, wanted)


class Repeats(IterableDataset[int]):
    def __iter__(self) -> Any:
        yield from range(10)


class Shares(IterableDataset[int]):
    def __iter__(self) -> Any:
        info = get_worker_info()
        yield from range(info.id if info else 0, 10, info.num_workers if info else 1)


class SharesElsewhere(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(self.mine())

    def mine(self) -> Any:
        return _part()


def _part() -> Any:
    info = torch.utils.data.get_worker_info()
    return range(info.id if info else 0, 10)


class Wraps(IterableDataset[int]):
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Any:
        yield from self.dataset


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        (Repeats(), "each would repeat it"),
        (Wraps(Repeats()), "each would repeat it"),
        (Shares(), ""),
        (SharesElsewhere(), ""),
        (Wraps(Shares()), ""),
    ],
)
def test_iterable_datasets(dataset: Any, reason: str) -> None:
    assert reason in ask(dataset, 1) and bool(reason) == bool(ask(dataset, 1))


def test_batches_of_an_iterable_dataset_are_not_divided_differently() -> None:
    """This holds for several added workers and for several workers of the script."""
    for asked, now in ((2, 0), (1, 4), (0, 4)):
        assert "number and size of batches would change" in ask(Shares(), asked, num_workers=now)
    assert ask(Shares(), 0, num_workers=1) == "" and ask([1, 2], 0, num_workers=4) == ""


class Holder:
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


def test_open_file_is_not_shared(tmp_path: Path) -> None:
    path = tmp_path / "records.bin"
    path.write_bytes(b"0123")
    with path.open("rb") as file:
        assert "an open BufferedReader (inner.file)" in ask(Holder(inner=Holder(file=file)))
    assert ask(Holder(inner=Holder(file=file))) == ""  # the file is closed


def test_standard_streams_and_loggers_are_no_obstacle() -> None:
    logger = logging.Logger("made")
    logger.addHandler(logging.StreamHandler(sys.stderr))
    assert ask(Holder(logger=logger, out=sys.stdout)) == ""


def test_spawned_workers_need_a_picklable_dataset() -> None:
    reason = ask([1, 2], multiprocessing_context="spawn", collate_fn=lambda samples: samples)
    assert "the collate_fn cannot be pickled" in reason
    assert ask([1, 2], multiprocessing_context="spawn", collate_fn=None) == ""


def test_spawned_workers_need_a_guarded_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text('train()\nif __name__ == "__main__":\n    train()\n')
    reasons: list[str] = []
    main = ModuleType("__main__")
    vars(main).update(__file__=str(script), train=lambda: reasons.append(ask([1, 2], multiprocessing_context="spawn")))
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(compile(script.read_text(), str(script), "exec"), vars(main))
    bare, guarded = reasons
    assert "__name__" in bare and guarded == ""


def test_reading_the_start_method_does_not_fix_it(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts: Any = multiprocessing.context
    monkeypatch.setattr(contexts._default_context, "_actual_context", None)
    assert start_method({"multiprocessing_context": None}) == start_method_of(None)
    assert multiprocessing.get_start_method(allow_none=True) is None, "the script may still set it"
    assert start_method_of("spawn") == start_method_of(multiprocessing.get_context("spawn")) == "spawn"
