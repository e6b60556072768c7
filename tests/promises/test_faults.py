"""Training never dies of us: with any one of our callbacks broken, the script ends with the same weights, and what was
switched off is said once."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from command import start

from slipstream.records import Ending
from slipstream.runner.ride import RideSettings, board
from slipstream.testing.faults import broken, listing

SCRIPT = Path(__file__).with_name("everything.py")
MODES = ("run", "watch")
Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def train() -> Callable[[], Weights]:
    function: Callable[[], Weights] = runpy.run_path(str(SCRIPT))["train"]
    return function


@pytest.fixture(scope="module")
def expected(train: Callable[[], Weights]) -> Weights:
    return train()


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    yield
    torch.compiler.reset()


def ride(mode: Any, train: Callable[[], Weights]) -> Weights:
    riding = board(RideSettings(mode=mode))
    try:
        return train()
    finally:
        riding.leave(Ending("finished", 0, 0.0))


def reached() -> dict[str, set[str]]:
    """The callbacks that the script reaches in each mode, found by riding once when tests are collected."""
    train, found = runpy.run_path(str(SCRIPT))["train"], {}
    for mode in MODES:
        with listing() as called:
            ride(mode, train)
        found[mode] = called
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "callback" in metafunc.fixturenames:
        in_run, in_watch = reached().values()
        pairs = [("run", name) for name in sorted(in_run)] + [("watch", name) for name in sorted(in_watch - in_run)]
        metafunc.parametrize(("mode", "callback"), pairs)


def test_training_survives_a_broken_callback(
    mode: str, callback: str, train: Callable[[], Weights], expected: Weights, capfd: pytest.CaptureFixture[str]
) -> None:
    with broken(callback):
        weights = ride(mode, train)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    complaints = [line for line in capfd.readouterr().err.splitlines() if line.startswith("slipstream: ")]
    assert any(f"planted in {callback}" in line for line in complaints)
    assert len(set(complaints)) == len(complaints)


def test_every_kind_of_callback_is_reached() -> None:
    in_run, in_watch = ({name.rpartition(".")[0] for name in names} for names in reached().values())
    assert {"tally.batch", "tally.backward", "tally"} <= in_run
    assert {"loader.init", "loader.next", "module.call", "optimizer.init", "optimizer.step"} <= in_watch


def test_run_survives_from_end_to_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "slipstream.testing.faults", "tally.update", str(SCRIPT), "weights.pt"]
    process = start(command, tmp_path)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "loss" in out
    assert (tmp_path / "weights.pt").exists()
    assert sum("planted in tally.update" in line for line in err.splitlines()) == 1
