"""A convnet on a folder of JPEG photographs: read, decode, crop, flip, normalise."""

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)


class Photographs(Dataset):
    def __init__(self, folder):
        self.paths = sorted(Path(folder).glob("*.jpg")) * 8  # as if there were more of them

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        image = Image.open(self.paths[index]).convert("RGB")
        side = random.randint(150, min(image.size))
        left, top = random.randint(0, image.width - side), random.randint(0, image.height - side)
        image = image.resize((96, 96), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = (np.asarray(image, dtype=np.float32) / 255 - MEAN) / STD
        return torch.from_numpy(pixels).permute(2, 0, 1), int(self.paths[index].name[0])


def conv(inside, outside, stride):
    layers = [nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(3, 1, 1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=25)
    args = parser.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    loader = DataLoader(Photographs(args.data), batch_size=32, shuffle=True, drop_last=True)
    layers = [
        conv(3, 32, 2),
        conv(32, 64, 2),
        conv(64, 96, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(96, 10),
    ]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
