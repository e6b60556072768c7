"""Planted: sequences are padded one token at a time by a collate function."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(100, 400, (256,), generator=generator).tolist()
        self.rows = [torch.randint(1, 1000, (n,), generator=generator).tolist() for n in lengths]

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return self.rows[index % 256], index % 10


def pad(batch):
    longest = max(len(row) for row, _ in batch)
    padded = np.zeros((len(batch), longest), dtype=np.int64)
    for i, (row, _) in enumerate(batch):
        for j in range(longest):
            padded[i, j] = row[j] if j < len(row) else 0  # <- planted
    return torch.from_numpy(padded), torch.tensor([label for _, label in batch])


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(1000, 16, padding_idx=0)
        self.head = nn.Linear(16, 10)

    def forward(self, ids):
        return self.head(self.table(ids[:, :32]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--save")
    args = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(
        Sentences(), batch_size=512, shuffle=True, collate_fn=pad, num_workers=2, persistent_workers=True
    )
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
