"""Races of every shape of training that `tune` promises to support, with forked trials. Each trial pauses, continues,
and trains like its control."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from slipstream.records import Choice, Recipe, Tick, TrialSpec
from slipstream.supervise.race import ProcessBackend
from slipstream.testing.zoo import ZOO, Case

SHAPES: dict[str, Tick] = {
    "lightning_no_workers": "optimizer",
    "odd_critic": "optimizer",
    "odd_iterable": "optimizer",
    "odd_by_hand": "backward",
}
if "SLIPSTREAM_EVERY" in os.environ:  # make promises
    SHAPES |= {
        "transformers_slow_transform": "optimizer",
        "accelerate_slow_collate": "optimizer",
        "odd_accumulation": "optimizer",
        "odd_spawned": "optimizer",
        "odd_compiled_step": "optimizer",
        "odd_inference": "forward",
    }


@pytest.mark.parametrize("case", [case for case in ZOO if case.name in SHAPES], ids=lambda case: case.name)
def test_a_race_of(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in case.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    trials = [TrialSpec(0, "base"), TrialSpec(1, "twin", Recipe((Choice("nothing"),)))]
    with ProcessBackend([str(case.file)], tick=SHAPES[case.name], may_fork=True) as backend:
        assert [backend.enter(trial) for trial in trials] == [None, None]
        for number in range(2):
            for trial in trials:
                timing = backend.run_block(trial.ident, number, 2, 1)
                assert (timing.failure, timing.num_steps) == (None, 2) and timing.seconds > 0.0
        base, control = (backend.record(trial.ident).fingerprint for trial in trials)
        assert backend.notes == [], "both were forked"
    assert base.digests and base.digests == control.digests and base.losses == control.losses
    assert base.losses or case.name == "odd_inference"
