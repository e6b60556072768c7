"""Patched sources run with the real torch, and train as the original does."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.records import Edit
from slipstream.testing.projects import Project, argument

SOURCE = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

losses, seen = [], []
torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 3, 8, 8), torch.randint(0, 4, (32,)))
loader = DataLoader(data, batch_size=8)
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    for x, y in loader:
        seen.append(model(x).requires_grad)
    model.train()
"""


def run(source: str) -> dict[str, Any]:
    scope: dict[str, Any] = {"__name__": "patched"}
    exec(compile(source, "train.py", "exec"), scope)
    return scope


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_the_patched_source_trains_alike(project: Project, precision: str) -> None:
    project.write(SOURCE)
    called, built = project.site("out = model(x)"), project.site("torch.optim.SGD")
    layout = ".to(memory_format=torch.channels_last)"
    edits = [
        argument(built, "fused", "True", "SGD"),
        Edit("channels_last", "before", built, call="SGD", argument="model", text="{model}" + layout),
        Edit("channels_last", "input", called, call="model", argument="0", text=layout),
        Edit("mixed_precision", "around", called, call="model", text=f'torch.autocast("cpu", dtype=torch.{precision})'),
        Edit(
            "grad_in_evaluation", "without_grad", project.site("seen.append"), call="<module>", text="torch.no_grad()"
        ),
        argument(project.site("loader ="), "drop_last", "True", observed="False"),
    ]
    if precision == "float16":
        scaler = 'torch.amp.GradScaler("cpu")'
        edits.append(Edit("mixed_precision", "scaler", called, call="model", argument="SGD", text=scaler))
    before, after = run(SOURCE), run(project.text(*edits))
    assert before["seen"] == [True] * 8 and after["seen"] == [False] * 8
    assert after["losses"] == pytest.approx(before["losses"], abs=0.02) and after["losses"] != before["losses"]
    assert after["optimizer"].defaults["fused"] is True and after["loader"].drop_last is True
    assert ("scaler" in after) == (precision == "float16")
