"""Planted: every batch is cut out of a DataFrame in the training loop."""

import argparse

import numpy as np
import pandas as pd
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=5000)
parser.add_argument("--save")
args = parser.parse_args()

torch.manual_seed(0)
rng = np.random.default_rng(0)
frame = pd.DataFrame(rng.standard_normal((20000, 64)), columns=[f"x{i}" for i in range(64)])
frame["kind"] = rng.choice(["a", "b", "c"], 20000)
frame["target"] = frame["x0"] * 2 + frame["x1"]
features = [f"x{i}" for i in range(64)]

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for step in range(args.steps):
    rows = rng.permutation(20000)[:2048]
    x = torch.tensor(frame.iloc[rows][features].values.tolist())  # <- planted
    y = torch.tensor(frame["target"].values[rows]).float()
    loss = nn.functional.mse_loss(model(x).squeeze(1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.6f}")

if args.save:
    torch.save(model.state_dict(), args.save)
