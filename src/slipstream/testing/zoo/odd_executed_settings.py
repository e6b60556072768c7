"""Odd: settings are globals, changed by code that is executed from the command line, as nanoGPT does."""

import sys

import numpy as np
import torch
from torch import nn

steps = 200
batch_size = 32
block_size = 32
save = ""
settings = {k: v for k, v in globals().items() if not k.startswith("_") and isinstance(v, (int, str))}
configuration = "batch_size = batch_size // 2\nwidth = 64\n"
exec(configuration)
arguments = iter(sys.argv[1:])
for argument in arguments:
    key = argument.lstrip("-")
    assert key in settings, f"no such setting: {key}"
    globals()[key] = type(settings[key])(next(arguments))

torch.manual_seed(0)
data = np.random.default_rng(0).integers(0, 256, 50_000)


def get_batch():
    ix = torch.randint(len(data) - block_size - 1, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix])
    return x, y


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(256, width)
        self.mix = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, x):
        return self.head(self.mix(self.table(x))[0])


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x, y = get_batch()
for iteration in range(steps):
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    x, y = get_batch()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if iteration % 20 == 0:
        print(f"iter {iteration}: loss {loss.item():.4f}")

if save:
    torch.save(model.state_dict(), save)
