"""Odd: the weights are updated by hand; torch.optim is never used."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--save")
args = parser.parse_args()

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(1024, 128), torch.randint(0, 10, (1024,))), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 10))

step = 0
while step < args.steps:
    for x, y in loader:
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(p.grad, alpha=-0.1)
        step += 1
        if step % 20 == 0:
            print("step", step, "loss", loss.item())
        if step == args.steps:
            break

if args.save:
    torch.save(model.state_dict(), args.save)
