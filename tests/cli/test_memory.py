"""`slipstream memory`, run in a new process as a user would."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TRAIN = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
assert "TORCH_CPP_LOG_LEVEL" not in __import__("os").environ
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for epoch in range(200):
    for (inputs,) in DataLoader(TensorDataset(torch.randn(64, 8)), 16):
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
"""


def test_memory_and_the_report_again(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    options = ["--json", "out.json", "--snapshot", "step.pickle"]
    command = [sys.executable, "-m", "slipstream", "memory", *options, "train.py", "--json", "theirs"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")  # the profiler must not print anything either
    assert done.stdout.startswith(" slipstream memory  train.py --json theirs")
    said = " ".join(done.stdout.split())
    assert "There is no memory snapshot in" in said and "torch makes them on CUDA devices alone" in said
    memory = json.loads((tmp_path / "out.json").read_text())["memory"]
    assert memory["batch_size"] == 16 and [part["batch_size"] for part in memory["batches"]] == [4, 8, 16, 32, 64]
    assert any(line["where"] == "train.py:11" for line in memory["lines"])
    from slipstream.store.sessions import latest, load_session

    saved = latest(tmp_path)
    assert saved is not None and load_session(saved).footprints[0].peak_bytes == memory["peak_bytes"]
