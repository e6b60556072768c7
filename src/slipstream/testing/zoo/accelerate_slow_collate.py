"""Planted: an Accelerate loop whose collate function pads one token at a time."""

import argparse

import torch
from accelerate import Accelerator
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
        return {"tokens": self.rows[index % 256], "label": index % 10}


def pad(batch):
    longest = max(len(item["tokens"]) for item in batch)
    tokens = torch.zeros(len(batch), longest, dtype=torch.long)
    for i, item in enumerate(batch):
        for j, token in enumerate(item["tokens"]):
            tokens[i, j] = token  # <- planted
    return {"tokens": tokens, "label": torch.tensor([item["label"] for item in batch])}


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(1000, 16, padding_idx=0)
        self.head = nn.Linear(16, 10)

    def forward(self, tokens):
        return self.head(self.table(tokens))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--save")
    args = parser.parse_args()
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = Bag()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(
        Sentences(), batch_size=32, shuffle=True, collate_fn=pad, num_workers=2, persistent_workers=True
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    while step < args.steps:
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["tokens"]), batch["label"])
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if step % 10 == 0:
                accelerator.print(f"step {step} loss {loss.item():.6f}")
            if step >= args.steps:
                break
    if args.save:
        torch.save(accelerator.unwrap_model(model).state_dict(), args.save)


if __name__ == "__main__":
    main()
