"""Planted: every weight is written to a log as text at every step."""

import argparse
import json
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3000)
parser.add_argument("--save")
args = parser.parse_args()

torch.manual_seed(0)
data = TensorDataset(torch.randn(4096, 128), torch.randint(0, 10, (4096,)))
loader = DataLoader(data, batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
log = open(os.devnull, "w")

step = 0
while step < args.steps:
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        weights = {name: p.tolist() for name, p in model.named_parameters()}
        print(json.dumps({"step": step, "loss": loss.item(), "weights": weights}), file=log, flush=True)  # <- planted
        step += 1
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.6f}")
        if step == args.steps:
            break

if args.save:
    torch.save(model.state_dict(), args.save)
