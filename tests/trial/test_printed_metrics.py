from __future__ import annotations

import sys

import pytest
import torch

from slipstream.seams.patching import Patches
from slipstream.trial.printed_metrics import PrintedMetrics


def _refuse(place: str, fault: BaseException) -> None:
    raise AssertionError(f"{place}: {fault}")


def _printed(*lines: object) -> list[tuple[str, float]]:
    patches = Patches(_refuse, torch.compiler.is_compiling)
    metrics = PrintedMetrics(lambda: 7)
    metrics.install(patches)
    try:
        for line in lines:
            print(*(line if isinstance(line, tuple) else (line,)))
        print("on another stream, accuracy: 0.5", file=sys.stderr)
    finally:
        patches.close()
    found = metrics.take()
    assert not metrics.take() and all(step == 7 for step, _, _ in found)
    return [(name, value) for _, name, value in found]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("epoch 1 val acc: 0.913 time 3.2s", [("val acc", 0.913)]),
        ("Average loss: 0.0456, Accuracy: 9876/10000", [("average loss", 0.0456), ("accuracy", 9876.0)]),
        ("{'eval_loss': 0.512, 'eval_runtime': 3.2}", [("eval_loss", 0.512)]),
        ("step 100: train loss 2.3042, val loss 2.31", [("train loss", 2.3042), ("val loss", 2.31)]),
        ("Loss: tensor(0.12)", [("loss", 0.12)]),
        ("loss=1.2e-3 acc@1 = 77.1", [("loss", 0.0012), ("acc@1", 77.1)]),
        (("accuracy", 0.5, "images/s", 120.0), [("accuracy", 0.5)]),
        ("120 images/s, 3.2 s left, map loading 3/4, error after 3.5s", []),
    ],
)
def test_results_are_read_and_rates_are_not(line: object, expected: list[tuple[str, float]]) -> None:
    assert _printed(line) == expected


def test_objects_and_endless_lines_are_printed_and_not_read() -> None:
    assert _printed(object(), "loss: 1 " * 1000) == []
