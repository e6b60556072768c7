"""Odd: validation in the middle of an epoch, on another loader."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--save")
args = parser.parse_args()

torch.manual_seed(0)
train = DataLoader(TensorDataset(torch.randn(2560, 128), torch.randint(0, 10, (2560,))), batch_size=32, shuffle=True)
held_out = DataLoader(TensorDataset(torch.randn(256, 128), torch.randint(0, 10, (256,))), batch_size=64)
model = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

step = 0
while step < args.steps:
    for x, y in train:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        step += 1
        if step % 20 == 0:
            model.eval()
            with torch.no_grad():
                right = sum(int((model(x).argmax(1) == y).sum()) for x, y in held_out)
            model.train()
            print("step", step, "loss", loss.item(), "right", right)
        if step == args.steps:
            break

if args.save:
    torch.save(model.state_dict(), args.save)
