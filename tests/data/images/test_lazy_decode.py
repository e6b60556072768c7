"""Postponed decoding gives Pillow's pixels, and everything else that a script can observe of an image is the same."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps

from slipstream.data.images.lazy_decode import LazyDecode, why_not_here
from slipstream.data.images.partial_decode import PartialDecode
from slipstream.data.images.scaled_decode import ScaledDecode
from slipstream.seams.patching import Patches
from slipstream.testing.jpegs import KINDS, installed, jpeg


def top_rows() -> PartialDecode:
    return PartialDecode(lambda: None, lambda: pytest.fail("a picture came out otherwise"))


def scaled() -> ScaledDecode:
    return ScaledDecode(1, lambda: None, lambda: None)


def seen(image: Any) -> tuple[Any, ...]:
    return type(image), image.mode, image.size, image.info, image.readonly, image.tobytes()


def whole_box(image: Any) -> Any:
    return image.crop((1, 1, *image.size)) if min(image.size) > 1 else image.copy()


USES: dict[str, Callable[[Any], Any]] = {
    "converted": lambda image: image.convert("RGB"),
    "as an array": lambda image: Image.fromarray(np.array(image.convert("RGB"))),
    "cropped": lambda image: image.convert("RGB").crop((5, 7, 60, 41)),
    "cropped as opened": lambda image: image.crop((5, 7, 60, 41)),
    "cropped twice": lambda image: image.convert("RGB").crop((5, 7, 60, 41)).crop((3, 3, 20, 20)),
    "cropped over the edge": lambda image: image.convert("RGB").crop((-5, -7, 300, 300)),
    "cropped by floats": lambda image: image.convert("RGB").crop((4.6, 7.4, 60.5, 40.9)),
    "cropped to nearly all": whole_box,
    "cropped and enlarged": lambda image: image.convert("RGB").crop((5, 7, 30, 41)).resize((64, 64)),
    "enlarged": lambda image: image.convert("RGB").resize((200, 150), Image.Resampling.BILINEAR),
    "flipped": lambda image: image.convert("RGB").transpose(Image.Transpose.FLIP_LEFT_RIGHT).crop((0, 0, 9, 9)),
    "grey": lambda image: image.convert("L"),
    "drafted": lambda image: (image.draft("RGB", (20, 20)), image.convert(image.mode))[1],
    "copied": lambda image: copy.deepcopy(image.convert("RGB")),
    "pickled": lambda image: pickle.loads(pickle.dumps(image.convert("RGB"))),
    "turned upright": lambda image: ImageOps.exif_transpose(image.convert("RGB")),
    "equal to itself": lambda image: image if image.convert(image.mode) == image.convert(image.mode) else None,
    "pixel by pixel": lambda image: Image.new("RGB", (2, 2), image.convert("RGB").load()[0, 0]),
    "changed": lambda image: (lambda rgb: (rgb.putpixel((0, 0), (1, 2, 3)), rgb)[1])(image.convert("RGB")),
    "two parts": lambda image: Image.blend(
        *(lambda rgb: (rgb.crop((0, 0, 20, 20)), rgb.crop((9, 20, 29, 40))))(image.convert("RGB")), 0.5
    ),
}


def without_tables(data: bytes) -> bytes:
    """A JPEG without quantisation tables, which libjpeg rejects."""
    start = data.index(b"\xff\xdb")
    end = min(at for at in (data.find(b"\xff\xc0"), data.find(b"\xff\xc2")) if at > start)
    return data[:start] + data[end:]


@pytest.mark.parametrize("how", [top_rows, scaled])
@pytest.mark.parametrize("kind", KINDS)
def test_all_operations_give_pillows_image(kind: str, how: Callable[[], LazyDecode]) -> None:
    data = jpeg(**KINDS[kind])
    bare = {use: seen(call(Image.open(io.BytesIO(data)))) for use, call in USES.items()}
    with installed(how()):
        for use, call in USES.items():
            assert seen(call(Image.open(io.BytesIO(data)))) == bare[use], use


@pytest.mark.parametrize("is_path", [True, False])
def test_the_opened_image_is_left_as_pillow_leaves_it(tmp_path: Path, is_path: bool) -> None:
    path = tmp_path / "one.jpg"
    path.write_bytes(jpeg(exif=b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00"))

    def use() -> tuple[Any, ...]:
        with path.open("rb") as file:
            image: Any = Image.open(path if is_path else file)
            opened = image.fp
            part = image.convert("RGB").crop((0, 0, 9, 9))
            place = None if is_path else file.tell()
            left = {k: v for k, v in vars(image).items() if k not in ("_im", "_slipstream_pending")}
        return left, opened.closed, place, seen(part), seen(image), image.getexif(), image.fp

    bare = use()
    with installed(top_rows()):
        assert use() == bare


def test_a_file_may_be_closed_or_deleted_before_decoding(tmp_path: Path) -> None:
    path = tmp_path / "one.jpg"
    path.write_bytes(jpeg())
    with installed(top_rows()):
        with path.open("rb") as file, Image.open(file) as image:
            converted = image.convert("RGB")
        path.unlink()
        assert converted.getbbox() and image.getbbox() == converted.getbbox()


def test_a_pending_image_does_not_keep_the_scripts_file_open(tmp_path: Path) -> None:
    path = tmp_path / "one.jpg"
    path.write_bytes(jpeg())

    def is_closed_with_the_last_name() -> bool:
        file = path.open("rb")
        known, image = weakref.ref(file), Image.open(file).convert("RGB")
        del file
        return known() is None and image.size == (96, 72)

    assert is_closed_with_the_last_name()
    with installed(top_rows()):
        assert is_closed_with_the_last_name()


def test_a_closed_image_stays_closed() -> None:
    with installed(top_rows()):
        image = Image.open(io.BytesIO(jpeg())).convert("RGB")
        image.close()
        with pytest.raises(ValueError, match="closed image"):
            image.getpixel((0, 0))


@pytest.mark.parametrize(
    "spoil", [lambda data: data[: len(data) // 2], lambda data: data[:-2], lambda data: data + b"more"]
)
def test_broken_files_behave_as_in_pillow(spoil: Callable[[bytes], bytes]) -> None:
    data = spoil(jpeg())

    def use() -> Any:
        file = io.BytesIO(data)
        try:
            converted = Image.open(file).convert("RGB")
        except OSError as fault:
            return str(fault)
        return seen(converted), file.tell()

    bare = use()
    with installed(top_rows()):
        assert use() == bare


def test_damaged_image_data_gives_pillows_pixels() -> None:
    data = bytearray(jpeg(width=200, height=200))
    data[len(data) // 2 : len(data) // 2 + 8] = bytes(8)
    bare = seen(Image.open(io.BytesIO(data)).convert("RGB").crop((0, 0, 200, 180)))
    with installed(top_rows()):
        assert seen(Image.open(io.BytesIO(data)).convert("RGB").crop((0, 0, 200, 180))) == bare


def test_several_threads_may_decode_the_same_image() -> None:
    data, start = jpeg(width=16, height=16), threading.Barrier(2)
    faults: list[BaseException] = []

    def look(image: Any) -> None:
        try:
            start.wait()
            image.load()
        except BaseException as fault:
            faults.append(fault)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with installed(top_rows()):
            for _ in range(300):
                image = Image.open(io.BytesIO(data)).convert("RGB")
                threads = [threading.Thread(target=look, args=(image,)) for _ in range(2)]
                [thread.start() for thread in threads], [thread.join() for thread in threads]
    finally:
        sys.setswitchinterval(before)
    assert not faults


def test_other_files_are_left_to_pillow() -> None:
    file = io.BytesIO()
    Image.new("RGB", (20, 20), (1, 2, 3)).save(file, "PNG")
    with installed(top_rows()):
        image = Image.open(file).convert("RGB")
        assert image._im is not None and image.crop((0, 0, 5, 5)).getpixel((0, 0)) == (1, 2, 3)


class Cache:
    """A stand-in for other code that decodes for Pillow."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def install(self, patches: Patches) -> None:
        original = ImageFile.ImageFile.load

        @functools.wraps(original)
        def load(image: Any) -> Any:
            self.asked.append(image)
            return original(image)

        patches.replace(ImageFile.ImageFile, "load", load)


