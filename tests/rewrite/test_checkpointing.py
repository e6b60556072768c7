"""Activation checkpointing: the loop of the model's forward is edited, and the gradients are the same."""

from __future__ import annotations

import pytest
import torch

from slipstream.records import Edit
from slipstream.testing.projects import Project

MODEL = """import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5))

    def forward(self, x, scale):
        return x + scale * self.inside(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x):
        for number, block in enumerate(self.blocks):
            x = block(x, scale=number + 1)  # one
        return x
"""


def again(module: str = "__main__") -> Edit:
    return Edit("checkpointing", "checkpoint", None, argument=module, text="x = ...checkpoint(block, x)")


def gradients(source: str) -> list[torch.Tensor]:
    scope: dict[str, object] = {"__name__": "model"}
    exec(compile(source, "model.py", "exec"), scope)
    torch.manual_seed(0)
    model = scope["Net"]()  # type: ignore[operator]
    model(torch.ones(2, 4)).sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def test_the_loop_of_blocks(project: Project) -> None:
    project.write(MODEL)
    patched = project.text(again())
    line = "torch.utils.checkpoint.checkpoint(block, x, scale=number + 1, use_reentrant=False)"
    assert patched == MODEL.replace("block(x, scale=number + 1)", line).replace(
        "import torch\n", "import torch\nimport torch.utils.checkpoint\n", 1
    )
    assert all(map(torch.equal, gradients(MODEL), gradients(patched)))


def test_in_the_module_that_has_the_class(project: Project) -> None:
    project.write("from nets.model import Net\n")
    path = project.write(MODEL, "nets/model.py")
    (file,) = project.patch(again("nets.model")).files
    assert file.path == path
    assert "is not in the project" in project.why_left(again("torch.nn.modules.linear"))


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("nn.Dropout(0.5)", "nn.BatchNorm1d(4)", "BatchNorm, and a second pass would change its statistics"),
        ("scale=number + 1", "scale=1, cache=self.cache", "may pass on an object"),
        ("for number, block in enumerate(self.blocks):", "for number in range(2):", "no calls of blocks in a loop"),
        (
            "        return x\n",
            "        for block in self.blocks: x = block(x)\n        return x\n",
            "2 calls of blocks",
        ),
    ],
)
def test_what_is_left(project: Project, before: str, after: str, reason: str) -> None:
    project.write(MODEL.replace(before, after))
    assert reason in project.why_left(again())
