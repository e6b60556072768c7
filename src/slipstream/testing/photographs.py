"""Makes JPEG files that compress and decode like photographs: smooth areas of colour, edges, and fine grain.

Two calls with the same arguments write the same images.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.float32]


def make_photographs(
    folder: Path, num_images: int = 300, *, width: int = 500, height: int = 375, seed: int = 0
) -> list[Path]:
    """Writes `num_images` files of about 100 kB into `folder`. The first digit of a name is one of ten classes."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    # Making the grain takes most of the time, so a few variants are reused.
    grains = [_grain(rng, width, height) for _ in range(4)]
    paths = []
    for number in range(num_images):
        image = _scene(rng, width, height) + grains[number % len(grains)] * rng.uniform(0.8, 1.2)
        path = folder / f"{number % 10}_{number:04d}.jpg"
        Image.fromarray(np.clip(image, 0, 255).astype(np.uint8)).save(path, quality=92, subsampling=0)
        paths.append(path)
    return paths


def _scene(rng: np.random.Generator, width: int, height: int) -> Pixels:
    """Returns a smooth gradient of light with a few objects in front of it. The objects have edges."""
    image = _smooth(rng, 6, width, height, low=30, high=220)
    for _ in range(int(rng.integers(3, 8))):
        left, top = int(rng.integers(0, width - 60)), int(rng.integers(0, height - 60))
        right, bottom = left + int(rng.integers(40, 200)), top + int(rng.integers(40, 160))
        part = image[top:bottom, left:right]
        part[:] = 0.4 * part + 0.6 * rng.uniform(0, 255, 3).astype(np.float32)
    return image


def _smooth(rng: np.random.Generator, size: int, width: int, height: int, *, low: float, high: float) -> Pixels:
    small = rng.uniform(low, high, (size, size, 3)).astype(np.uint8)
    large = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
    return np.array(large, dtype=np.float32)


def _grain(rng: np.random.Generator, width: int, height: int) -> Pixels:
    """Returns fine noise, like the noise of a sensor, and coarser noise, like leaves. Most of the noise is equal in all
    colours."""
    fine = rng.normal(0, 7, (height, width, 1))
    coarse = np.kron(rng.normal(0, 9, (height // 3 + 1, width // 3 + 1, 1)), np.ones((3, 3, 1)))[:height, :width]
    grain: Pixels = (fine + coarse + rng.normal(0, 2, (height, width, 3))).astype(np.float32)
    return grain
