"""The patched source against the original: the patch is a rider's source, and no technique."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipstream.diagnose import diagnose
from slipstream.records import Choice, Edit, Entrant, Recipe
from slipstream.sandbox import overlay
from slipstream.supervise.race import Relay
from slipstream.testing.made_sessions import made_session
from slipstream.testing.simulated_backend import SimulatedTrack
from slipstream.tuning.progress import Silence
from slipstream.tuning.trials import RaceError
from slipstream.workflows.prove_patch import PatchedTrack, numerics_of, prove

PATCHED = Recipe((Choice("patch"),))
TRAIN = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
while True:
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
"""


class Relayed(SimulatedTrack):
    """Half the step for a rider whose files were laid over."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.over: set[int] = set()
        self.entered: list[Entrant] = []
        super().__init__()

    def __enter__(self) -> Relayed:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def lay_over(self, rider: int, files: dict[str, bytes]) -> None:
        assert files == {"/train.py": b"new"}
        self.over.add(rider)

    def enter(self, entrant: Entrant) -> str:
        self.entered.append(entrant)
        self._factor = lambda recipe: 0.5 if entrant.ident in self.over else 1.0
        return super().enter(entrant)


def test_the_patched_rider_runs_bare(monkeypatch: pytest.MonkeyPatch) -> None:
    tracks: list[Relayed] = []
    monkeypatch.setattr(
        "slipstream.workflows.prove_patch.Relay", lambda *args, **how: tracks.append(Relayed()) or tracks[0]
    )
    edits = [Edit("fused_optimizer", "argument", None), Edit("grad_in_evaluation", "without_grad", None)]
    verdict = prove(diagnose(made_session()), {"/train.py": b"new"}, edits, 300.0, Silence())
    assert verdict.decision == "kept" and verdict.speed is not None and verdict.speed.low > 1.8
    assert verdict.numerics is not None and verdict.numerics.claimed == "reordered"
    named = {choice.technique for entrant in tracks[0].entered for choice in entrant.recipe.choices}
    assert named == {"nothing"} and tracks[0].over  # the control rides too


def test_a_script_that_does_not_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    track = Relayed()
    track._fault = lambda entrant, num_steps: "RuntimeError: no"
    monkeypatch.setattr("slipstream.workflows.prove_patch.Relay", lambda *args, **how: track)
    with pytest.raises(RaceError, match="could not be raced: RuntimeError: no"):
        prove(diagnose(made_session()), {"/train.py": b"new"}, [], 300.0, Silence())


def test_numerics_of_a_patch() -> None:
    def of(*techniques: str) -> str:
        return numerics_of([Edit(name, "start", None) for name in techniques])

    assert (of(), of("pinned_memory"), of("fused_optimizer")) == ("identical", "identical", "reordered")
    assert (of("mixed_precision"), of("mixed_precision", "workers"), of("compile")) == (
        "approximate",
        "redrawn",
        "redrawn",
    )


@pytest.mark.skipif(overlay.probe()[0] is None, reason="no overlay")
def test_a_real_rider_finds_the_patched_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('the original was run')\n")
    with Relay(["train.py"]) as relay:
        track = PatchedTrack(relay, {str(script): TRAIN.encode()})
        assert track.enter(Entrant(0, "candidate", PATCHED)) == ""
        lap = track.lap(0, 0, 3, 1)
        assert (lap.num_steps, lap.failure) == (3, "")
        record = track.leave(0)
    assert record.entrant.recipe == PATCHED and record.changes == ["patch: 1 files"]
    assert script.read_text().startswith("raise")


def test_without_an_overlay_it_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit\n")
    with Relay(["train.py"], use_overlay=False) as relay:
        failure = PatchedTrack(relay, {str(script): b"new"}).enter(Entrant(0, "candidate", PATCHED))
    assert "cannot be covered" in failure and script.read_text() == "raise SystemExit\n"
