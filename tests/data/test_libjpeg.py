"""Pillow's libjpeg without Pillow: the same pixels of every kind, and nothing of what is damaged."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageFile

from slipstream.data import c_library, jpeg_file, keeping, libjpeg, pillow
from slipstream.data.cache_folder import survey
from slipstream.data.jpeg_file import feed, whole_kind_of
from slipstream.data.libjpeg import DirectDecoding, Libjpeg, find_direct
from slipstream.data.top_rows import TopRows, is_same
from slipstream.data.trust import FIRST
from slipstream.testing.jpegs import KINDS, installed, jpeg

CORE: Any = vars(Image)["core"]
PLAIN_KINDS = [name for name in KINDS if name != "CMYK"]


@pytest.fixture(scope="module")
def library() -> Libjpeg:
    try:
        return Libjpeg()
    except (c_library.CompileError, LookupError) as reason:
        pytest.skip(str(reason))


def opened(data: bytes) -> Any:
    return Image.open(io.BytesIO(data))


@pytest.mark.parametrize("name", PLAIN_KINDS)
def test_the_pixels_are_pillows_whole_and_in_part(name: str, library: Libjpeg) -> None:
    data = jpeg(**KINDS[name])
    image = opened(data)
    for num_rows in {image.height, (image.height + 1) // 2, 1}:
        core = CORE.new(image.mode, (image.width, num_rows))
        assert library.fill(core, data, image.height)
        assert is_same(core, feed(image.mode, core.size, data)[0])


def test_whatever_is_damaged_is_refused_without_a_word(library: Libjpeg, capfd: pytest.CaptureFixture[str]) -> None:
    data = jpeg()
    core = CORE.new("RGB", (96, 72))
    scan = data.index(b"\xff\xda") + 40
    bad = {
        "cut off": data[: len(data) // 2],
        "cut off and ended": data[: len(data) // 2] + b"\xff\xd9",
        "zeros": data[:scan] + bytes(500) + data[scan + 500 :],
        "no end": data[:-2],
        "no picture": b"\xff\xd8\xff\xd9",
        "no JPEG": bytes(100),
        "nothing": b"",
    }
    assert [name for name, one in bad.items() if library.fill(core, one, 72)] == []
    assert not library.fill(CORE.new("RGB", (95, 72)), data, 72), "another width"
    assert not library.fill(CORE.new("RGB", (96, 70)), data, 71), "another height"
    assert not library.fill(CORE.new("RGB", (96, 72)), jpeg(mode="CMYK"), 72)
    assert library.fill(core, data, 72), "and goes on"
    assert capfd.readouterr() == ("", "")


def test_a_difference_ends_it_for_this_kind(library: Libjpeg, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[int] = []
    direct = DirectDecoding(library, lambda: said.append(1))
    good, other = jpeg(), jpeg(subsampling=0)
    fill = library.fill
    monkeypatch.setattr(library, "fill", lambda core, *rest: fill(core, *rest) and not core.putpixel((5, 5), (1, 2, 3)))
    core = CORE.new("RGB", (96, 72))
    assert not direct.fill(core, good, 72, whole_kind_of(opened(good)) or 0) and said == [1]
    monkeypatch.undo()
    assert not direct.fill(core, good, 72, whole_kind_of(opened(good)) or 0) and said == [1]
    assert direct.fill(core, other, 72, whole_kind_of(opened(other)) or 0)


def test_proved_at_first_and_then_seldom(library: Libjpeg, monkeypatch: pytest.MonkeyPatch) -> None:
    direct = DirectDecoding(library, lambda: None)
    proofs: list[int] = []
    prove = DirectDecoding._prove
    monkeypatch.setattr(DirectDecoding, "_prove", lambda self, *rest: (proofs.append(1), prove(self, *rest)))
    for _ in range(FIRST + 5):
        assert direct.fill(CORE.new("RGB", (96, 72)), jpeg(), 72, 53)
    assert len(proofs) == FIRST


def test_without_a_compiler_or_with_another_pillow_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as none:
        none.setattr(c_library, "find_compiler", list)
        assert find_direct(lambda: None) is None
    with monkeypatch.context() as static:
        static.setattr(libjpeg, "_FUNCTIONS", ("jpeg_of_nobody",))
        assert find_direct(lambda: None) is None
    monkeypatch.setattr(libjpeg.features, "version", lambda name: None)
    assert find_direct(lambda: None) is None


@pytest.mark.parametrize("name", KINDS)
def test_crops_and_whole_pictures_are_the_same(name: str, library: Libjpeg, monkeypatch: pytest.MonkeyPatch) -> None:
    data, filled = jpeg(**KINDS[name]), []
    whole, part = opened(data).tobytes(), opened(data).crop((0, 0, 1, 1)).tobytes()
    rows = TopRows(lambda: None, lambda: None)
    rows.direct = DirectDecoding(library, lambda: None)
    fill = library.fill
    monkeypatch.setattr(library, "fill", lambda *task: (filled.append(1), fill(*task))[1])
    with installed(rows):
        assert opened(data).convert(opened(data).mode).tobytes() == whole
        assert opened(data).crop((0, 0, 1, 1)).tobytes() == part
    assert bool(filled) == (name not in ("CMYK", "progressive", "grey"))  # the first of these two are decoded at once


def test_damaged_pictures_raise_what_pillow_raises(library: Libjpeg) -> None:
    rows = TopRows(lambda: None, lambda: None)
    rows.direct = DirectDecoding(library, lambda: None)
    data = jpeg()
    zeros = data[: len(data) // 2] + bytes(200) + data[len(data) // 2 + 200 :]
    bare = opened(zeros).tobytes()
    with installed(rows):
        assert opened(zeros).convert("RGB").tobytes() == bare
        with pytest.raises(OSError, match="truncated"):
            opened(data[: len(data) // 2]).convert("RGB").tobytes()


@pytest.mark.parametrize("names", [["decode_cache"], ["fast_decode"], ["decode_cache", "fast_decode"]])
def test_what_decodes_jpegs_uses_it(
    names: list[str], tmp_path: Path, riding: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, library: Libjpeg
) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(keeping, "SETTLED_NS", 0)
    filled: list[tuple[int, int]] = []
    fill = Libjpeg.fill
    monkeypatch.setattr(
        Libjpeg, "fill", lambda self, core, *rest: (filled.append(core.size), fill(self, core, *rest))[1]
    )
    path = tmp_path / "a.jpg"
    path.write_bytes(jpeg())
    bare = Image.open(path).convert("RGB").tobytes()
    with riding(**dict.fromkeys(names, True)):
        for _ in range(2):
            assert Image.open(path).convert("RGB").tobytes() == bare
    assert filled == [(96, 72)] * (1 if "decode_cache" in names else 2)


def test_a_file_that_cannot_be_read_is_pillows_to_complain_of(
    tmp_path: Path, riding: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, library: Libjpeg
) -> None:
    def fail(image: Any) -> Any:
        raise OSError("no such block")

    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(keeping, "SETTLED_NS", 0)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    data = jpeg()
    path, cut = tmp_path / "a.jpg", tmp_path / "cut.jpg"
    path.write_bytes(data)
    cut.write_bytes(data[: len(data) // 2])
    bare = [Image.open(one).tobytes() for one in (path, cut)]
    monkeypatch.setattr(jpeg_file, "read_whole", fail)
    with riding(decode_cache=True) as rig:
        assert [Image.open(one).tobytes() for one in (path, cut)] == bare
        monkeypatch.undo()
        monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
        Image.open(path).load()
    assert not rig.declined and survey(tmp_path / "cache").num_images == 1


def test_only_in_front_of_pillows_own_load(tmp_path: Path) -> None:
    """What another library makes of `load` is not gone past."""
    load = ImageFile.ImageFile.load
    assert pillow._is_pillows(load)
    other = functools.wraps(load)(lambda image: load(image))
    assert not pillow._is_pillows(other) and not pillow._is_pillows(lambda image: load(image))
    with installed(TopRows(lambda: None, lambda: None)):
        ours = ImageFile.ImageFile.load
        assert pillow._is_pillows(ours)
        assert not pillow._is_pillows(functools.wraps(ours)(lambda image: ours(image)))
