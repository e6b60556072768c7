"""Planted: large JPEG files are decoded in full for a thumbnail."""

import argparse
import io
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


def make_photographs(folder, count=12):
    rng = np.random.default_rng(0)
    for i in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((1024, 768), Image.BICUBIC)
        grain = rng.normal(0, 6, (768, 1024, 1))
        Image.fromarray(np.clip(np.asarray(coarse) + grain, 0, 255).astype(np.uint8)).save(folder / f"{i}.jpg", quality=88)


class Photographs(Dataset):
    def __init__(self, folder):
        self.files = [path.read_bytes() for path in sorted(folder.glob("*.jpg"))]

    def __len__(self):
        return 2048

    def __getitem__(self, index):
        image = Image.open(io.BytesIO(self.files[index % len(self.files)]))
        image = image.convert("RGB")  # <- planted
        pixels = np.asarray(image)[::16, ::16]
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255, index % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--save")
    args = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        make_photographs(Path(folder))
        dataset = Photographs(Path(folder))
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while step < args.steps:
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
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
