"""The cache for OpenCV's and torchvision's decoders. torchvision cannot be installed with the torch version of the
tests, so a stand-in with the same signatures and memory layout replaces it."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from slipstream.data.images import decode_cache as room
from slipstream.data.images.array_cache import ArrayDecoding
from slipstream.data.images.cache_budget import CacheBudget
from slipstream.data.images.decode_cache import DecodeCache
from slipstream.data.images.pixel_store import PixelStore
from slipstream.seams.patching import Patches


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SETTLED_NS", 0)
    monkeypatch.setattr(room, "SLOW_S", 1e9)


class Cache:
    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        self.patches = Patches(lambda seam, fault: self.said.append(repr(fault)), lambda: False)
        allowance = CacheBudget(folder, 10**9, self.said.append)
        self.meter = allowance.meter
        self.decoding = ArrayDecoding(DecodeCache(PixelStore(folder), allowance, self.said.append))


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    made = Cache(tmp_path / "cache")
    yield made
    made.patches.close()
    assert not made.patches.leftovers and not made.said


@pytest.fixture
def photograph(tmp_path: Path) -> Path:
    path = tmp_path / "a.jpg"
    Image.frombytes("RGB", (60, 40), random.Random(0).randbytes(7200)).save(path)
    return path


def test_opencv(cache: Cache, photograph: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    original = cv2.imread
    data = np.fromfile(photograph, np.uint8)

    def decoded() -> list[Any]:
        return [
            cv2.imread(str(photograph)),
            cv2.imread(str(photograph), cv2.IMREAD_GRAYSCALE),
            cv2.imread(str(photograph), flags=cv2.IMREAD_REDUCED_COLOR_2),
            cv2.imdecode(data, cv2.IMREAD_COLOR),
            cv2.imread("/nowhere.jpg"),
        ]

    bare = decoded()
    cache.decoding.install_opencv(cache.patches, cv2)
    for _ in range(2):
        for ours, theirs in zip(decoded(), bare, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                assert np.array_equal(ours, theirs) and ours.dtype == theirs.dtype
                assert ours.flags.owndata and ours.flags.writeable
                ours[:] = 0  # the script may change its array
    assert (cache.meter.num_kept, cache.meter.num_found) == (4, 4)
    cache.patches.close()
    assert cv2.imread is original


def test_images_that_opencv_completes_are_not_cached(cache: Cache, photograph: Path, tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    (tmp_path / "cut.jpg").write_bytes(photograph.read_bytes()[: photograph.stat().st_size // 2])
    (tmp_path / "words.jpg").write_text("no image")
    cache.decoding.install_opencv(cache.patches, cv2)
    for _ in range(2):
        cv2.imread(str(tmp_path / "cut.jpg"))
        assert cv2.imread(str(tmp_path / "words.jpg")) is None
    assert cache.meter.num_kept == 0


class Mode(Enum):
    UNCHANGED = 0
    GRAY = 1


def stand_in() -> Any:
    made: Any = ModuleType("torchvision.io")
    made.image = ModuleType("torchvision.io.image")

    def decode_image(input: torch.Tensor, mode: Mode = Mode.UNCHANGED, apply_exif_orientation: bool = False) -> Any:
        picture: Any = Image.open(io.BytesIO(input.numpy().tobytes()))
        values = np.array(picture.convert("L" if mode is Mode.GRAY else "RGB"))
        return torch.from_numpy(values.reshape(*values.shape[:2], -1)).permute(2, 0, 1)

    def read_image(path: str, mode: Mode = Mode.UNCHANGED, apply_exif_orientation: bool = False) -> Any:
        data = torch.from_numpy(np.fromfile(path, np.uint8))
        return made.image.decode_image(data, mode, apply_exif_orientation=apply_exif_orientation)

    for function in (decode_image, read_image):
        setattr(made, function.__name__, function)
        setattr(made.image, function.__name__, function)
    return made


def test_torchvision(cache: Cache, photograph: Path) -> None:
    tv = stand_in()
    data = torch.from_numpy(np.fromfile(photograph, np.uint8))

    def decoded() -> list[Any]:
        return [
            tv.read_image(str(photograph)),
            tv.image.read_image(str(photograph), Mode.GRAY),
            tv.decode_image(data, mode=Mode.GRAY),
            tv.decode_image(data),
        ]

    bare = decoded()
    cache.decoding.install_torchvision(cache.patches, tv)
    for _ in range(2):
        for ours, theirs in zip(decoded(), bare, strict=True):
            assert torch.equal(ours, theirs) and ours.stride() == theirs.stride()
            ours.zero_()
    assert (cache.meter.num_kept, cache.meter.num_found) == (4, 4), "a decoder inside another keeps nothing twice"
    with pytest.raises(FileNotFoundError):
        tv.read_image("/nowhere.jpg")
