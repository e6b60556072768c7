"""A step that leaves the CPU idle, as on an accelerator: a sleep stands in for it."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photographs(Dataset):
    def __init__(self, folder):
        self.paths = sorted(Path(folder).glob("*.jpg")) * 8  # as if there were more of them

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        image = Image.open(self.paths[index]).convert("RGB").resize((64, 64))
        pixels = np.asarray(image, dtype=np.float32) / 255
        return torch.from_numpy(pixels).permute(2, 0, 1), int(self.paths[index].name[0])


class Pretend(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3 * 64 * 64, 10)

    def forward(self, x):
        time.sleep(0.04)
        return self.head(x.flatten(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=25)
    args = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Photographs(args.data), batch_size=32, shuffle=True, drop_last=True)
    model = Pretend()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
