"""Measures the CPU time of one thread to decode an image, and compares the pixels.

Compares Pillow, Pillow with fast_decode and scaled_decode, and libraries that are used in place of Pillow. All cases
take turns in one process. Writes benchmarks/results/decoders.md.
"""

from __future__ import annotations

import argparse
import importlib
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from PIL import Image, features

from intervals import paired_interval
from page import machine, write_page
from slipstream.data.images.lazy_decode import LazyDecode
from slipstream.data.images.partial_decode import PartialDecode
from slipstream.data.images.scaled_decode import ScaledDecode
from slipstream.seams.patching import Patches
from slipstream.testing.photographs import make_photographs

PHOTOS = Path(__file__).parents[2] / "shared" / "data" / "photos"
SIDE, NUM_PHOTOS, NUM_LARGE, TIMES_LARGER = 224, 60, 10, 4
MADE = "made"
BILINEAR = Image.Resampling.BILINEAR
Way = Callable[[Path, int], Any]


def crop_box(size: tuple[int, int], seed: int) -> tuple[int, int, int, int]:
    """A random crop with the distribution of torchvision's RandomResizedCrop."""
    rng, (width, height) = random.Random(seed), size
    for _ in range(10):
        area, ratio = width * height * rng.uniform(0.08, 1), math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = rng.randint(0, width - w), rng.randint(0, height - h)
            return left, top, left + w, top + h
    return 0, 0, width, height


def opened(path: Path, seed: int) -> Any:
    return Image.open(path)


def decoded(path: Path, seed: int) -> Any:
    return Image.open(path).convert("RGB")


def cropped(path: Path, seed: int) -> Any:
    image = Image.open(path).convert("RGB")
    return image.crop(crop_box(image.size, seed))


def sample(path: Path, seed: int) -> Any:
    image = Image.open(path).convert("RGB")
    return image.crop(crop_box(image.size, seed)).resize((SIDE, SIDE), BILINEAR)


def shrunk(path: Path, seed: int) -> Any:
    return Image.open(path).convert("RGB").resize((SIDE, SIDE), BILINEAR)


def into_pillow(path: Path, decode: Callable[..., Any]) -> Any:
    """Decodes into Pillow's memory, with Pillow's header and four bytes per pixel.

    This takes as long as another decoder inside Pillow would.
    """
    image: Any = Image.open(path)
    image.fp.seek(0)
    pixels = decode(image.fp.read(), "RGBX")
    return image._new(vars(Image)["core"].map_buffer(pixels, image.size, "raw", 0, ("RGB", 0, 1)))


def other_decoders() -> dict[str, Way]:
    ways: dict[str, Way] = {}
    for name in ("simplejpeg", "cv2"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if name == "cv2":
            module.setNumThreads(1)
            ways["OpenCV"] = lambda path, seed, cv2=module: cv2.imdecode(np.fromfile(path, np.uint8), 1)
        else:
            ways["simplejpeg"] = lambda path, seed, own=module: own.decode_jpeg(path.read_bytes(), "RGB")
            ways["simplejpeg into Pillow's memory"] = lambda path, seed, own=module: into_pillow(path, own.decode_jpeg)
    return ways


@contextmanager
def put_in_place(part: LazyDecode | None) -> Iterator[None]:
    def fail(seam: str, fault: BaseException) -> None:
        raise RuntimeError(seam) from fault

    patches = Patches(fail, lambda: False)
    if part is not None:
        part.install(patches)
    try:
        yield
    finally:
        patches.close()


def time_us(way: Way, paths: list[Path], part: LazyDecode | None = None) -> list[float]:
    """Microseconds for each image."""
    took = []
    with put_in_place(part):
        for seed, path in enumerate(paths):
            start = time.thread_time_ns()
            way(path, seed)
            took.append((time.thread_time_ns() - start) / 1e3)
    return took


def interpolate(pixels: torch.Tensor, box: tuple[int, int, int, int]) -> torch.Tensor:
    left, upper, right, lower = box
    part = pixels[:, :, upper:lower, left:right].contiguous(memory_format=torch.channels_last)
    return torch.nn.functional.interpolate(part, (SIDE, SIDE), mode="bilinear", antialias=True)


def resizing(paths: list[Path]) -> tuple[dict[str, Way], str]:
    """Returns the functions that crop and resize decoded images, and words about the difference of their pixels."""
    images = {path: Image.open(path).convert("RGB") for path in paths}
    tensors = {path: torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] for path, image in images.items()}

    def by_pillow(path: Path, seed: int) -> Any:
        return images[path].crop(crop_box(images[path].size, seed)).resize((SIDE, SIDE), BILINEAR)

    def by_torch(path: Path, seed: int) -> Any:
        return interpolate(tensors[path], crop_box(images[path].size, seed))

    differing, largest = [], 0
    for seed, path in enumerate(paths):
        theirs = torch.from_numpy(np.array(by_pillow(path, seed))).permute(2, 0, 1).int()
        gap = (by_torch(path, seed)[0].int() - theirs).abs()
        differing.append(float((gap > 0).float().mean()))
        largest = max(largest, int(gap.max()))
    words = f"{median(differing):.1%} of the values differ from Pillow's, by {largest} at most"
    return {"crop and resize, Pillow": by_pillow, "crop and resize, torch": by_torch}, words


