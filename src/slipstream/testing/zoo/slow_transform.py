"""Planted: every pixel goes through Python, in two workers."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self):
        self.images = np.random.default_rng(0).integers(0, 256, (64, 28 * 28), dtype=np.uint8)

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        pixels = self.images[index % 64].tolist()
        linear = np.empty(784, dtype=np.float32)
        for i, p in enumerate(pixels):
            linear[i] = (p / 255.0) ** 2.2 if p > 10 else p / 3294.6  # <- planted
        return torch.from_numpy(linear), index % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--save")
    args = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Images(), batch_size=64, shuffle=True, num_workers=2, persistent_workers=True)
    model = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while step < args.steps:
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                print(f"step {step} loss {loss.item():.6f}")
            if step >= args.steps:
                break
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
