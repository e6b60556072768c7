"""The purpose of a loop around a sampled line, for typical source code."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from slipstream.observe.stacks.source_loops import refine
from slipstream.testing.made_sessions import made_stack


def stage_at(folder: Path, source: str, line: int, stage: str = "other", phase: str = "other") -> str:
    file = folder / "train.py"
    file.write_text(textwrap.dedent(source).lstrip())
    return refine(made_stack(stage, line, 5, phase=phase, file=str(file)))


READS = [
    "for p, t in zip(preds, labels):\n    hits += p.item() == t.item()\n",
    "for i in range(len(labels)):\n    hits += preds[i].item() == labels[i].item()\n",
    "hits = [\n    p.item() for p in preds]\n",
    "norms = {n: p.grad.norm(2).item() for n, p in model.named_parameters()\n  if p.requires_grad}\n",
]
READS.append("for n, p in model.named_parameters():\n    row[n] = np.histogram(p.grad.numpy())\n")
UPDATES = [
    "for p in params:\n    p.data -= lr * p.grad\n",
    "for i, p in enumerate(self.params):\n    self.m[i] = b1 * self.m[i] + (1 - b1) * p.grad\n",
    "for p in params:\n    p.grad = None\n",
    "for e, p in zip(ema.parameters(), net.parameters()):\n    e.mul_(0.99).add_(p, alpha=0.01)\n",
    "for k, v in ema.state_dict().items():\n    v.copy_(v * d + (1 - d) * now[k])\n",
]
NEITHER = [
    "for x, y in loader:\n    loss = step(x, y)\n    total += loss.item()\n",
    "for x, y in loader:\n    n += (y > 0).sum().item()\n",
    "for x, y in loader:\n    loss.backward(); y.item()\n",
    "for i in range(n):\n    x = torch.tensor(frame.iloc[i])\n",
    "for image in images:\n    image.sub_(mean)\n",
    "for p in params:\n    loss.backward(); p.data -= lr * p.grad\n",
    "x = torch.stack(rows)\ny = 2\n",
    "for p in (:\n    p.item()\n",
    "for p in x:\n    p.item(" + "-" * 9000 + "1)\n",
]


@pytest.mark.parametrize(
    ("source", "stage"),
    [(s, "sync") for s in READS] + [(s, "update") for s in UPDATES] + [(s, "other") for s in NEITHER],
)
@pytest.mark.parametrize("line", [1, 2])
def test_stage_of_a_source_loop(tmp_path: Path, source: str, stage: str, line: int) -> None:
    assert stage_at(tmp_path, source, line) == stage


def test_the_innermost_loop_decides(tmp_path: Path) -> None:
    source = """
    for p, t in zip(preds, labels):
        hits += p.item()
        for q in params:
            q.data -= q.grad
    """
    assert [stage_at(tmp_path, source, line) for line in (2, 4)] == ["sync", "update"]


def test_only_samples_of_the_main_loop_are_refined(tmp_path: Path) -> None:
    """Logging and saving keep their stages, and samples of the building of batches are not refined."""
    assert stage_at(tmp_path, UPDATES[0], 2, "logging") == "logging"
    assert stage_at(tmp_path, READS[0], 2, "transform", "input") == "transform"
