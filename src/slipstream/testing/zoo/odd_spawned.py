"""Odd: training happens in a spawned child process that builds its own loader."""

import argparse

import torch
from torch import multiprocessing, nn
from torch.utils.data import DataLoader, TensorDataset


def train(rank, args):
    torch.manual_seed(rank)
    data = TensorDataset(torch.randn(1024, 128), torch.randint(0, 10, (1024,)))
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = 0
    while step < args.steps:
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0:
                print("step", step, "loss", loss.item(), flush=True)
            if step == args.steps:
                break
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save")
    multiprocessing.spawn(train, args=(parser.parse_args(),), nprocs=1)
