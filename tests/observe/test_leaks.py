from __future__ import annotations

import sys
from collections import deque
from pathlib import Path

import torch

from slipstream.observe.leaks import LiveTensors, MemoryGauge, count_tensors, find_filling_line, find_leaks
from slipstream.observe.training_length import find_length


def test_a_list_of_losses_is_a_leak_and_a_list_of_numbers_is_not() -> None:
    weight = torch.ones(3, requires_grad=True)
    losses, numbers = [], []
    for _ in range(20):
        loss = (weight * 2).sum()
        losses.append(loss)
        numbers.append(loss.item())
    leaks = {leak.name: leak for leak in find_leaks(sys._getframe(), 20)}
    assert set(leaks) == {"losses"}
    assert leaks["losses"].num_tensors == 20
    assert leaks["losses"].site is not None and leaks["losses"].site.text == "losses.append(loss)"


def test_a_sum_that_keeps_its_graph_is_a_leak() -> None:
    weight = torch.ones(3, requires_grad=True)
    total = torch.zeros(())
    clean = 0.0
    for _ in range(20):
        total = total + (weight * 2).sum()
        clean += float((weight * 2).sum())
    (leak,) = find_leaks(sys._getframe(), 20)
    assert (leak.name, leak.is_sum) == ("total", True)


def test_values_that_every_step_rebuilds_are_not_leaks() -> None:
    """Examples: a penalty over all layers, or the outputs of a loop over time. A single snapshot cannot distinguish
    them from a sum over steps."""
    weight = torch.ones(3, requires_grad=True)
    total, kept, looks = torch.zeros(()), [], []
    for step in range(40):
        outputs = [(weight * term).sum() for term in range(30)]
        penalty = torch.zeros(())
        for output in outputs:
            penalty = penalty + output
        total = total + penalty
        kept.append(penalty)
        if step == 20:
            looks.append(LiveTensors(sys._getframe(), step))
    assert {leak.name for leak in find_leaks(sys._getframe(), 40)} >= {"outputs", "penalty"}
    assert {leak.name for leak in find_leaks(sys._getframe(), 40, looks[0])} == {"total", "kept"}


class Log:
    def __init__(self) -> None:
        self.kept: dict[int, torch.Tensor] = {}

    def keep(self, key: int, value: torch.Tensor) -> None:
        self.kept[key] = value


def test_attribute_of_a_user_object_is_a_leak() -> None:
    weight, log = torch.ones(3, requires_grad=True), Log()
    for step in range(20):
        log.keep(step, (weight * 2).sum())
    (leak,) = find_leaks(sys._getframe(), 20)
    assert leak.name == "log.kept" and leak.site is not None and leak.site.text == "self.kept[key] = value"


def test_records_and_lists_by_name_keep_tensors_too() -> None:
    weight = torch.ones(3, requires_grad=True)
    records: list[dict[str, torch.Tensor]] = []
    curves: dict[str, list[torch.Tensor]] = {"loss": [], "recent": deque(maxlen=5)}  # type: ignore[dict-item]
    for _ in range(20):
        loss = (weight * 2).sum()
        records.append({"loss": loss, "out": weight * 2})
        curves["loss"].append(loss)
        curves["recent"].append(loss)
    leaks = {leak.name: leak for leak in find_leaks(sys._getframe(), 20)}
    assert {name: leak.num_tensors for name, leak in leaks.items()} == {"records": 40, "curves": 20}
    texts = [leak.site.text if leak.site else "" for leak in leaks.values()]
    assert sorted(texts) == ['curves["loss"].append(loss)', 'records.append({"loss": loss, "out": weight * 2})']


def test_bounded_deque_is_not_a_leak() -> None:
    weight, recent = torch.ones(3, requires_grad=True), deque(maxlen=50)
    for _ in range(40):
        recent.append((weight * 2).sum())
    assert not find_leaks(sys._getframe(), 40) and len(recent) == 40


def test_plain_tensors_leak_where_they_grow_until_the_end() -> None:
    data = [torch.ones(2) for _ in range(100)]
    cache: dict[int, torch.Tensor] = {}
    history = []
    looks = []
    for step in range(60):
        cache[step % 30] = torch.ones(4)
        history.append(data[step].clone())
        if step in (9, 39):
            looks.append(LiveTensors(sys._getframe(), step))
    early, late = ([leak.name for leak in find_leaks(sys._getframe(), 60, one)] for one in looks)
    assert sorted(early) == ["cache", "history"] and late == ["history"]
    (leak,) = find_leaks(sys._getframe(), 60, looks[1])
    assert not leak.has_graph and leak.num_bytes == 60 * 8
    assert not find_leaks(sys._getframe(), 60), "one look does not tell"


def test_tensors_with_and_without_a_graph_are_counted() -> None:
    weight = torch.ones(3, requires_grad=True)
    assert count_tensors([weight * 2, torch.ones(1), "text"]) == (1, 2)


def test_resident_memory_is_this_process() -> None:
    gauge = MemoryGauge()
    assert gauge.read(3, 5).resident_bytes > 10_000_000
    gauge.close()


def test_line_that_fills_the_variable(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("history = []  # history.append()\nfor x in y:\n    a_history.append(x)\n    history.append(x)\n")
    site = find_filling_line(str(file), "history")
    assert site is not None and site.line == 4
    assert find_filling_line(str(file), "nothing") is None


def test_line_that_fills_this_key_with_more_than_numbers(tmp_path: Path) -> None:
    file = tmp_path / "gan.py"
    file.write_text(
        'log["d"].append(d.item())\nlog["fakes"].append(fake)\nkept.append(float(x))\nkept.append(y)\nn.append(z.item())\n'
    )
    lines = [find_filling_line(str(file), *which) for which in (("log", "fakes"), ("log", "d"), ("kept",), ("n",))]
    assert [site.line for site in lines if site] == [2, 1, 4, 5]
    assert (find_filling_line(str(file), "log", "other") or lines[1]).line == 2


def test_key_with_the_most_tensors_is_chosen() -> None:
    history: dict[str, list[object]] = {"losses": [], "fakes": []}
    for step in range(20):
        history["losses"].append(float(step))
        history["fakes"].append(torch.ones(2, requires_grad=True) * step)
    (leak,) = find_leaks(sys._getframe(), 20)
    assert leak.site is not None and 'history["fakes"]' in leak.site.text


def test_length_from_the_scripts_own_variables() -> None:
    import argparse

    args = argparse.Namespace(epochs=90, lr=0.1)
    length = find_length(sys._getframe())
    assert length is not None and args is not None
    assert (length.num_epochs, length.source) == (90, "args.epochs")


def test_no_length_is_none() -> None:
    epochs = "many"  # a string in a variable of that name is not a length
    found = find_length(sys._getframe())
    assert (found, epochs) == (None, "many")


def test_reading_a_container_calls_no_method_of_its_class() -> None:
    """As transformers' mappings, which import every model when their values are read."""

    class Lazy(dict[str, object]):
        def values(self):  # type: ignore[no-untyped-def, override]
            raise AssertionError("read")

        items = values

    mapping = Lazy(kept=[torch.ones(1)])
    assert find_leaks(sys._getframe(), 40) == [], mapping
    LiveTensors(sys._getframe(), 40)
