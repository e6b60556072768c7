from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from slipstream.data.images import partial_decode as room
from slipstream.data.images.jpeg_file import JpegSource
from slipstream.data.images.spot_check import EVERY, FIRST, MOST_FAULTS, SpotCheck
from slipstream.testing.jpegs import KINDS, installed, jpeg, write_jpegs

KINDS_AS_BYTES = {name: jpeg(**options) for name, options in KINDS.items()}


def top_rows(log: list[str]) -> room.PartialDecode:
    return room.PartialDecode(lambda: log.append("used"), lambda: log.append("differs"))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int | str]:
    """How many rows of each image were decoded."""
    log: list[int | str] = []
    top, whole, proof = JpegSource.decode_top, JpegSource.decode, JpegSource.decode_by_load
    monkeypatch.setattr(JpegSource, "decode_by_load", lambda self: (log.append("proof"), proof(self))[1])
    monkeypatch.setattr(JpegSource, "decode_top", lambda self, rows: (log.append(rows), top(self, rows))[1])
    monkeypatch.setattr(JpegSource, "decode", lambda self: (log.append("whole"), whole(self))[1])
    return log


def test_a_crop_is_decoded_down_to_its_lower_edge_and_compared_at_first(decoded: list[Any]) -> None:
    log: list[str] = []
    with installed(top_rows(log)):
        for number in range(FIRST + 3):
            Image.open(io.BytesIO(jpeg(seed=number))).convert("RGB").crop((0, 0, 9, 20 + number))
    assert decoded == [entry for n in range(FIRST + 3) for entry in ((20 + n, "proof") if n < FIRST else (20 + n,))]
    assert set(log) == {"used"}


@pytest.mark.parametrize("kind", ["progressive", "grey", "CMYK"])
def test_kinds_without_row_decoding_are_decoded_completely(decoded: list[Any], kind: str) -> None:
    with installed(top_rows([])):
        Image.open(io.BytesIO(jpeg(**KINDS[kind]))).crop((0, 0, 9, 20))
    assert decoded in (["whole"], [])


def test_images_are_decoded_completely_once_several_parts_are_requested(decoded: list[Any]) -> None:
    with installed(top_rows([])):
        for number in range(FIRST + 2):
            Image.open(io.BytesIO(jpeg(seed=number))).convert("RGB").crop((0, 0, 9, 20))
        decoded.clear()
        for _ in range(3):
            image = Image.open(io.BytesIO(jpeg())).convert("RGB")
            image.crop((0, 0, 9, 20)), image.crop((0, 0, 9, 30)), image.crop((0, 0, 9, 40))
    assert decoded == [20, "whole", "whole", "whole"]  # the first image showed that parts are requested repeatedly


def test_a_difference_disables_the_kind_and_pillows_pixels_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JpegSource, "decode_top", lambda self, rows: Image.new("RGB", (self.size[0], rows), 7).im)
    log: list[str] = []
    bare = Image.open(io.BytesIO(jpeg())).crop((0, 0, 9, 20)).tobytes()
    with installed(top_rows(log)):
        for _ in range(3):
            assert Image.open(io.BytesIO(jpeg())).convert("RGB").crop((0, 0, 9, 20)).tobytes() == bare
    assert log.count("differs") == 1


def test_rows_that_were_not_reached_are_detected() -> None:
    image: Any = Image.open(io.BytesIO(jpeg()))
    data = jpeg()
    cut = data[: data.index(b"\xff\xda") + 200]
    assert JpegSource(image, data).decode_top(70) is not None
    assert JpegSource(image, cut).decode_top(70) is None


def test_is_same_compares_every_byte() -> None:
    one, other = Image.new("RGB", (4, 4)).im, Image.new("RGB", (4, 4)).im
    assert room.is_same(one, other)
    other.putpixel((3, 3), (0, 0, 1))
    assert not room.is_same(one, other) and not room.is_same(one, Image.new("L", (4, 4)).im)
    assert not room.is_same(one, Image.new("RGB", (4, 3)).im)


def test_spot_check_compares_often_at_first_and_is_withdrawn_permanently() -> None:
    trust, proofs = SpotCheck(), []
    for _ in range(2 * EVERY):
        proofs.append(trust.wants_proof(5))
        trust.note_proof(5)
    assert proofs[:FIRST] == [True] * FIRST and sum(proofs[FIRST:]) == 2
    assert trust.wants_proof(6), "another kind"
    for _ in range(MOST_FAULTS):
        assert trust.has(5)
        trust.blame(5)
    assert not trust.has(5) and trust.has(6)
    trust.withdraw(6)
    trust.note_proof(6)
    assert not trust.has(6)
    trust._proved[6] = 2  # another process may still count
    assert not trust.has(6)


def test_spot_check_is_shared_with_forked_processes() -> None:
    trust = SpotCheck()
    child = os.fork()
    if child == 0:
        trust.withdraw(1)
        for _ in range(FIRST):
            trust.note_proof(2)
        os._exit(0)
    os.waitpid(child, 0)
    assert not trust.has(1) and not trust.wants_proof(2) and trust.wants_proof(3)


def test_kinds_are_distinguished() -> None:
    kinds = {name: JpegSource(Image.open(io.BytesIO(data)), data).kind for name, data in KINDS_AS_BYTES.items()}
    assert len({kinds[name] for name in ("4:4:4", "4:2:2", "4:2:0")}) == 3 and kinds["odd size"] == kinds["4:2:0"]
    assert all(kinds[name] is None for name in ("progressive", "grey", "CMYK"))


# --- in a loader ----------------------------------------------------------------------------------------------------


class Crops(Dataset[Any]):
    """Crops as in scripts without torchvision."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        image = Image.open(self.paths[index]).convert("RGB")
        left, top = (int(torch.randint(0, edge - 32, ())) for edge in image.size)
        width = int(np.random.randint(20, 33))
        crop = image.crop((left, top, left + width, top + 32)).resize((24, 24), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(crop))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_the_same_bit_for_bit_and_use_is_reported_once(
    applied: Any, tmp_path: Path, num_workers: int
) -> None:
    dataset = Crops(write_jpegs(tmp_path, 24))

    def epochs() -> list[torch.Tensor]:
        torch.manual_seed(3)
        np.random.seed(3)
        loader = DataLoader(dataset, 4, shuffle=True, num_workers=num_workers)
        return [batch for _ in range(2) for batch in loader] + [torch.rand(3), torch.tensor(np.random.rand(3))]

    bare = epochs()
    with applied(fast_decode=True) as context:
        ours = epochs()
    assert all(torch.equal(a, b) for a, b in zip(ours, bare, strict=True))
    assert context.changes == ["fast_decode: JPEGs are decoded as far as they are used"] and context.declined == []
