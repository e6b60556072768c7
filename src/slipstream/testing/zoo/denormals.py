"""Planted: near-silent sound, whose power is too small for normal floating-point numbers."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Smooth(nn.Module):
    def forward(self, power):
        return power.lerp(power.roll(1, dims=1), 0.5)


class Loudness(nn.Module):
    def __init__(self):
        super().__init__()
        self.smooth = Smooth()
        self.head = nn.Linear(2048, 10)

    def forward(self, power):
        for _ in range(3):
            power = self.smooth(power)
        magnitude = power.sqrt()
        return self.head(magnitude / magnitude.mean(dim=1, keepdim=True))


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3000)
parser.add_argument("--save")
args = parser.parse_args()

torch.manual_seed(0)
power = torch.rand(2048, 2048) * 1e-39
data = TensorDataset(power, torch.randint(0, 10, (2048,)))
loader = DataLoader(data, batch_size=256, shuffle=True)
model = Loudness()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

step = 0
while step < args.steps:
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)  # <- planted
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.6f}")
        if step == args.steps:
            break

if args.save:
    torch.save(model.state_dict(), args.save)
