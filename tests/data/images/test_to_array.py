"""Arrays and tensors of images from our C code have the same bytes. After a difference Pillow's and torch's code is
used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import worker

from slipstream.data.images import cache_folder, decode_cache, to_array
from slipstream.data.images.c_build import find_compiler
from slipstream.data.images.spot_check import FIRST
from slipstream.data.images.to_array import ArrayConversion, PlaneKernel, is_interleaved
from slipstream.data.transport.buffer_reuse import ReusingLoop
from slipstream.seams.patching import Patches
from slipstream.testing.jpegs import installed, write_jpegs

pytestmark = pytest.mark.skipif(not find_compiler(), reason="there is no C compiler")
SIZES = [(1, 1), (2, 3), (5, 7), (6, 1), (7, 5), (16, 16), (33, 31), (224, 224)]


def picture(size: tuple[int, int], mode: str = "RGB") -> Image.Image:
    shape = (size[1], size[0], len(mode)) if len(mode) > 1 else (size[1], size[0])
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, np.uint8), mode)


@pytest.mark.parametrize("size", SIZES)
def test_bytes_only_change_places(size: tuple[int, int]) -> None:
    image = picture(size)
    assert PlaneKernel().to_bytes(image.im) == image.tobytes()
    if min(size) > 1:
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        assert is_interleaved(pixels)
        ours, theirs = PlaneKernel().to_planes(pixels), pixels.contiguous()
        assert torch.equal(ours, theirs) and ours.stride() == theirs.stride()


def test_other_memory_layouts_are_left_to_torch() -> None:
    pixels = torch.zeros(20, 30, 3, dtype=torch.uint8)
    turned = pixels.permute(2, 0, 1)
    others = [
        pixels,
        turned.float(),
        turned[:, 1:],
        turned[:, :, 1:],
        turned[:2],
        pixels.permute(2, 1, 0),
        torch.zeros(20, 30, 4, dtype=torch.uint8).permute(2, 0, 1),
        torch.nn.Parameter(turned, requires_grad=False),
        [1],
    ]
    assert [is_interleaved(other) for other in others] == [False, False, True, False, False, False, False, False, False]


class Counted(PlaneKernel):
    is_wrong = False
    num_calls = 0

    def to_bytes(self, core: Any) -> bytes:
        self.num_calls += 1
        made = super().to_bytes(core)
        return made[:-1] + bytes([made[-1] ^ 1]) if self.is_wrong else made


def test_arrays_equal_pillows_and_other_modes_are_left_to_pillow() -> None:
    log: list[str] = []
    planes = Counted()
    conversion = ArrayConversion(planes, lambda: log.append("used"), lambda: log.append("differs"))
    pictures = [picture((40, 50)), picture((40, 50), "L"), picture((40, 50), "RGBA"), picture((3, 3))]
    bare = [(np.array(image), image.tobytes(), image.tobytes("raw", "BGR")) for image in pictures[:1]]
    rest = [np.array(image) for image in pictures[1:]]
    with installed(conversion):
        ours = [(np.array(image), image.tobytes(), image.tobytes("raw", "BGR")) for image in pictures[:1]]
        assert all(np.array_equal(a, b) for a, b in zip(rest, map(np.array, pictures[1:]), strict=True))
        array = np.array(pictures[0])
    assert np.array_equal(ours[0][0], bare[0][0]) and ours[0][1:] == bare[0][1:]
    assert array.flags.owndata and array.flags.writeable and planes.num_calls == 3 and log == ["used"] * 3


def test_a_difference_disables_it_and_the_script_gets_pillows_bytes() -> None:
    log: list[str] = []
    planes = Counted()
    planes.is_wrong = True
    image = picture((40, 50))
    bare = image.tobytes()
    with installed(ArrayConversion(planes, lambda: None, lambda: log.append("differs"))):
        assert [image.tobytes() for _ in range(3)] == [bare] * 3
    assert log == ["differs"] and planes.num_calls == 1


def test_tensors_in_a_worker_equal_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    conversion = ArrayConversion(PlaneKernel(), lambda: None, lambda: None)
    turned = torch.from_numpy(np.array(picture((40, 50)))).permute(2, 0, 1)
    bare = turned.contiguous()
    patches = Patches(lambda seam, fault: None, lambda: False)
    conversion.install_in_worker(patches)
    try:
        for _ in range(FIRST + 2):
            assert torch.equal(turned.contiguous(), bare) and turned.contiguous().is_contiguous()
        channels_last = turned.unsqueeze(0).contiguous(memory_format=torch.channels_last)
        monkeypatch.setattr(PlaneKernel, "to_planes", lambda self, pixels: torch.zeros(pixels.shape, dtype=torch.uint8))
        conversion._spot_check._proved[1] = 0  # results are compared again
        assert torch.equal(turned.contiguous(), bare) and torch.equal(turned.contiguous(), bare)
    finally:
        patches.close()
    assert channels_last.is_contiguous(memory_format=torch.channels_last)
    assert "contiguous" not in vars(torch.Tensor)


def test_a_wrapped_loop_is_pickled_in_its_own_way() -> None:
    conversion = ArrayConversion(PlaneKernel(), lambda: None, lambda: None)
    assert to_array._ContiguousLoop(worker._worker_loop, conversion).__reduce__() == "_worker_loop"
    inside = ReusingLoop(worker._worker_loop, 2, 8)
    assert to_array._ContiguousLoop(inside, conversion).__reduce__() == inside.__reduce__()


class Tensors(Dataset[Any]):
    """Tensors as from torchvision's ToTensor."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        image = Image.open(self.paths[index]).convert("RGB")
        left, top = (int(torch.randint(0, edge - 40, ())) for edge in image.size)
        image = image.crop((left, top, left + 40, top + 36)).resize((64, 64), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div_(255)


def test_batches_are_the_same_with_all_image_techniques(
    applied: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_folder, "images_folder", lambda: tmp_path / "images")
    monkeypatch.setattr(decode_cache, "SETTLED_NS", 0)
    dataset = Tensors(write_jpegs(tmp_path, 24))

    def epochs() -> list[torch.Tensor]:
        torch.manual_seed(0)
        loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=2)
        return [batch for _ in range(2) for batch in loader] + [torch.get_rng_state()]

    bare = epochs()
    with applied(decode_cache=True, fast_decode=True, fast_resize=True, fast_arrays=True) as context:
        ours = epochs()
    assert len(ours) == len(bare) and all(torch.equal(a, b) for a, b in zip(ours, bare, strict=True))
    assert any("arrays and tensors" in change for change in context.changes) and not context.declined
