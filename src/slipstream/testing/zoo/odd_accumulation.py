"""Odd: gradients are accumulated over two batches at first and over four later."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--save")
args = parser.parse_args()

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(4096, 128), torch.randint(0, 10, (4096,))), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def batches():
    while True:
        yield from loader


source = batches()
for step in range(args.steps):
    accumulate = 2 if step < args.steps // 2 else 4
    for _ in range(accumulate):
        x, y = next(source)
        loss = nn.functional.cross_entropy(model(x), y) / accumulate
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0:
        print("update", step, "loss", loss.item() * accumulate)

if args.save:
    torch.save(model.state_dict(), args.save)
