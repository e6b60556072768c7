"""Planted: the whole model is saved after every step."""

import argparse
import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3000)
parser.add_argument("--save")
args = parser.parse_args()

torch.manual_seed(0)
data = TensorDataset(torch.randn(4096, 256), torch.randint(0, 10, (4096,)))
loader = DataLoader(data, batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

with tempfile.TemporaryDirectory() as folder:
    step = 0
    while step < args.steps:
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch.save({"model": model.state_dict(), "step": step}, os.path.join(folder, "last.pt"))  # <- planted
            step += 1
            if step % 10 == 0:
                print(f"step {step} loss {loss.item():.6f}")
            if step == args.steps:
                break
    assert torch.load(os.path.join(folder, "last.pt"))["step"] == step - 1

if args.save:
    torch.save(model.state_dict(), args.save)
