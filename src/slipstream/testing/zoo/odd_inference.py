"""Odd: inference alone; nothing is trained."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--save")
args = parser.parse_args()

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64 * args.steps, 128)), batch_size=64)
model = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).eval()
predictions = []
with torch.inference_mode():
    for (x,) in loader:
        predictions.append(model(x).argmax(1))
predictions = torch.cat(predictions)
print("predictions", len(predictions), "mean class", predictions.float().mean().item())
if args.save:
    torch.save(predictions, args.save)
