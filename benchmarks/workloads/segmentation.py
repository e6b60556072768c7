"""Finds the cells in made microscope pictures, pixel by pixel, with a convnet whose way down and way up are linked."""

import argparse
import itertools

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 160


class Slides(Dataset):
    """Every index is a slide of its own: dark cells with a bright rim on an uneven background."""

    def __init__(self, number):
        self.number = number
        self.rows, self.columns = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32)

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        draw = np.random.default_rng(index)
        slope = draw.normal(0, 0.3, 2)
        light = 0.6 + (slope[0] * self.rows + slope[1] * self.columns) / SIDE
        mask = np.zeros((SIDE, SIDE), dtype=np.int64)
        for _ in range(draw.integers(6, 18)):
            row, column = draw.uniform(0, SIDE, 2)
            height, width = draw.uniform(5, 20, 2)
            distance = ((self.rows - row) / height) ** 2 + ((self.columns - column) / width) ** 2
            light = np.where(distance < 1, light * 0.7, light)
            mask[distance < 1] = 1
            rim = (distance >= 1) & (distance < 1.3)
            light = np.where(rim, light + 0.15, light)
            mask[rim & (mask == 0)] = 2
        slide = np.stack([light, light**2, np.sqrt(np.abs(light))])
        slide = slide + draw.normal(0, 0.1, slide.shape)
        return torch.tensor(slide, dtype=torch.float32), torch.from_numpy(mask)


class Double(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.one = nn.Conv2d(before, after, 3, padding=1, bias=False)
        self.two = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm_one, self.norm_two = nn.BatchNorm2d(after), nn.BatchNorm2d(after)

    def forward(self, x):
        x = nn.functional.relu(self.norm_one(self.one(x)))
        return nn.functional.relu(self.norm_two(self.two(x)))


class Segmenter(nn.Module):
    def __init__(self, widths=(24, 48, 96, 160), num_classes=3):
        super().__init__()
        self.start = Double(3, widths[0])
        self.down, self.up, self.merge = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for fine, coarse in itertools.pairwise(widths):
            self.down.append(Double(fine, coarse))
            self.up.append(nn.ConvTranspose2d(coarse, fine, 2, stride=2))
            self.merge.append(Double(2 * fine, fine))
        self.head = nn.Conv2d(widths[0], num_classes, 1)

    def forward(self, x):
        seen = [self.start(x)]
        for stage in self.down:
            seen.append(stage(nn.functional.max_pool2d(seen[-1], 2)))
        x = seen.pop()
        for level in reversed(range(len(seen))):
            x = self.merge[level](torch.cat([seen[level], self.up[level](x)], dim=1))
        return self.head(x)


def overlap_loss(logits, mask):
    """One minus the mean overlap of the classes."""
    guess = logits.softmax(dim=1)
    truth = nn.functional.one_hot(mask, logits.shape[1]).permute(0, 3, 1, 2)
    both = (guess * truth).sum(dim=(0, 2, 3))
    return 1 - (2 * both / (guess.sum(dim=(0, 2, 3)) + truth.sum(dim=(0, 2, 3)) + 1)).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--slides", type=int, default=480)
    args = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Slides(args.slides), batch_size=12, shuffle=True, drop_last=True)
    model = Segmenter()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        total = 0.0
        for slides, masks in loader:
            logits = model(slides)
            loss = nn.functional.cross_entropy(logits, masks) + overlap_loss(logits, masks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
