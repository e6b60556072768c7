from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from slipstream.data.transport.byte_packing import Packer, is_image_batch, unpack

MEAN, STD = (torch.tensor(values).view(1, 3, 1, 1) for values in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
WAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "ToTensor": lambda levels: levels.float().div(255),
    "and Normalize": lambda levels: levels.float().div(255).sub_(MEAN).div_(STD),
    "multiplied": lambda levels: levels.float() * (1 / 255.0) * 2 - 1,
    "as they are": lambda levels: levels.float(),
    "upside down": lambda levels: 1 - levels.float() / 255,
}


def levels(seed: int = 0, low: int = 0, high: int = 256, size: int = 48) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, (4, 3, size, size), dtype=torch.uint8, generator=generator)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int32)


@pytest.mark.parametrize("way", WAYS)
def test_unpacked_images_are_the_same_bit_for_bit(way: str) -> None:
    packer = Packer()
    for seed in range(3):
        images = WAYS[way](levels(seed))
        packed = packer.pack(images)
        assert packed is not None and packed.levels.dtype == torch.uint8 and packed.levels.shape == images.shape
        assert packed.tables.shape == (3, 256)
        back = unpack(packed)
        assert torch.equal(bits(back), bits(images)) and back.stride() == images.stride()


@pytest.mark.parametrize("way", WAYS)
def test_values_that_appear_later_are_packed(way: str) -> None:
    packer = Packer()
    for low, high in ((100, 140), (90, 200), (0, 20), (250, 256), (0, 256)):
        images = WAYS[way](levels(low, low, high))
        packed = packer.pack(images)
        assert packed is not None and torch.equal(bits(unpack(packed)), bits(images)), (low, high)


def spoilt(where: tuple[int, ...], value: float) -> torch.Tensor:
    images = WAYS["and Normalize"](levels())
    images[where] = value
    return images


@pytest.mark.parametrize(
    "images",
    [
        torch.randn(4, 3, 48, 48),
        spoilt((1, 2, 3, 4), float("nan")),
        spoilt((1, 2, 3, 4), float("inf")),
        spoilt((3, 0, 47, 47), 0.123),
        spoilt((3, 0, 47, 47), 1e30),
        torch.cat([WAYS["ToTensor"](levels()), WAYS["multiplied"](levels())]),
        WAYS["ToTensor"](levels()).double().pow(2.2).float(),
    ],
    ids=["noise", "NaN", "infinite", "one off the line", "far away", "two lines", "a curve"],
)
def test_floats_that_were_not_bytes_are_refused_permanently(images: torch.Tensor) -> None:
    packer = Packer()
    assert packer.pack(images) is None and packer.is_hopeless
    assert packer.pack(WAYS["ToTensor"](levels())) is None


def test_later_values_are_checked_too() -> None:
    packer = Packer()
    assert packer.pack(WAYS["and Normalize"](levels())) is not None
    next_after = torch.nextafter(WAYS["and Normalize"](levels(1)), torch.tensor(9.0))
    assert packer.pack(next_after) is None and packer.is_hopeless, "one ulp is another float"


def test_images_of_one_colour_do_not_end_packing_at_once() -> None:
    packer = Packer()
    assert packer.pack(WAYS["ToTensor"](levels(0, 7, 9))) is None and not packer.is_hopeless
    assert packer.pack(WAYS["ToTensor"](levels())) is not None
    bored = Packer()
    for _ in range(8):
        assert not bored.is_hopeless
        bored.pack(WAYS["ToTensor"](levels(0, 7, 9)))
    assert bored.is_hopeless


def test_zero_and_minus_zero_are_different() -> None:
    images = WAYS["as they are"](levels())
    images[0, 0, 0, 0] = -0.0
    assert Packer().pack(images) is None


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.zeros(4, 3, 48, 48), True),
        (torch.zeros(4, 3, 48, 48, dtype=torch.float64), False),
        (torch.zeros(4, 3, 4, 4), False),
        (torch.zeros(4, 64, 48, 48), False),
        (torch.zeros(4, 3, 48, 48).to(memory_format=torch.channels_last), False),
        (torch.zeros(4, 48 * 48 * 3), False),
        (torch.zeros(4, 3, 48, 48, requires_grad=True), False),
        (torch.nn.Parameter(torch.zeros(4, 3, 48, 48)), False),
    ],
)
def test_is_image_batch(tensor: torch.Tensor, expected: bool) -> None:
    assert is_image_batch(tensor) is expected
