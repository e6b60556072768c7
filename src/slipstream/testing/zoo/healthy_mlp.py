"""Healthy: a compute-bound perceptron on data in memory."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3000)
parser.add_argument("--save")
args = parser.parse_args()

torch.manual_seed(0)
data = TensorDataset(torch.randn(2048, 512), torch.randint(0, 10, (2048,)))
loader = DataLoader(data, batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)

step = 0
while step < args.steps:
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.6f}")
        if step == args.steps:
            break

if args.save:
    torch.save(model.state_dict(), args.save)
