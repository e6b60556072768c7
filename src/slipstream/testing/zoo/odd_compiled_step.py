"""Odd: the function that computes the loss is compiled as one full graph, with the model inside it."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--save")
args = parser.parse_args()

torch.manual_seed(0)
data = TensorDataset(torch.randn(1024, 128), torch.randint(0, 10, (1024,)))
loader = DataLoader(data, batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


@torch.compile(fullgraph=True, backend="aot_eager")
def compute_loss(x, y):
    return nn.functional.cross_entropy(model(x), y)


step = 0
while step < args.steps:
    for x, y in loader:
        optimizer.zero_grad()
        loss = compute_loss(x, y)
        loss.backward()
        optimizer.step()
        step += 1
        if step % 20 == 0:
            print("step", step, "loss", loss.item())
        if step == args.steps:
            break

counters = torch._dynamo.utils.counters
print("graphs", counters["stats"]["unique_graphs"], "breaks", sum(counters["graph_break"].values()))
if args.save:
    torch.save(model.state_dict(), args.save)
