"""Planted: the whole validation set is gone through after every tenth step."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@torch.no_grad()
def validate(model, loader):
    model.eval()
    correct = 0
    for x, y in loader:
        correct += (model(x).argmax(1) == y).sum().item()
    model.train()
    return correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--save")
    args = parser.parse_args()
    torch.manual_seed(0)
    train = TensorDataset(torch.randn(4096, 512), torch.randint(0, 10, (4096,)))
    held_out = TensorDataset(torch.randn(8192, 512), torch.randint(0, 10, (8192,)))
    train_loader = DataLoader(train, batch_size=128, shuffle=True)
    held_out_loader = DataLoader(held_out, batch_size=512)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while step < args.steps:
        for x, y in train_loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                accuracy = validate(model, held_out_loader)  # <- planted
                print(f"step {step} loss {loss.item():.6f} accuracy {accuracy:.4f}")
            if step >= args.steps:
                break
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
