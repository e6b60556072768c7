"""Healthy: a small convnet whose two workers keep up with ease."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randint(0, 256, (2048, 3, 32, 32), dtype=torch.uint8, generator=generator)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index].float() / 255, index % 10


def block(inside, outside):
    return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.ReLU())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--save")
    args = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Images(), batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)
    model = nn.Sequential(
        block(3, 32), block(32, 32), nn.MaxPool2d(2), block(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    ).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    step = 0
    while step < args.steps:
        for images, labels in loader:
            images = images.to(memory_format=torch.channels_last)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0:
                print(f"step {step} loss {loss.item():.6f}")
            if step >= args.steps:
                break
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
