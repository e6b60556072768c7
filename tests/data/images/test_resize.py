"""`Image.resize` with our C code: what a script observes, and when Pillow's code is used."""

from __future__ import annotations

import io
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from slipstream.data.images.c_build import find_compiler
from slipstream.data.images.partial_decode import PartialDecode
from slipstream.data.images.resize import Resizing
from slipstream.data.images.resize_kernel import Resampler
from slipstream.data.images.scaled_decode import ScaledDecode
from slipstream.data.images.spot_check import EVERY, FIRST
from slipstream.testing.jpegs import installed, jpeg

pytestmark = pytest.mark.skipif(not find_compiler(), reason="there is no C compiler")
BILINEAR = Image.Resampling.BILINEAR
DATA = jpeg(width=120, height=100)


class Counted(Resampler):
    """Counts its calls and optionally makes one byte wrong."""

    num_calls = 0
    is_wrong = False

    def resize(self, core: Any, *task: Any) -> Any:
        self.num_calls += 1
        new = super().resize(core, *task)
        if self.is_wrong:
            new.putpixel((0, 0), tuple(value ^ 1 for value in new.getpixel((0, 0))))
        return new


def picture(seed: int = 0, size: tuple[int, int] = (100, 80)) -> Any:
    return Image.open(io.BytesIO(jpeg(*size, seed=seed))).convert("RGB")


def resizing(log: list[str] | None = None) -> tuple[Resizing, Counted]:
    said, resampler = [] if log is None else log, Counted()
    resampler.num_calls = 0
    return Resizing(resampler, lambda: said.append("used"), lambda: said.append("differs")), resampler


USES: dict[str, Any] = {
    "resize": lambda image: image.resize((64, 64), BILINEAR),
    "by names": lambda image: image.resize(size=[64, 50], resample=3, box=(3.5, 2, 90, 70)),
    "NumPy's size": lambda image: image.resize(np.array([64, 64])),
    "fit": lambda image: ImageOps.fit(image, (60, 60)),
    "thumbnail": lambda image: (image.thumbnail((70, 70), reducing_gap=None), image)[1],
    "RGBA": lambda image: image.convert("RGBA").resize((64, 64), BILINEAR),
    "not converted": lambda image: Image.open(io.BytesIO(DATA)).resize((64, 64), Image.Resampling.LANCZOS),
}


def facts(image: Any) -> Any:
    layout = "RGBX" if image.mode == "RGB" else image.mode
    return type(image), image.mode, image.size, image.info, image.readonly, image.tobytes("raw", layout)


@pytest.mark.parametrize("use", USES)
def test_results_equal_pillows(use: str) -> None:
    bare = USES[use](picture())
    part, resampler = resizing()
    with installed(part):
        ours = USES[use](picture())
    assert resampler.num_calls == 1
    assert facts(ours) == facts(bare)


def test_info_and_palette_are_as_pillow_leaves_them() -> None:
    image = picture()
    image.info = {"dpi": (72, 72)}
    with installed(resizing()[0]):
        new = image.resize((64, 64))
    assert new.info == image.info and new.info is not image.info and new.palette is None


@pytest.mark.parametrize(
    "use",
    [
        lambda image: image.resize((100, 80)),
        lambda image: image.resize((50, 40), Image.Resampling.NEAREST),
        lambda image: image.resize((50, 40), BILINEAR, None, 2.0),
        lambda image: image.convert("F").resize((64, 64)),
        lambda image: image.convert("P").resize((64, 64)),
        lambda image: image.resize((9, 9), BILINEAR, (0, 0, 8, 8)),
        lambda image: image.resize((80, 80), BILINEAR, (0, 0, 80, 80)),
    ],
)
def test_other_calls_are_left_to_pillow(use: Any) -> None:
    part, resampler = resizing()
    bare = use(picture())
    with installed(part):
        ours = use(picture())
    assert resampler.num_calls == 0 and facts(ours) == facts(bare)


@pytest.mark.parametrize(
    "call",
    [
        lambda image: image.resize((0, 64)),
        lambda image: image.resize((64.5, 64)),
        lambda image: image.resize((64, 64), 99),
        lambda image: image.resize((64, 64), 2.0),
        lambda image: image.resize((64, 64), BILINEAR, (0, 0, 101, 80)),
        lambda image: image.resize((64, 64), BILINEAR, "abcd"),
        lambda image: image.resize((64, 64), reducing_gap=0.5),
        lambda image: Image.open(io.BytesIO(DATA[:1500])).resize((64, 64)),
        lambda image: image.resize(),
    ],
)
def test_invalid_calls_raise_pillows_errors(call: Any) -> None:
    def fault_of() -> Any:
        with pytest.raises(Exception) as caught:
            call(picture())
        return caught.type, str(caught.value)

    bare = fault_of()
    with installed(resizing()[0]):
        assert fault_of() == bare


def test_the_first_images_and_then_one_in_many_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    part, _ = resizing()
    proofs: list[int] = []
    real = part._is_proved
    monkeypatch.setattr(part, "_is_proved", lambda *args: proofs.append(1) or real(*args))
    image = picture()
    with installed(part):
        for _ in range(EVERY):
            image.resize((40, 40), BILINEAR)
    assert len(proofs) == FIRST + 1


def test_a_difference_disables_the_replacement_permanently() -> None:
    log: list[str] = []
    part, resampler = resizing(log)
    bare = picture().resize((64, 64), BILINEAR)
    with installed(part):
        picture().resize((64, 64), BILINEAR)
        resampler.is_wrong = True
        assert facts(picture().resize((64, 64), BILINEAR)) == facts(bare)
        resampler.is_wrong = False
        num_calls = resampler.num_calls
        picture().resize((64, 64), BILINEAR)
        picture().resize((64, 64), Image.Resampling.BICUBIC)
    assert log == ["used", "differs"] and resampler.num_calls == num_calls


