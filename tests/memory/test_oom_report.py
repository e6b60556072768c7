"""The memory that an exception leaves alive, compared with an independent count of what autograd saved."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from slipstream.memory.oom_report import read_remains
from slipstream.records import LineBytes, ModuleBytes, Remains, Site
from slipstream.report.text.memory import remains_lines

WIDTH = 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.gelu(self.up(self.norm(x)))
        return x + self.down(hidden)


class Deep(nn.Module):
    def __init__(self, fails: bool, is_checkpointed: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 1)
        self.fails, self.is_checkpointed = fails, is_checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.is_checkpointed else block(x)
        if self.fails:
            raise RuntimeError("CUDA out of memory")
        return self.head(x)


def train(model: Deep, batch: torch.Tensor, saved: dict[int, int]) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    model.head(batch).sum().backward()
    optimizer.step()

    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    # Tensors that these hooks have seen have no owner, so the test reads a second, equal pass.
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), pytest.raises(RuntimeError):
        model(batch)
    gc.collect()
    model(batch)


@pytest.fixture
def left() -> Any:
    gc.collect()
    model, batch, saved = Deep(fails=True), torch.randn(64, WIDTH), {}
    try:
        train(model, batch, saved)
    except RuntimeError as error:
        remains = read_remains(error)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    held = weights | {batch.untyped_storage().data_ptr()}
    return model, remains, sum(size for address, size in saved.items() if address not in held)


def test_activations_are_what_the_graph_saved(left: Any) -> None:
    model, remains, saved_bytes = left
    last = 64 * WIDTH * 4  # the output of the last block, which a variable keeps alive and no node saves
    assert remains.kinds["activations"] == saved_bytes + last
    assert remains.kinds["inputs"] == last, "the batch, which the first block saved"
    own = sum(parameter.nbytes for parameter in model.parameters())
    state = remains.kinds["optimizer_state"]
    assert remains.kinds["parameters"] >= own and state >= 2 * model.head.weight.nbytes


def test_modules_lines_and_the_place_of_the_error(left: Any) -> None:
    _, remains, _ = left
    by_path = {module.path: Counter(module.kinds)["activations"] for module in remains.modules}
    prefix = next(path for path in by_path if path.endswith("blocks.0.up")).removesuffix("blocks.0.up")
    up, down = (by_path[f"{prefix}blocks.1.{name}"] for name in ("up", "down"))
    assert up > down, "the hidden layer before and after gelu belongs to up, whose weight it follows"
    lines = {line.site.text: sum(line.kinds.values()) for line in remains.lines}
    assert max(lines, key=lambda text: lines[text]) == "hidden = nn.functional.gelu(self.up(self.norm(x)))"
    assert remains.site is not None and remains.site.text == 'raise RuntimeError("CUDA out of memory")'


def test_nothing_is_recomputed_for_the_count() -> None:
    """To unpack what a checkpoint saved would run the block, which needs memory, and memory has just run out."""
    model, batch, calls = Deep(fails=True, is_checkpointed=True), torch.randn(8, WIDTH), []
    model.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    try:
        model(batch)
    except RuntimeError as error:
        read_remains(error)
    assert len(calls) == 1


def test_text() -> None:
    site = Site("/home/ada/net.py", 12, "x = self.up(x)", "forward")
    modules = [ModuleBytes(f"blocks.{at}.up", "Linear", {"activations": 40_000_000}) for at in range(3)]
    remains = Remains(
        kinds={"parameters": 30_000_000, "activations": 120_000_000, "other": 5},
        modules=modules,
        lines=[LineBytes(site, {"activations": 120_000_000})],
        site=Site("/home/ada/train.py", 7, "loss = model(x)", ""),
        module="blocks.2.up",
    )
    assert list(remains_lines(remains, "/home/ada")) == [
        "memory ran out at train.py:7 in blocks.2.up, with 150 MB in tensors: activations 120 MB, parameters 30 MB",
        "modules that hold the most: blocks.*.up (3 x Linear) 120 MB",
        "lines whose module calls hold the most activations: net.py:12 120 MB",
    ]
    assert list(remains_lines(Remains({}), "/home/ada")) == []
