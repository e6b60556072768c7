"""Trainings that are extreme in one respect: load.py workers|tensors|samples|steps SECONDS. They print the number of
steps."""

import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

kind, seconds = sys.argv[1], float(sys.argv[2])


class Idle(torch.optim.Optimizer):
    """Its steps take a few microseconds, most of which is the call itself."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self, closure=None):
        return None


def batches():
    if kind == "workers":
        while True:
            yield from DataLoader(TensorDataset(torch.ones(100_000, 8)), batch_size=16, num_workers=64)
    if kind == "samples":
        while True:
            yield from DataLoader(TensorDataset(torch.ones(10_000_000, 8)), batch_size=256, shuffle=True)
    while True:
        yield (torch.ones(16, 8),)


torch.manual_seed(0)
if kind == "tensors":
    model = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(8)) for _ in range(20_000))
    optimizer = torch.optim.AdamW(model.parameters())
else:
    model = torch.nn.Linear(8, 2)
    optimizer = Idle(model.parameters()) if kind == "steps" else torch.optim.SGD(model.parameters(), lr=0.01)
count, end_s = 0, 0.0
for (x,) in batches():
    end_s = end_s or time.monotonic() + seconds
    if kind == "tensors":
        optimizer.zero_grad()
        torch.stack(list(model)).sum().backward()
    elif kind != "steps":
        optimizer.zero_grad()
        model(x).sum().backward()
    optimizer.step()
    count += 1
    if time.monotonic() > end_s:
        break
print(count, "steps")
