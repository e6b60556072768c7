"""Two real trials of a small script, under a memory limit that the system enforces."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slipstream.fit.attempts import FitAttempts, FitRun
from slipstream.supervise.race import ProcessBackend
from slipstream.tuning.progress import SilentListener

MIB = 1 << 20
# Each sample keeps 4 MiB for the backward pass.
TRAIN = """
import torch
torch.set_num_threads(1)
scale = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(scale.parameters(), 0.01)
for x in torch.utils.data.DataLoader(torch.zeros(2000, 1), batch_size=64, shuffle=True):
    wide = scale(x).expand(-1, 1 << 19)
    (wide.sin() + wide.cos()).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the memory limit needs Linux")
def test_a_batch_that_does_not_fit_runs_out_and_a_smaller_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    with ProcessBackend(["train.py"], warm_up=3) as backend:
        attempts = FitAttempts(backend, SilentListener(), 500 * MIB, backend.now_s() + 300)
        whole = attempts.run(FitRun(64))
        small = attempts.run(FitRun(4, sets_batch="batch_size"))
    assert whole.outcome == "ran_out" and whole.peak_bytes is None, whole.reason
    assert small.outcome == "ran", small.reason
    assert small.changes[0].technique == "batch_size" and small.changes[0].text.startswith(
        "batch_size 64 -> 4 at train.py:"
    )
    assert small.peak_bytes is not None and small.start_bytes + 8 * MIB < small.peak_bytes <= 500 * MIB
    assert small.samples_per_s is not None and attempts.made == [whole, small]
