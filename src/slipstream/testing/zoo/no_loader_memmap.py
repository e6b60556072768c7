"""Planted: get_batch gathers its windows from a memory map one value at a time, in the training loop."""

import argparse
import os
import tempfile

import numpy as np
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=5000)
parser.add_argument("--save")
args = parser.parse_args()

block_size, batch_size, vocab = 64, 96, 32
torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "train.bin")
    np.random.default_rng(0).integers(0, vocab, 200_000).astype(np.uint16).tofile(path)
    data = np.memmap(path, dtype=np.uint16, mode="r")


def get_batch():
    starts = torch.randint(len(data) - block_size - 1, (batch_size,)).tolist()
    window = np.empty((batch_size, block_size + 1), dtype=np.int64)
    for row, start in enumerate(starts):
        for column in range(block_size + 1):
            window[row, column] = data[start + column]  # <- planted
    tokens = torch.from_numpy(window)
    return tokens[:, :-1], tokens[:, 1:]


class Bigram(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(vocab, 16)
        self.head = nn.Linear(16, vocab)

    def forward(self, tokens, targets):
        logits = self.head(self.table(tokens))
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


model = Bigram()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, fused=True)
for step in range(args.steps):
    x, y = get_batch()
    loss = model(x, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"iter {step}: loss {loss.item():.4f}")

if args.save:
    torch.save(model.state_dict(), args.save)
