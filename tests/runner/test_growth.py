from __future__ import annotations

import sys
from pathlib import Path

import torch

from slipstream.runner.growth import MemoryGauge, count_tensors, find_filling_line, find_leaks
from slipstream.runner.length import find_length


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
    assert [leak.name for leak in find_leaks(sys._getframe(), 20)] == ["total"]


def test_graphs_are_told_from_plain_tensors() -> None:
    weight = torch.ones(3, requires_grad=True)
    assert count_tensors([weight * 2, torch.ones(1), "text"]) == (1, 2)


def test_resident_memory_is_this_process() -> None:
    gauge = MemoryGauge()
    assert gauge.read(3, 5).resident_bytes > 10_000_000
    gauge.close()


def test_the_line_that_fills(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("history = []\nfor x in y:\n    total_history.append(x)\n    history.append(x)\n")
    site = find_filling_line(str(file), "history")
    assert site is not None and site.line == 4
    assert find_filling_line(str(file), "nothing") is None


def test_length_from_the_scripts_own_variables() -> None:
    import argparse

    args = argparse.Namespace(epochs=90, lr=0.1)
    length = find_length(sys._getframe())
    assert length is not None and args is not None
    assert (length.num_epochs, length.source) == (90, "args.epochs")


def test_no_length_is_none() -> None:
    epochs = "many"  # a word in a variable of that name is no length
    found = find_length(sys._getframe())
    assert (found, epochs) == (None, "many")
