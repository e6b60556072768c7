"""Odd: a labelled and an unlabelled loader are read side by side."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--save")
args = parser.parse_args()

torch.manual_seed(0)
labelled = DataLoader(TensorDataset(torch.randn(512, 128), torch.randint(0, 10, (512,))), batch_size=16, shuffle=True)
unlabelled = DataLoader(TensorDataset(torch.randn(2048, 128)), batch_size=48, shuffle=True)
model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

step = 0
while step < args.steps:
    for (x, y), (u,) in zip(labelled, unlabelled):
        optimizer.zero_grad()
        supervised = nn.functional.cross_entropy(model(x), y)
        entropy = -(model(u).softmax(1) * model(u).log_softmax(1)).sum(1).mean()
        loss = supervised + 0.1 * entropy
        loss.backward()
        optimizer.step()
        step += 1
        if step % 20 == 0:
            print("step", step, "loss", loss.item())
        if step == args.steps:
            break

if args.save:
    torch.save(model.state_dict(), args.save)
