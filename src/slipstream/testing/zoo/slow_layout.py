"""Planted: convolutions and pools in the default layout, where channels_last is faster."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--save")
args = parser.parse_args()


def block(inside, outside):
    return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(), nn.MaxPool2d(3, 1, 1))


torch.manual_seed(0)
images = torch.randn(256, 3, 32, 32)
labels = torch.randint(0, 10, (256,))
model = nn.Sequential(block(3, 32), block(32, 32), block(32, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for step in range(args.steps):
    rows = torch.randint(0, 256, (8,))
    loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])  # <- planted
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.6f}")

if args.save:
    torch.save(model.state_dict(), args.save)
