"""Planted: validation builds a graph for backward that nobody walks."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def validate(model, loader):
    model.eval()
    total = 0.0
    for x, y in loader:
        total += nn.functional.cross_entropy(model(x), y).item()  # <- planted
    model.train()
    return total / len(loader)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(64, 1024)
        self.head = nn.Linear(1024, 10)

    def forward(self, x):
        h = self.inside(x)
        for _ in range(12):
            h = h + torch.tanh(h) * 0.1
        return self.head(h)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--save")
    args = parser.parse_args()
    torch.manual_seed(0)
    train = TensorDataset(torch.randn(2048, 64), torch.randint(0, 10, (2048,)))
    held_out = TensorDataset(torch.randn(2048, 64), torch.randint(0, 10, (2048,)))
    train_loader = DataLoader(train, batch_size=64, shuffle=True)
    held_out_loader = DataLoader(held_out, batch_size=1024)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        for x, y in train_loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.6f} held out {validate(model, held_out_loader):.6f}")
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
