"""Healthy: a long epoch, a small validation without gradients after it, few lines printed."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--save")
    args = parser.parse_args()
    torch.manual_seed(0)
    train = TensorDataset(torch.randn(1280, 512), torch.randint(0, 10, (1280,)))
    held_out = TensorDataset(torch.randn(64, 512), torch.randint(0, 10, (64,)))
    train_loader = DataLoader(train, batch_size=32, shuffle=True)
    held_out_loader = DataLoader(held_out, batch_size=64)
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    for epoch in range(args.epochs):
        model.train()
        for x, y in train_loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            correct = sum((model(x).argmax(1) == y).sum().item() for x, y in held_out_loader)
        print(f"epoch {epoch} loss {loss.item():.6f} accuracy {correct / 64:.4f}")
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
