"""An error in slipstream never ends the training.

With any one callback of slipstream broken, the script ends with the same weights, and slipstream reports once what it
switched off.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from command import start

from slipstream.observe import recorder
from slipstream.records import Ending
from slipstream.testing.faults import broken, listing
from slipstream.trial.lifecycle import TrialSettings, start_run

SCRIPT = Path(__file__).with_name("everything.py")
RARELY, ALWAYS = 10**18, 0  # the time between two batches that take the slow path through the seams, in ns
MODES = (("run", RARELY), ("watch", ALWAYS), ("watch", RARELY))
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


def train_in_mode(mode: Any, long_way_ns: int, train: Callable[[], Weights]) -> Weights:
    """Train in the given mode. The test, not the clock, decides how often a batch takes the slow path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "_CPU_TIMED_NS", long_way_ns)
        trial = start_run(TrialSettings(mode=mode))
        try:
            return train()
        finally:
            trial.leave(Ending("finished", 0, 0.0))


def reached() -> dict[tuple[str, int], set[str]]:
    """The callbacks that the script reaches in each mode, found by one run when the tests are collected."""
    train, found = runpy.run_path(str(SCRIPT))["train"], {}
    for mode, long_way_ns in MODES:
        with listing() as called:
            train_in_mode(mode, long_way_ns, train)
        found[mode, long_way_ns] = called
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "callback" in metafunc.fixturenames:
        planted: dict[str, tuple[str, int]] = {}
        for way, names in reached().items():
            planted = dict.fromkeys(sorted(names), way) | planted
        triples = [(*way, name) for name, way in sorted(planted.items(), key=lambda one: (MODES.index(one[1]), one[0]))]
        metafunc.parametrize(("mode", "long_way_ns", "callback"), triples)


def test_training_survives_a_broken_callback(
    mode: str,
    long_way_ns: int,
    callback: str,
    train: Callable[[], Weights],
    expected: Weights,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with broken(callback):
        weights = train_in_mode(mode, long_way_ns, train)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    complaints = [line for line in capfd.readouterr().err.splitlines() if line.startswith("slipstream: ")]
    assert any(f"planted in {callback}" in line for line in complaints)
    assert len(set(complaints)) == len(complaints)


def test_every_kind_of_callback_is_reached() -> None:
    in_run, in_watch, shortened = ({name.rpartition(".")[0] for name in names} for names in reached().values())
    assert {"step_count.batch", "step_count.backward", "step_count"} <= in_run
    assert {"loader.init", "loader.next", "module.call", "optimizer.init", "optimizer.step"} <= in_watch
    assert {"loader.next", "module.call", "optimizer.step"} <= shortened


def test_run_survives_from_end_to_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "slipstream.testing.faults", "step_count.update", str(SCRIPT), "weights.pt"]
    process = start(command, tmp_path)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "loss" in out
    assert (tmp_path / "weights.pt").exists()
    assert sum("planted in step_count.update" in line for line in err.splitlines()) == 1
