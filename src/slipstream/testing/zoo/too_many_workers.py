"""Planted: ten busy workers fight with the training process for the cores."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    def __init__(self, size=8192):
        rng = np.random.default_rng(0)
        self.waves = rng.standard_normal((32, 32, 1024)).astype(np.float32)
        self.labels = rng.integers(0, 10, size)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        spectrum = np.abs(np.fft.rfft(self.waves[index % 32], axis=1))
        return spectrum[:, :128].astype(np.float32), self.labels[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(32 * 128, 128)
        self.blocks = nn.Sequential(*[nn.Sequential(nn.Linear(128, 128), nn.LayerNorm(128), nn.GELU()) for _ in range(8)])
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.blocks(self.inside(x.flatten(1))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--save")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Signals(), batch_size=64, shuffle=True, num_workers=10, persistent_workers=True)  # <- planted
    step = 0
    while step < args.steps:
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0:
                print("step", step, "loss", loss.item())
            if step >= args.steps:
                break
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