@pytest.mark.parametrize(("how", "kind"), [(top_rows, "4:2:0"), (top_rows, "progressive"), (scaled, "4:2:0")])
def test_a_rejected_header_raises_where_pillow_raises(how: Callable[[], LazyDecode], kind: str) -> None:
    whole = jpeg(**KINDS[kind])
    with installed(how()):
        assert Image.open(io.BytesIO(whole)).convert("RGB").getbbox()
        with pytest.raises(OSError, match="broken data stream"):
            Image.open(io.BytesIO(without_tables(whole))).convert("RGB")


def test_a_damaged_table_is_not_confused_with_an_accepted_one() -> None:
    whole = jpeg()
    at = whole.index(b"\xff\xc4") + 5
    spoilt = whole[:at] + b"\xff" * 16 + whole[at + 16 :]
    with installed(top_rows()):
        Image.open(io.BytesIO(whole)).convert("RGB")
        with pytest.raises(OSError, match="broken data stream"):
            Image.open(io.BytesIO(spoilt)).convert("RGB")


@pytest.mark.parametrize("use", [lambda image: image.convert("RGB"), lambda image: image.crop((0, 0, 9, 9))])
def test_an_exception_of_another_decoder_reaches_the_script(use: Callable[[Any], Any]) -> None:
    data = without_tables(jpeg())
    with installed(top_rows(), Cache()), pytest.raises(OSError, match="broken data stream"):
        use(Image.open(io.BytesIO(data)))


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("how", [top_rows, scaled])
def test_decoding_is_left_to_other_code_that_replaces_load(how: Callable[[], LazyDecode], is_first: bool) -> None:
    data, cache = jpeg(), Cache()
    bare = {use: seen(call(Image.open(io.BytesIO(data)))) for use, call in USES.items()}
    with installed(*([cache, how()] if is_first else [how(), cache])):
        for use, call in USES.items():
            image = Image.open(io.BytesIO(data))
            assert seen(call(image)) == bare[use], use
            assert image in cache.asked


def test_shared_pixels_are_copied_before_they_are_changed() -> None:
    with installed(top_rows(), Cache()):
        parent: Any = Image.open(io.BytesIO(jpeg()))
        child: Any = parent.convert("RGB")
        assert child._im is None, "a copy that nobody needs yet"
        before = parent.getpixel((0, 0))
        parent.putpixel((0, 0), (1, 2, 3))
        assert child.crop((0, 0, 2, 2)).getpixel((0, 0)) == before == child.getpixel((0, 0))
        child.putpixel((0, 0), (4, 5, 6))
        assert parent.getpixel((0, 0)) == (1, 2, 3)


def test_this_pillow_version_is_supported() -> None:
    assert why_not_here() == ""
