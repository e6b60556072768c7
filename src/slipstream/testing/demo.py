"""The demonstration: writes a folder of photographs and a slow script that trains on them, or times the training."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = '''\
"""Trains a small convnet on a folder of photographs, as many first scripts do."""

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
        self.paths = sorted(Path(folder).glob("*.jpg"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        image = Image.open(path).convert("RGB")
        image = self.random_crop(image)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = (np.asarray(image, dtype=np.float32) / 255 - MEAN) / STD
        return torch.from_numpy(pixels).permute(2, 0, 1), int(path.name[0])

    def random_crop(self, image):
        side = random.randint(150, min(image.size))
        left = random.randint(0, image.width - side)
        top = random.randint(0, image.height - side)
        return image.resize((96, 96), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))


def conv(inside, outside):
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU()
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=90)
    args = parser.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    data = Path(__file__).parent / "photographs"
    loader = DataLoader(Photographs(data), batch_size=32, shuffle=True, drop_last=True)
    layers = [conv(3, 24), conv(24, 48), conv(48, 96), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        seen, right = 0, 0
        for images, labels in loader:
            output = model(images)
            loss = nn.functional.cross_entropy(output, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
            right += (output.argmax(1) == labels).sum().item()
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {right / seen:.3f}")
        torch.save(model.state_dict(), "last.pt")


if __name__ == "__main__":
    main()
'''


def write(folder: Path, num_images: int) -> None:
    from slipstream.testing.photographs import make_photographs

    paths = make_photographs(folder / "photographs", num_images)
    script = folder / "train.py"
    script.write_text(SCRIPT)
    kilobytes = sum(path.stat().st_size for path in paths) / len(paths) / 1000
    print(f"{len(paths)} photographs of {kilobytes:.0f} kB and {script} written.")


def stopwatch(folder: Path, epochs: int, num_pairs: int = 2) -> None:
    """Times the whole training, start-up included, with plain Python and with the recipe in turns."""
    if not (folder / "slipstream.toml").exists():
        print("\nThe training was not timed: tune kept nothing this time, so there is no recipe to train with.")
        print("Other programs make the races noisy. Run `make demo` again while they do not run.")
        return
    script = ["train.py", "--epochs", str(epochs)]
    commands = {
        "python": [sys.executable, *script],
        "slipstream run": [sys.executable, "-m", "slipstream", "run", *script],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(num_pairs):
        for name, command in commands.items():
            print(f"\n$ {name} {' '.join(script)}", flush=True)
            start = time.perf_counter()
            subprocess.run(command, cwd=folder, check=True)
            seconds[name].append(time.perf_counter() - start)
    bare, tuned = (sum(times) for times in seconds.values())
    both = ", ".join(f"{name} {' and '.join(f'{s:.1f} s' for s in times)}" for name, times in seconds.items())
    print(f"\nStopwatch, start-up included: {both}: {bare / tuned:.2f}x as fast.")


def main() -> None:
    parser = argparse.ArgumentParser(description="Photographs, and a train.py that trains on them slowly.")
    parser.add_argument("action", choices=("write", "stopwatch"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=640)
    parser.add_argument("--epochs", type=int, default=10, help="epochs of the trainings that the stopwatch times")
    options = parser.parse_args()
    if importlib.util.find_spec("PIL") is None:
        print("slipstream: the demo makes and reads photographs with Pillow. Install it: pip install pillow")
        sys.exit(2)
    if options.action == "write":
        write(options.folder, options.images)
    else:
        stopwatch(options.folder, options.epochs)


if __name__ == "__main__":
    main()
