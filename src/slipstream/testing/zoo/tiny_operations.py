"""Planted: a recurrent cell written as a Python loop over hundreds of tiny tensors."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SlowCell(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8) * 0.1)
        self.bias = nn.Parameter(torch.zeros(8))
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        state = torch.zeros(x.shape[0], 8)
        for t in range(x.shape[1]):
            state = torch.tanh(x[:, t] + state @ self.weight + self.bias)  # <- planted
        return self.head(state)


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3000)
parser.add_argument("--save")
args = parser.parse_args()

torch.manual_seed(0)
data = TensorDataset(torch.randn(2048, 150, 8), torch.randint(0, 10, (2048,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = SlowCell()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

step = 0
while step < args.steps:
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
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
