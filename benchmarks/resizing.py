"""Measures microseconds to resize an image, with Pillow and with fast_resize.

Pillow and fast_resize resize crops of photographs in turns in one process, on one thread and on two. All results are
compared byte by byte. Writes benchmarks/results/resizing.md.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import PIL
from PIL import Image

from decoders import MADE, PHOTOS, crop_box
from intervals import paired_interval
from page import machine, write_page
from slipstream.data.images.resize import Resizing
from slipstream.data.images.resize_kernel import Resampler
from slipstream.seams.patching import Patches
from slipstream.testing.photographs import make_photographs

NUM_PHOTOS, SIDE = 40, 224
Way = Callable[[Any], Any]
Filter = Image.Resampling


def part_of(image: Any, side: int) -> Any:
    """The middle of a photograph. If the photograph is too small, it is enlarged first."""
    scale = max(1.0, side / min(image.size))
    large = image.resize((round(image.width * scale + 0.5), round(image.height * scale + 0.5)))
    left, top = (large.width - side) // 2, (large.height - side) // 2
    return large.crop((left, top, left + side, top + side))


def shrunk(resample: Filter) -> Way:
    return lambda image: image.resize((SIDE, SIDE), resample)


def random_crop(image: Any) -> Any:
    return image.crop(crop_box(image.size, image.width * image.height)).resize((SIDE, SIDE), Filter.BILINEAR)


def works(photos: list[Any]) -> dict[str, tuple[Way, list[Any]]]:
    middles = {side: [part_of(photo, side) for photo in photos] for side in (150, 350, 450)}
    grey = [image.convert("L") for image in middles[350]]
    return {
        "350 to 224, bilinear": (shrunk(Filter.BILINEAR), middles[350]),
        "450 to 224, bilinear": (shrunk(Filter.BILINEAR), middles[450]),
        "150 to 224, bilinear": (shrunk(Filter.BILINEAR), middles[150]),
        "350 to 224, bicubic": (shrunk(Filter.BICUBIC), middles[350]),
        "350 to 224, Lanczos": (shrunk(Filter.LANCZOS), middles[350]),
        "350 to 224, bilinear, grey": (shrunk(Filter.BILINEAR), grey),
        "random crop and resize to 224, bilinear": (random_crop, photos),
    }


@contextmanager
def put_in_place(part: Resizing) -> Iterator[None]:
    def fail(seam: str, fault: BaseException) -> None:
        raise RuntimeError(seam) from fault

    patches = Patches(fail, lambda: False)
    part.install(patches)
    try:
        yield
    finally:
        patches.close()


def time_us(way: Way, images: list[Any], threads: ThreadPoolExecutor | None) -> float:
    """Microseconds per image."""

    def do(some: list[Any]) -> None:
        for image in some:
            way(image)

    start = time.perf_counter_ns()
    if threads is None:
        do(images)
    else:
        list(threads.map(do, (images[::2], images[1::2])))
    return (time.perf_counter_ns() - start) / 1e3 / len(images)


def compare(way: Way, images: list[Any], part: Resizing) -> None:
    plain = [way(image).tobytes() for image in images]
    with put_in_place(part):
        ours = [way(image).tobytes() for image in images]
    if ours != plain:
        sys.exit("the pixels differ.")


def measure(
    way: Way, images: list[Any], part: Resizing, num_rounds: int, threads: ThreadPoolExecutor | None
) -> list[tuple[float, float]]:
    compare(way, images, part)
    pairs = []
    for number in range(num_rounds):
        took = {}
        for is_ours in (False, True) if number % 2 else (True, False):
            if is_ours:
                with put_in_place(part):
                    took[is_ours] = time_us(way, images, threads)
            else:
                took[is_ours] = time_us(way, images, threads)
        pairs.append((took[False], took[True]))
    return pairs


def row(name: str, pairs: list[tuple[float, float]]) -> str:
    gain = paired_interval([plain / ours for plain, ours in pairs])
    plain, ours = (median(times) for times in zip(*pairs, strict=True))
    return f"| {name} | {plain:.0f} | {ours:.0f} | {gain.middle:.2f} ({gain.low:.2f} to {gain.high:.2f}) |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--photos", type=Path, default=PHOTOS, help="a folder of JPEGs; if missing, some are made")
    options = parser.parse_args()
    head = machine()
    with tempfile.TemporaryDirectory() as folder:
        paths = sorted(options.photos.glob("*.JPEG"))[:NUM_PHOTOS]
        paths = paths or make_photographs(Path(folder) / MADE, NUM_PHOTOS)
        kind = "made photographs" if paths[0].parent.name == MADE else "photographs"
        photos: list[Any] = [Image.open(path).convert("RGB") for path in paths]
    part = Resizing(Resampler(), lambda: None, lambda: sys.exit("fast_resize gave other pixels."))
    measured = {}
    with ThreadPoolExecutor(2) as two:
        for (name, (way, images)), threads in itertools.product(works(photos).items(), (None, two)):
            measured[f"{name}, {'two threads' if threads else 'one thread'}"] = measure(
                way, images, part, options.rounds, threads
            )
    lines = "\n".join(row(name, pairs) for name, pairs in measured.items())
    write_page(
        "resizing",
        f"# Resizing\n\n{head}\n\n{len(photos)} {kind}, decoded before; squares from their middle, or random crops. "
        f"Wall time: medians of {options.rounds} rounds in turns, and the ratio of neighbours in time with a "
        f"95% interval (bootstrap). Pillow {PIL.__version__}. The pixels are the same in every byte. To verify them, "
        f"fast_resize lets Pillow resize one image in 256 too; the figures include that time.\n\n"
        f"| | Pillow, µs | fast_resize, µs | times as fast |\n"
        f"|---|---:|---:|---:|\n{lines}\n",
    )
    if paired_interval([a / b for a, b in measured["350 to 224, bilinear, one thread"]]).low < 1.0:
        sys.exit("fast_resize gains nothing here.")


if __name__ == "__main__":
    main()
