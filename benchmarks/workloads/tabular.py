"""A table of floats through a DataLoader into a light perceptron: the step is short, the loader works row by row."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(0)
    rows = torch.randn(100_000, 64)
    target = (rows[:, :8].sum(1) + torch.randn(100_000) > 0).long()  # as in life, not all of it can be learnt
    loader = DataLoader(TensorDataset(rows, target), batch_size=512, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
