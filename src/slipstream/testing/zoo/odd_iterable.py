"""Odd: an iterable dataset without a length, shared between two workers."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, stride = (info.id, info.num_workers) if info else (0, 1)
        generator = torch.Generator().manual_seed(first)
        for i in range(first, 100_000, stride):
            yield torch.randn(128, generator=generator), i % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--save")
    args = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Stream(), batch_size=32, num_workers=2)
    model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, (x, y) in enumerate(loader):
        if step == args.steps:
            break
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print("step", step, "loss", loss.item())
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