def test_a_difference_in_a_forked_process_disables_all() -> None:
    part, resampler = resizing()
    with installed(part):
        child = os.fork()
        if child == 0:
            resampler.is_wrong = True
            picture().resize((64, 64), BILINEAR)
            os._exit(0)
        os.waitpid(child, 0)
        picture().resize((64, 64), BILINEAR)
    assert resampler.num_calls == 0


def test_an_image_that_changes_its_size_when_it_is_loaded() -> None:
    class Icon(Image.Image):
        def load(self) -> Any:
            self._size = (50, 40)
            self.im = picture(size=(50, 40)).im
            return super().load()

    def use(width: int) -> Any:
        icon = Icon()
        icon._mode, icon._size = "RGB", (width, 40)
        try:
            return facts(icon.resize((64, 64), BILINEAR))
        except ValueError as fault:
            return str(fault)

    bare = [use(width) for width in (40, 60)]
    with installed(resizing()[0]):
        for _ in range(FIRST):  # afterwards no image is compared for a while
            picture().resize((64, 64), BILINEAR)
        assert [use(width) for width in (40, 60)] == bare
    assert "exceed" in bare[1]


def test_threads() -> None:
    images = [picture(seed, (90 + seed, 100)) for seed in range(12)]
    bare = [image.resize((64, 64), BILINEAR).tobytes() for image in images]
    with installed(resizing()[0]), ThreadPoolExecutor(4) as threads:
        for _ in range(5):
            assert [new.tobytes() for new in threads.map(lambda i: i.resize((64, 64), BILINEAR), images)] == bare


def test_an_error_in_our_code_does_not_reach_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = picture().resize((64, 64), BILINEAR)
    part, resampler = resizing()
    monkeypatch.setattr(resampler, "resize", lambda *_: 1 / 0)
    with installed(part):
        assert facts(picture().resize((64, 64), BILINEAR)) == facts(bare)


def test_works_together_with_partial_decoding() -> None:
    def use() -> Any:
        return Image.open(io.BytesIO(DATA)).convert("RGB").crop((5, 5, 105, 85)).resize((64, 64), BILINEAR)

    bare = use()
    part, resampler = resizing()
    with installed(part, PartialDecode(lambda: None, lambda: pytest.fail("differs"))):
        assert facts(use()) == facts(bare)
    assert resampler.num_calls == 1
    large = jpeg(width=400, height=320, grain=40)
    used: list[int] = []
    with installed(part, ScaledDecode(1, lambda: used.append(1), lambda: None)):
        Image.open(io.BytesIO(large)).convert("RGB").resize((90, 70), BILINEAR)
    assert used and resampler.num_calls == 2, "the small picture, too, is resized here"


PROGRESSIVE = jpeg(width=120, height=100, progressive=True)  # decoded completely, so its parts can be cut out later
PARTS: dict[str, Any] = {
    "a crop": lambda image: image.crop((7, 5, 101, 93)).resize((64, 64), BILINEAR),
    "a crop of a crop": lambda image: image.crop((7, 5, 117, 97)).crop((3, 1, 99, 90)).resize((50, 70)),
    "with a box": lambda image: image.crop((7, 5, 101, 93)).resize((64, 64), BILINEAR, (1.5, 2, 80, 70.25)),
    "to its edges": lambda image: image.crop((60, 40, 120, 100)).resize((90, 90), Image.Resampling.LANCZOS),
    "all of it": lambda image: image.resize((64, 64), BILINEAR),
    "high": lambda image: image.crop((40, 0, 60, 100)).resize((64, 80), BILINEAR),
    "after another look": lambda image: (
        (part := image.crop((7, 5, 101, 93))).getpixel((0, 0)) and part.resize((64, 64), BILINEAR)
    ),
}


@pytest.mark.parametrize("use", PARTS)
def test_a_pending_part_is_resized_in_place(use: str) -> None:
    bare = PARTS[use](Image.open(io.BytesIO(PROGRESSIVE)).convert("RGB"))
    part, resampler = resizing()
    with installed(part, PartialDecode(lambda: None, lambda: None)):
        for _ in range(FIRST + 2):  # the first images are compared, and their parts are cut out for that
            ours = PARTS[use](Image.open(io.BytesIO(PROGRESSIVE)).convert("RGB"))
            assert facts(ours) == facts(bare)
    assert resampler.num_calls == FIRST + 2


def test_a_pending_part_behaves_like_any_other_image() -> None:
    def uses(image: Any) -> list[Any]:
        whole = image.convert("RGB")
        part = whole.crop((7, 5, 101, 93))
        small = whole.crop((7, 5, 17, 15))
        drawn = whole.crop((7, 5, 101, 93))
        drawn.paste((1, 2, 3), (0, 0, 9, 9))
        again = whole.crop((7, 5, 101, 93)).resize((64, 64), BILINEAR)
        pickled = pickle.loads(pickle.dumps(whole.crop((7, 5, 101, 93))))
        return [facts(one) for one in (part, small, drawn, again, pickled, part.copy(), part.convert("L"), whole)]

    bare = uses(Image.open(io.BytesIO(PROGRESSIVE)))
    with installed(resizing()[0], PartialDecode(lambda: None, lambda: None)):
        assert uses(Image.open(io.BytesIO(PROGRESSIVE))) == bare
