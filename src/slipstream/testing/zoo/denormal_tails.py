"""Planted: sounds that die away; the tail of each is too small for normal floating-point numbers, and means nothing."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Listener(nn.Module):
    """Hears levels in ever longer windows."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2048, 10)

    def forward(self, power):
        levels = 0.0
        for window in (1, 2, 4):
            levels = levels + power.lerp(power.roll(window, dims=1), 0.5).sqrt()
        return self.head(levels / 3)


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3000)
parser.add_argument("--save")
args = parser.parse_args()

torch.manual_seed(0)
decay = torch.cat([torch.logspace(0, -3, 512), torch.full((1536,), 1e-39)])  # then next to silence
data = TensorDataset(torch.rand(2048, 2048) * decay, torch.randint(0, 10, (2048,)))
loader = DataLoader(data, batch_size=256, shuffle=True)
model = Listener()
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
