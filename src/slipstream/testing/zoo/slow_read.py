"""Planted: a whole shard of eight megabytes is read from disk to use one record of it."""

import argparse
import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

RECORD = 1024
SHARD = 8 * 2**20


class Shards(Dataset):
    def __init__(self, folder):
        self.paths = [os.path.join(folder, f"shard-{i}.bin") for i in range(6)]
        rng = np.random.default_rng(0)
        for path in self.paths:
            rng.integers(0, 256, SHARD, dtype=np.uint8).tofile(path)

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        with open(self.paths[index % 6], "rb") as file:
            shard = file.read()  # <- planted
        record = np.frombuffer(shard, np.uint8, RECORD, offset=RECORD * index)
        return torch.from_numpy(record.astype(np.float32)) / 255, index % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--save")
    args = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        loader = DataLoader(Shards(folder), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)
        model = nn.Sequential(nn.Linear(RECORD, 128), nn.ReLU(), nn.Linear(128, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        step = 0
        while step < args.steps:
            for x, y in loader:
                loss = nn.functional.cross_entropy(model(x), y)
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
