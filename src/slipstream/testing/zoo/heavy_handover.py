"""Planted: batches leave the workers as large NumPy arrays, which are pickled through a pipe."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    def __init__(self):
        self.volumes = np.random.default_rng(0).standard_normal((4, 2**20)).astype(np.float32)

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return self.volumes[index % 4], index % 10


def keep_arrays(batch):
    return [volume for volume, _ in batch], [label for _, label in batch]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--save")
    args = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Volumes(), batch_size=6, shuffle=True, collate_fn=keep_arrays, num_workers=2, persistent_workers=True)  # <- planted
    model = nn.Sequential(nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while step < args.steps:
        for volumes, labels in loader:
            x = torch.stack([torch.from_numpy(volume[:1024]) for volume in volumes])
            loss = nn.functional.cross_entropy(model(x), torch.tensor(labels))
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
