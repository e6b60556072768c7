"""Every shape of training that `tune` promises to race, with real riders that are forked: they stand, go on, and train
as their twin does."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from slipstream.records import Choice, Entrant, Recipe, Tick
from slipstream.supervise.race import Relay
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
    riders = [Entrant(0, "base"), Entrant(1, "twin", Recipe((Choice("nothing"),)))]
    with Relay([str(case.file)], tick=SHAPES[case.name], may_fork=True) as relay:
        assert [relay.enter(rider) for rider in riders] == ["", ""]
        for number in range(2):
            for rider in riders:
                lap = relay.lap(rider.ident, number, 2, 1)
                assert (lap.failure, lap.num_steps) == ("", 2) and lap.seconds > 0.0
        base, twin = (relay.record(rider.ident).witness for rider in riders)
        assert relay.notes == [], "both were forked"
    assert base.digests and base.digests == twin.digests and base.losses == twin.losses
    assert base.losses or case.name == "odd_inference"
