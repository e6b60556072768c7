"""Odd: LBFGS, whose closure runs forward and backward many times in one step."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--save")
args = parser.parse_args()

torch.manual_seed(0)
x = torch.linspace(-3, 3, 512).unsqueeze(1)
y = torch.sin(x)
model = nn.Sequential(nn.Linear(1, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=6)

for step in range(args.steps):

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    if step % 10 == 0:
        print("step", step, "loss", loss.item())

if args.save:
    torch.save(model.state_dict(), args.save)
