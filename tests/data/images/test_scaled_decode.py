from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from slipstream.data.images.scaled_decode import _NUM_TRIED, ScaledDecode
from slipstream.testing.jpegs import installed, jpeg


def scaled(gap: int = 1, log: list[str] | None = None) -> ScaledDecode:
    said = [] if log is None else log
    return ScaledDecode(gap, lambda: said.append("used"), lambda: said.append("none"))


BILINEAR = Image.Resampling.BILINEAR
DATA = jpeg(width=400, height=320, grain=40)
SHRINKING: dict[str, Any] = {
    "resized": lambda image: image.convert("RGB").resize((50, 40), BILINEAR),
    "resized as opened": lambda image: image.resize((50, 40), BILINEAR),
    "a box": lambda image: image.convert("RGB").resize((40, 40), BILINEAR, box=(100, 80, 300, 280)),
    "cropped": lambda image: image.convert("RGB").crop((101, 83, 301, 283)).resize((40, 40), BILINEAR),
    "cropped twice": lambda image: image.crop((50, 50, 350, 300)).crop((1, 1, 201, 201)).resize((40, 40), BILINEAR),
    "fitted": lambda image: ImageOps.fit(image.convert("RGB"), (60, 60)),
    "a thumbnail": lambda image: (lambda rgb: (rgb.thumbnail((64, 64)), rgb)[1])(image.convert("RGB")),
}


@pytest.mark.parametrize("use", SHRINKING)
def test_shrunk_images_are_nearly_the_same(use: str) -> None:
    bare = SHRINKING[use](Image.open(io.BytesIO(DATA)))
    log: list[str] = []
    with installed(scaled(log=log)):
        ours = SHRINKING[use](Image.open(io.BytesIO(DATA)))
    assert log == ["used"]
    assert (type(ours), ours.mode, ours.size, ours.info) == (type(bare), bare.mode, bare.size, bare.info)
    distance = np.abs(np.array(ours).astype(int) - np.array(bare)).mean()
    assert 0 < distance < 12, "other pixels, of the same part of the same picture"


def test_a_larger_gap_is_more_accurate() -> None:
    bare = np.array(SHRINKING["resized"](Image.open(io.BytesIO(DATA)))).astype(int)
    distances = []
    for gap in (1, 2):
        with installed(scaled(gap)):
            distances.append(np.abs(np.array(SHRINKING["resized"](Image.open(io.BytesIO(DATA)))) - bare).mean())
    assert distances[1] < distances[0]


@pytest.mark.parametrize(
    "use",
    [
        lambda image: image.convert("RGB").resize((201, 161), BILINEAR),
        lambda image: image.convert("RGB").resize((50, 40), Image.Resampling.NEAREST),
        lambda image: image.convert("RGB").resize((50, 161), BILINEAR),
        lambda image: image.convert("RGB").crop((0, 0, 79, 79)).resize((40, 40), BILINEAR),
        lambda image: image.convert("RGB").rotate(10).resize((50, 40), BILINEAR),
        lambda image: (image.load(), image.resize((50, 40), BILINEAR))[1],
    ],
)
def test_images_that_are_not_shrunk_by_half_keep_every_bit(use: Any) -> None:
    bare = use(Image.open(io.BytesIO(DATA))).tobytes()
    log: list[str] = []
    with installed(scaled(log=log)):
        assert use(Image.open(io.BytesIO(DATA))).tobytes() == bare
    assert log == []


def test_the_image_keeps_its_full_size_and_its_pixels() -> None:
    bare = Image.open(io.BytesIO(DATA)).convert("RGB")
    with installed(scaled()):
        opened = Image.open(io.BytesIO(DATA))
        image = opened.convert("RGB")
        assert image.size == (400, 320) and image.crop((10, 10, 210, 110)).size == (200, 100)
        image.resize((50, 40))
        assert image.tobytes() == bare.tobytes() == opened.tobytes()


def test_invalid_calls_raise_pillows_errors() -> None:
    with installed(scaled()):
        image = Image.open(io.BytesIO(DATA)).convert("RGB")
        with pytest.raises(ValueError, match="Unknown resampling filter"):
            image.resize((20, 20), 99)
        with pytest.raises(ValueError, match="box can't exceed"):
            image.resize((20, 20), BILINEAR, box=(0, 0, 500, 500))


def test_scaling_ends_and_is_reported_if_no_image_can_be_scaled() -> None:
    log: list[str] = []
    data = jpeg()
    with installed(scaled(log=log)):
        for _ in range(_NUM_TRIED):
            Image.open(io.BytesIO(data)).convert("RGB").load()
        image: Any = Image.open(io.BytesIO(data)).convert("RGB")
        assert log == ["none"] and image._im is not None


def test_its_use_in_a_recipe_is_reported(applied: Any) -> None:
    with applied(scaled_decode=2) as context:
        Image.open(io.BytesIO(DATA)).convert("RGB").resize((50, 40))
    assert context.changes == ["scaled_decode: JPEGs that are shrunk immediately are decoded at a reduced size"]
