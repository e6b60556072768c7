"""Odd: a sampler that says it is ten thousand million samples long."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--save")
args = parser.parse_args()


class Forever(Sampler):
    def __len__(self):
        return 10**10

    def __iter__(self):
        generator = torch.Generator().manual_seed(0)
        while True:
            yield int(torch.randint(1024, (1,), generator=generator))


torch.manual_seed(0)
data = TensorDataset(torch.randn(1024, 128), torch.randint(0, 10, (1024,)))
loader = DataLoader(data, batch_size=32, sampler=Forever())
model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for step, (x, y) in zip(range(args.steps), loader):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print("step", step, "loss", loss.item())

if args.save:
    torch.save(model.state_dict(), args.save)
