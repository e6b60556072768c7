"""Trains one of three small models whose activations fill the memory: convnet, transformer or lstm.

The script tells glibc to map every block of 32 KiB or more separately. Otherwise the memory of two starts of one script
differs by a tenth.
"""

import ctypes
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

KIND = sys.argv[1]
ctypes.CDLL(None).mallopt(-3, 32 << 10)  # M_MMAP_THRESHOLD
torch.manual_seed(0)
torch.set_num_threads(1)


class Samples(Dataset):
    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if KIND == "convnet":
            return torch.full((3, 32, 32), (index % 97) / 97), index % 10
        return torch.arange(index, index + 64) % 100, index % 10


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images + torch.relu(self.convolution(images))


class Transformer(nn.Module):
    def __init__(self, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.words = nn.Embedding(100, width)
        layers = [nn.TransformerEncoderLayer(width, 2, 2 * width, batch_first=True) for _ in range(depth)]
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states = self.words(tokens)
        for layer in self.layers:
            states = layer(states)
        return self.head(states.mean(1))


class Recurrent(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(100, width)
        self.recurrent = nn.LSTM(width, width, 3, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(self.words(tokens))[0][:, -1])


def make_model() -> nn.Module:
    if KIND == "convnet":
        blocks = [Residual(8) for _ in range(3)]
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)]
        return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *blocks, *head)
    return Transformer() if KIND == "transformer" else Recurrent()


model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for _ in range(1000):
    for inputs, labels in DataLoader(Samples(), batch_size=32, shuffle=True, drop_last=True):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
