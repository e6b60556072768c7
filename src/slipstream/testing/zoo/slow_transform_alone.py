"""Planted: a token at a time is looked up and changed in Python, in the training process."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCABULARY = {chr(97 + i): i for i in range(26)}


class Words(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        letters = torch.randint(0, 26, (64, 512), generator=generator)
        self.texts = ["".join(chr(97 + int(i)) for i in row) for row in letters]

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        text = self.texts[index % 64]
        ids = np.zeros(512, dtype=np.int64)
        for place, letter in enumerate(text):
            ids[place] = (VOCABULARY.get(letter.lower(), 0) * 31 + place) % 997 if letter.isalpha() else 0  # <- planted
        return torch.from_numpy(ids), index % 10


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(1000, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, ids):
        return self.head(self.table(ids[:, :64]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--save")
    args = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Words(), batch_size=128, shuffle=True)
    model = Bag()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while step < args.steps:
        for ids, labels in loader:
            loss = nn.functional.cross_entropy(model(ids), labels)
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
