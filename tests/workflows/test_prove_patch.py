"""The race of a patch: the patched trial runs other source, and applies no technique."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.diagnose import diagnose
from slipstream.records import (
    Choice,
    Edit,
    Failure,
    Recipe,
    TechniqueNote,
    TrialSpec,
)
from slipstream.sandbox import overlay
from slipstream.supervise.race import ProcessBackend
from slipstream.testing.made_sessions import made_session
from slipstream.testing.simulated_backend import SimulatedBackend
from slipstream.tuning.progress import SilentListener
from slipstream.tuning.trials import RaceError
from slipstream.workflows.prove_patch import PatchedBackend, numerics_of, prove

PATCHED = Recipe((Choice("patch"),))
TRAIN = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
while True:
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
"""


class PatchableBackend(SimulatedBackend):
    """A simulated backend on which a trial with patched files takes half as long."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.over: set[int] = set()
        self.entered: list[TrialSpec] = []
        super().__init__()

    def __enter__(self) -> PatchableBackend:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def lay_over(self, trial: int, files: dict[str, bytes]) -> None:
        assert files == {"/train.py": b"new"}
        self.over.add(trial)

    def enter(self, spec: TrialSpec) -> Failure | None:
        self.entered.append(spec)
        return super().enter(spec)

    def _run_steps(self, trial: Any, factors: Iterator[float], num_steps: int) -> float:
        self._factor = lambda recipe: 0.5 if trial.spec.ident in self.over else 1.0
        return super()._run_steps(trial, factors, num_steps)


def test_the_patched_trial_has_an_empty_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    backends: list[PatchableBackend] = []
    monkeypatch.setattr(
        "slipstream.workflows.prove_patch.ProcessBackend",
        lambda *args, **how: backends.append(PatchableBackend()) or backends[0],
    )
    edits = [Edit("fused_optimizer", "argument", None), Edit("grad_in_evaluation", "without_grad", None)]
    verdict = prove(diagnose(made_session()), {"/train.py": b"new"}, edits, 300.0, SilentListener())
    assert verdict.decision == "kept" and verdict.speed is not None and verdict.speed.low > 1.8
    assert verdict.numerics is not None and verdict.numerics.claimed == "reordered"
    named = {choice.technique for spec in backends[0].entered for choice in spec.recipe.choices}
    assert not named and backends[0].over


def test_a_script_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = PatchableBackend()
    backend._fault = lambda spec, num_steps: "RuntimeError: no"
    monkeypatch.setattr("slipstream.workflows.prove_patch.ProcessBackend", lambda *args, **how: backend)
    with pytest.raises(RaceError, match="could not be started: RuntimeError: no"):
        prove(diagnose(made_session()), {"/train.py": b"new"}, [], 300.0, SilentListener())


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
def test_a_real_trial_finds_the_patched_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('the original was run')\n")
    with ProcessBackend(["train.py"]) as process_backend:
        backend = PatchedBackend(process_backend, {str(script): TRAIN.encode()})
        assert backend.enter(TrialSpec(0, "candidate", PATCHED)) is None
        timing = backend.run_block(0, 0, 3, 1)
        assert (timing.num_steps, timing.failure) == (3, None)
        record = backend.leave(0)
    assert record.spec.recipe == PATCHED and record.changes == [TechniqueNote("patch", "1 file")]
    assert script.read_text().startswith("raise")


def test_without_an_overlay_it_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit\n")
    with ProcessBackend(["train.py"], use_overlay=False) as process_backend:
        failure = PatchedBackend(process_backend, {str(script): b"new"}).enter(TrialSpec(0, "candidate", PATCHED))
    assert failure is not None and "cannot be covered" in failure.detail and script.read_text() == "raise SystemExit\n"
