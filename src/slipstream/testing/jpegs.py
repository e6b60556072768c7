"""Small JPEG files of noise, of every kind that the decoders distinguish, and a context manager for patches."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from slipstream.seams.patching import Patches


def jpeg(width: int = 96, height: int = 72, mode: str = "RGB", seed: int = 0, grain: int = 8, **options: Any) -> bytes:
    """Returns a JPEG file of coarse and fine noise, so that every pixel shows a difference between two decoders."""
    rng = np.random.default_rng(seed)
    num_bands = len(Image.new(mode, (1, 1)).getbands())
    coarse = rng.integers(0, 255, (height // grain + 1, width // grain + 1, num_bands))
    pixels = np.kron(coarse, np.ones((grain, grain, 1), int))[:height, :width] + rng.integers(
        -25, 25, (height, width, 1)
    )
    image = Image.frombytes(mode, (width, height), np.clip(pixels, 0, 255).astype(np.uint8).tobytes())
    file = io.BytesIO()
    image.save(file, "JPEG", **{"quality": 88, **options})
    return file.getvalue()


def write_jpegs(folder: Path, number: int, **options: Any) -> list[Path]:
    paths = [folder / f"{index}.jpg" for index in range(number)]
    for index, path in enumerate(paths):
        path.write_bytes(jpeg(seed=index, **options))
    return paths


KINDS: dict[str, dict[str, Any]] = {
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "4:2:0": {"subsampling": 2},
    "odd size": {"subsampling": 2, "width": 83, "height": 61},
    "progressive": {"progressive": True},
    "grey": {"mode": "L"},
    "CMYK": {"mode": "CMYK"},
    "with EXIF": {"exif": b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00"},
    "restarts": {"restart_marker_rows": 1},
    "one pixel": {"width": 1, "height": 1},
}


class JpegPart(Protocol):
    def install(self, patches: Patches) -> None: ...


@contextmanager
def installed(*parts: JpegPart) -> Iterator[None]:
    """Installs the parts until the end of the `with` block. Raises AssertionError if a part fails or leaves a patch."""
    faults: list[str] = []
    patches = Patches(lambda seam, fault: faults.append(f"{seam}: {fault!r}"), lambda: False)
    try:
        for part in parts:
            part.install(patches)
        yield
    finally:
        patches.close()
    assert not faults and not patches.leftovers, (faults, patches.leftovers)
