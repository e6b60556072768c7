"""Planted: one worker waits for slow storage while more of them could wait at the same time."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Bucket(Dataset):
    """Stands for an object store that answers in two milliseconds."""

    def __init__(self, size=4096):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(size, 256, generator=generator)
        self.y = torch.randint(0, 10, (size,), generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        time.sleep(0.002)
        return self.x[index], self.y[index]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--save")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Bucket(), batch_size=16, shuffle=True, num_workers=1, persistent_workers=True)  # <- planted
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
