"""The C code gives Pillow's bytes for random sizes, boxes, filters and modes. Also tests the memory layouts."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from slipstream.data.images import pixel_memory
from slipstream.data.images.c_build import find_compiler
from slipstream.data.images.partial_decode import is_same
from slipstream.data.images.pixel_memory import PixelMemory
from slipstream.data.images.resize_kernel import FILTERS, MODES, Resampler, edges_of

pytestmark = pytest.mark.skipif(not find_compiler(), reason="there is no C compiler")
BILINEAR = Image.Resampling.BILINEAR


@pytest.fixture(scope="module")
def resampler() -> Resampler:
    return Resampler()


def noise(mode: str, size: tuple[int, int], seed: int) -> Any:
    """A random image with values in every byte, including the unused fourth byte of a pixel. Extreme values are
    frequent, because they overshoot."""
    rng = np.random.default_rng(seed)
    plain = {"La": "LA", "RGBa": "RGBA"}.get(mode, mode)
    layout = "RGBX" if mode == "RGB" else plain
    num_bytes = {"L": 1, "LA": 2}.get(plain, 4)
    pixels = rng.integers(-150, 406, size[0] * size[1] * num_bytes).clip(0, 255).astype(np.uint8)
    image = Image.new(plain, size)
    image.frombytes(pixels.tobytes(), "raw", layout)
    return image.convert(mode) if mode != plain else image


def assert_same(resampler: Resampler, image: Any, size: tuple[int, int], resample: int, box: Any = None) -> None:
    edges = edges_of(box, image.size, size)
    assert edges is not None
    ours = resampler.resize(image.im, size, resample, edges)
    assert is_same(ours, image.im.resize(size, resample, edges)), (image.mode, image.size, size, resample, box)


def drawn_box(rng: random.Random, width: int, height: int) -> Any:
    if rng.random() < 0.5:
        left, right = sorted(rng.sample(range(width + 1), 2))
        upper, lower = sorted(rng.sample(range(height + 1), 2))
        return left, upper, right, lower
    left, right = sorted(rng.uniform(0, width) for _ in range(2))
    upper, lower = sorted(rng.uniform(0, height) for _ in range(2))
    return left, upper, right, lower


@pytest.mark.parametrize("mode", MODES)
def test_the_bytes_equal_pillows(resampler: Resampler, mode: str) -> None:
    rng, num_seen = random.Random(mode), 0
    while num_seen < 400:
        most, most_new = rng.choice((5, 30, 90)), rng.choice((5, 30, 90))
        width, height = rng.randint(1, most), rng.randint(1, most)
        size = rng.choice((width, rng.randint(1, most_new))), rng.choice((height, rng.randint(1, most_new)))
        box = drawn_box(rng, width, height) if rng.random() < 0.5 else None
        if edges_of(box, (width, height), size) is not None:
            assert_same(resampler, noise(mode, (width, height), num_seen), size, rng.choice(FILTERS), box)
            num_seen += 1


def test_the_bytes_equal_pillows_without_vector_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", f"{find_compiler()[0]} -DPLAIN_ONLY")
    plain = Resampler()
    for mode in MODES:
        test_the_bytes_equal_pillows(plain, mode)


@pytest.mark.parametrize("resample", FILTERS)
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_extreme_sizes(resampler: Resampler, mode: str, resample: int) -> None:
    for size, new_size in (
        ((900, 700), (3, 2)),
        ((2, 3), (500, 300)),
        ((1, 1), (40, 40)),
        ((1, 600), (1, 7)),
        ((600, 1), (7, 1)),
        ((300, 420), (224, 224)),  # newer versions of Pillow resize this vertically first
        ((420, 300), (224, 224)),
    ):
        assert_same(resampler, noise(mode, size, 7), new_size, resample)


@pytest.mark.parametrize("value", [0, 255])
def test_an_image_of_one_colour_keeps_its_colour(resampler: Resampler, value: int) -> None:
    image = Image.new("L", (77, 59), value)
    for resample in FILTERS:
        new: Any = resampler.resize(image.im, (50, 90), resample, (0.5, 0.25, 70.0, 50.0))
        assert new.getextrema() == (value, value)


def test_images_in_foreign_memory(resampler: Resampler) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (70, 100, 4), dtype=np.uint8)
    for stride in (400, 800):  # with 800, the rows are not adjacent
        size = (100, 70 * 400 // stride)
        core: Any = vars(Image)["core"].map_buffer(pixels, size, "raw", 0, ("RGB", stride, 1))
        assert_same(resampler, Image.new("RGB", (1, 1))._new(core), (64, 48), BILINEAR)


def test_images_in_several_memory_blocks(resampler: Resampler) -> None:
    core: Any = vars(Image)["core"]
    before = core.get_block_size()
    core.set_block_size(4096)
    try:
        image = noise("RGB", (150, 90), 3)
        assert_same(resampler, image, (120, 100), BILINEAR)
    finally:
        core.set_block_size(before)


@pytest.mark.parametrize(
    ("box", "new_size"),
    [
        (None, (60, 40)),
        ((0, 0, 30, 20), (30, 20)),
        ((0, 0, 61, 40), (10, 10)),
        ((-1, 0, 30, 30), (10, 10)),
        ((5, 5, 5, 9), (10, 10)),
        ((float("nan"), 0, 5, 5), (10, 10)),
        ((0, 0, 5), (10, 10)),
        (("0", 0, 5, 5), (10, 10)),
        (None, (0, 10)),
        (None, (40_000, 10)),
    ],
)
def test_copies_invalid_boxes_and_huge_images_are_left_to_pillow(box: Any, new_size: tuple[int, int]) -> None:
    assert edges_of(box, (60, 40), new_size) is None


def test_an_image_without_pixels_is_left_to_pillow() -> None:
    assert edges_of(None, (0, 40), (100, 100)) is None


def test_an_unknown_memory_layout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_Named", "_Numbered"):
        monkeypatch.setattr(pixel_memory, name, type("Other", (vars(pixel_memory)[name],), {"_fields_": []}))
    PixelMemory()  # succeeds, because a subclass has the same fields
    other = {"_fields_": [("mode", pixel_memory.ctypes.c_int * 2), *pixel_memory._BODY]}
    for name in ("_Named", "_Numbered"):
        monkeypatch.setattr(pixel_memory, name, type("Other", (pixel_memory.ctypes.Structure,), other))
    with pytest.raises(LookupError, match="unknown memory layout"):
        PixelMemory()