def enlarge(paths: list[Path], folder: Path) -> list[Path]:
    """Returns enlarged copies of the photographs, with half the colour resolution, as cameras store photographs."""
    made = []
    for path in paths:
        image = Image.open(path).convert("RGB")
        size = (image.width * TIMES_LARGER, image.height * TIMES_LARGER)
        made.append(folder / f"{path.stem}.jpg")
        image.resize(size, Image.Resampling.BICUBIC).save(made[-1], quality=90)
    return made


def distance(paths: list[Path], gap: int) -> float:
    """The mean difference between the values of scaled_decode and those of Pillow, on a scale of 255."""
    plain = [np.array(shrunk(path, 0)).astype(int) for path in paths]
    with put_in_place(ScaledDecode(gap, _nothing, _nothing)):
        ours = [np.array(shrunk(path, 0)).astype(int) for path in paths]
    return float(np.mean([np.abs(a - b).mean() for a, b in zip(ours, plain, strict=True)]))


def _nothing() -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--photos", type=Path, default=PHOTOS, help="a folder of JPEGs; if missing, some are made")
    options = parser.parse_args()
    head = machine()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        photos = sorted(options.photos.glob("*.JPEG"))[:NUM_PHOTOS] or make_photographs(Path(folder) / MADE, NUM_PHOTOS)
        large = enlarge(photos[:NUM_LARGE], Path(folder))
        report(head, photos, large, options.rounds)


def report(head: str, photos: list[Path], large: list[Path], num_rounds: int) -> None:
    part = PartialDecode(_nothing, lambda: sys.exit("fast_decode gave other pixels than Pillow"))
    crops, words = resizing(photos)
    ways: dict[str, tuple[Way, list[Path], LazyDecode | None]] = {
        "Image.open alone, the header": (opened, photos, None),
        "decode, Pillow": (decoded, photos, None),
        "decode, Pillow with fast_decode": (lambda path, seed: decoded(path, seed).load(), photos, part),
        **{f"decode, {name}": (way, photos, None) for name, way in other_decoders().items()},
        "decode and random crop, Pillow": (cropped, photos, None),
        "decode and random crop, with fast_decode": (cropped, photos, part),
        "decode, random crop, resize, Pillow": (sample, photos, None),
        "decode, random crop, resize, with fast_decode": (sample, photos, part),
        **{name: (way, photos, None) for name, way in crops.items()},
        "large: decode, resize, Pillow": (shrunk, large, None),
        **{
            f"large: decode, resize, with scaled_decode={gap}": (shrunk, large, ScaledDecode(gap, _nothing, _nothing))
            for gap in (1, 2)
        },
    }
    times: dict[str, list[float]] = {}
    for _ in range(num_rounds):
        for name, (way, paths, own) in ways.items():
            took = time_us(way, paths, own)
            times[name] = [min(pair) for pair in zip(took, times.get(name, took), strict=True)]
    write(head, photos, large, words, times, num_rounds)


def write(
    head: str, photos: list[Path], large: list[Path], words: str, times: dict[str, list[float]], num_rounds: int
) -> None:
    plain, fast = (times[f"decode, random crop, resize, {how}"] for how in ("Pillow", "with fast_decode"))
    gain = paired_interval([a / b for a, b in zip(plain, fast, strict=True)])
    size = Image.open(photos[0]).size
    kind = "made photographs" if photos[0].parent.name == MADE else "photographs"
    lines = "\n".join(f"| {name} | {fmean(found):.0f} |" for name, found in times.items())
    absent = [name for name in ("simplejpeg", "cv2") if not any(_called(name) in way for way in times)]
    write_page(
        "decoders",
        f"# Decoders\n\n{head}\n\n{len(photos)} {kind} of about {size[0]} x {size[1]}, and {len(large)} of them "
        f"{TIMES_LARGER} times as wide and high. CPU time of one thread, for each image the best of {num_rounds} "
        f"rounds in turns. "
        f"Pillow {Image.__version__} with libjpeg-turbo {features.version('libjpeg_turbo') or 'absent'}, "
        f"torch {torch.__version__}.\n\n| | µs per image |\n|---|---:|\n{lines}\n\n"
        f"Random crops, resized, with fast_decode: {sum(plain) / sum(fast):.2f} times as fast, the median image "
        f"{gain.middle:.2f} times ({gain.low:.2f} to {gain.high:.2f}); the same pixels.\n\nResized by torch (uint8, "
        f"antialiased), {words}.\n\nscaled_decode: a value of an image "
        f"differs from Pillow's by {distance(large, 1):.2f} of 255 on average with 1, by {distance(large, 2):.2f} with "
        f"2.\n\nNot run: {', '.join([*map(_called, absent), 'Pillow-SIMD'])} (not installed here).\n",
    )
    if gain.low < 1.0:
        sys.exit("fast_decode gains nothing here.")


def _called(module: str) -> str:
    return {"cv2": "OpenCV"}.get(module, module)


if __name__ == "__main__":
    main()
