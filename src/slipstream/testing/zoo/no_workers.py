"""Planted: spectrograms are computed in the training process, because the loader has no workers."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3000)
parser.add_argument("--save")
args = parser.parse_args()


class Sounds(Dataset):
    def __init__(self):
        rng = np.random.default_rng(0)
        self.waves = rng.standard_normal((16, 262144)).astype(np.float32)
        self.labels = rng.integers(0, 10, 4096)

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        wave = self.waves[index % 16]
        spectrum = np.abs(np.fft.rfft(wave.reshape(256, 1024), axis=1)).mean(axis=0)
        return np.log1p(spectrum[:256]).astype(np.float32), self.labels[index]


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Sounds(), batch_size=8, shuffle=True)  # <- planted

step = 0
while step < args.steps:
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.6f}")
        if step == args.steps:
            break

if args.save:
    torch.save(model.state_dict(), args.save)
