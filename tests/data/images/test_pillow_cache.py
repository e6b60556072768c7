"""The cache of Pillow's decoding. A cached image is the same bit for bit in everything that a script can observe."""

from __future__ import annotations

import errno
import io
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile, JpegImagePlugin, WebPImagePlugin

from slipstream.data.images import decode_cache as room
from slipstream.data.images import pillow_cache
from slipstream.data.images.cache_budget import CacheBudget
from slipstream.data.images.decode_cache import DecodeCache
from slipstream.data.images.pillow_cache import PillowDecoding
from slipstream.data.images.pixel_store import PixelStore
from slipstream.data.images.webp_cache import WebPDecoding
from slipstream.seams.patching import Patches

Maker = Callable[[Path], Any]


class Cache:
    """A cache that is installed within a `with` block, and its messages."""

    def __init__(self, folder: Path, memory_bytes: int = 10**9) -> None:
        self.folder, self.said, self.faults = folder, list[str](), list[Any]()
        self.allowance = CacheBudget(folder, memory_bytes, self.said.append)
        keeping = DecodeCache(PixelStore(folder), self.allowance, self.said.append)
        self.decoding, self.frames = PillowDecoding(keeping), WebPDecoding(keeping)

    def __enter__(self) -> Cache:
        self._patches = Patches(lambda seam, fault: self.faults.append(fault), lambda: False)
        self.decoding.install(self._patches, ImageFile)
        self.frames.install(self._patches, WebPImagePlugin)
        return self

    def __exit__(self, *_: Any) -> None:
        self._patches.close()
        assert not self.faults and not self._patches.leftovers

    @property
    def num_kept(self) -> int:
        return self.allowance.meter.num_kept

    @property
    def num_found(self) -> int:
        return self.allowance.meter.num_found

    def entries(self) -> list[Path]:
        return sorted(self.folder.rglob("*.pixels"))


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """New files count as old and no disk counts as slow, so that the tests do not depend on the machine."""
    monkeypatch.setattr(room, "SETTLED_NS", 0)
    monkeypatch.setattr(room, "SLOW_S", 1e9)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    with Cache(tmp_path / "cache" / "images") as made:
        yield made


def noise(mode: str = "RGB", size: tuple[int, int] = (67, 45), seed: int = 0) -> Image.Image:
    bands = len(Image.new(mode, (1, 1)).getbands())
    values = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], bands), dtype=np.uint8)
    return Image.frombytes(mode, size, values.tobytes())


def save(path: Path, image: Image.Image | None = None, **options: Any) -> Path:
    (image or noise()).save(path, **options)
    return path


def exif() -> Image.Exif:
    made = Image.Exif()
    made[0x0112], made[0x010F] = 6, "maker"
    return made


def palette(path: Path) -> Path:
    return save(path, noise("L").quantize(16), transparency=3)


def texts(path: Path) -> Path:
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add(b"tEXt", b"late\0words", after_idat=True)
    return save(path, noise("RGBA"), pnginfo=info, dpi=(72, 72))


def deep(path: Path) -> Path:
    values = np.random.default_rng(0).integers(0, 65536, (45, 67), dtype=np.uint16)
    Image.fromarray(values).save(path)
    return path


FILES: dict[str, Maker] = {
    "rgb.jpg": save,
    "grey.jpg": lambda path: save(path, noise("L")),
    "cmyk.jpg": lambda path: save(path, noise("CMYK")),
    "exif.jpg": lambda path: save(path, exif=exif(), comment=b"said", icc_profile=b"profile"),
    "progressive.jpg": lambda path: save(path, progressive=True),
    "rgb.png": save,
    "grey.png": lambda path: save(path, noise("L")),
    "palette.png": palette,
    "texts.png": texts,
    "deep.png": deep,
    "rgb.webp": lambda path: save(path, exif=exif(), icc_profile=b"profile"),
    "alpha.webp": lambda path: save(path, noise("RGBA"), lossless=True),
}


def seen(image: Any) -> dict[str, Any]:
    """Everything that a script can observe after a load. Pillow's own objects are left out, and so is the private
    counter of a PNG that holds how much of its first chunk the decoder left."""
    image.load()
    raw, _ = pillow_cache._RAW.get(image.mode, (image.mode, 0))
    plain = (str, bytes, int, float, tuple, list, dict, type(None))
    found = {name: value for name, value in vars(image).items() if isinstance(value, plain) and "__idat" not in name}
    return {
        **found,
        "memory": image.tobytes("raw", raw),
        "pixels": image.tobytes(),
        "facts": (image.mode, image.size, image.format, image.readonly, image.get_format_mimetype()),
        "exif": dict(image.getexif()),
        "palette": (image.getpalette(), vars(image.palette) if image.palette else None),
        "text": getattr(image, "text", None),
        "extrema": image.getextrema(),
        "type": type(image),
    }


def opened_and_loaded(path: Path) -> dict[str, Any]:
    return seen(Image.open(path))


@pytest.mark.parametrize("name", FILES)
def test_a_cached_image_is_as_pillow_leaves_it(name: str, tmp_path: Path) -> None:
    path = FILES[name](tmp_path / name)
    bare = opened_and_loaded(path)
    with Cache(tmp_path / "cache") as cache:
        assert opened_and_loaded(path) == bare and (cache.num_kept, cache.num_found) == (1, 0)
        assert opened_and_loaded(path) == bare and (cache.num_kept, cache.num_found) == (1, 1)
    with Cache(tmp_path / "cache") as later:  # a later run of the script
        assert opened_and_loaded(path) == bare and (later.num_kept, later.num_found) == (0, 1)
        assert not later.said


def test_paths_file_objects_and_bytes(tmp_path: Path, cache: Cache) -> None:
    path = save(tmp_path / "a.jpg")
    bare = noise_free = Image.open(path).tobytes()
    for _ in range(2):
        assert Image.open(str(path)).tobytes() == bare
        with open(path, "rb") as file:
            assert Image.open(file).convert("L").size == (67, 45) and not file.closed
        with open(path, "rb", buffering=0) as file:
            assert Image.open(file).tobytes() == noise_free
    assert (cache.num_kept, cache.num_found) == (2, 5), "Pillow's own file, and the script's"
    for _ in range(2):
        assert Image.open(io.BytesIO(path.read_bytes())).tobytes() == bare
    assert (cache.num_kept, cache.num_found) == (3, 6)


def by_path(path: Path) -> Any:
    return Image.open(path).convert("RGB").tobytes()


def by_file(path: Path) -> Any:
    """Opens an image like torchvision's ImageFolder."""
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB").tobytes(), file.tell()


@pytest.mark.parametrize(("fill", "read"), [(by_file, by_path), (by_path, by_file)])
@pytest.mark.parametrize("name", ["a.jpg", "a.png"])
def test_an_image_is_found_when_it_is_opened_in_another_way(
    name: str, fill: Callable[[Path], Any], read: Callable[[Path], Any], tmp_path: Path, cache: Cache
) -> None:
    path = save(tmp_path / name, noise(size=(300, 200)))
    cache.__exit__()
    bare = fill(path), read(path)
    cache.__enter__()
    assert [(fill(path), read(path)) for _ in range(2)] == [bare, bare] and cache.num_found and not cache.said


@pytest.mark.parametrize("name", ["a.jpg", "a.png"])
def test_the_position_of_a_file_object_is_as_pillow_leaves_it(name: str, tmp_path: Path) -> None:
    path = save(tmp_path / name, noise(size=(300, 200)))  # the file is longer than one read of Pillow

    def positions() -> list[int]:
        found = []
        for file in (io.BytesIO(path.read_bytes() + b"more"), open(path, "rb")):  # noqa: SIM115
            Image.open(file).load()
            found.append(file.tell())
            file.close()
        return found

    bare = positions()
    with Cache(tmp_path / "cache") as cache:
        assert positions() == positions() == bare and cache.num_found == 2


def test_draft_and_thumbnail(tmp_path: Path) -> None:
    path = save(tmp_path / "a.jpg", noise(size=(256, 192)))

    def small() -> list[Any]:
        first = Image.open(path)
        first.draft("L", (64, 64))
        second = Image.open(path)
        second.draft("YCbCr", None)
        third = Image.open(path)
        third.thumbnail((40, 40))
        return [seen(first), seen(second), third.tobytes(), Image.open(path).tobytes()]

    bare = small()
    with Cache(tmp_path / "cache") as cache:
        assert small() == bare and cache.num_kept == 4, "what is decoded otherwise is another image"
        assert small() == bare and cache.num_found == 4


def test_changes_affect_only_the_changed_image(tmp_path: Path, cache: Cache) -> None:
    path = save(tmp_path / "a.png")
    bare = Image.open(path).tobytes()
    for _ in range(3):
        image = Image.open(path)
        pixels = image.load()
        assert pixels is not None
        pixels[3, 3] = (1, 2, 3)
        image.putpixel((0, 0), (9, 9, 9))
        image.paste((7, 7, 7), (10, 10, 20, 20))
        assert image.getpixel((3, 3)) == (1, 2, 3) and image.getpixel((15, 15)) == (7, 7, 7)
        other = Image.open(path)
        assert other.tobytes() == bare
    assert cache.num_found > 0


def test_a_lazy_image_is_never_decoded_and_a_copy_outlives_its_original(tmp_path: Path, cache: Cache) -> None:
    path = save(tmp_path / "a.jpg")
    with Image.open(path) as image:
        assert image.size == (67, 45)
    assert not cache.entries()
    bare = Image.open(path).tobytes()
    image = Image.open(path)
    image.load()
    copies = [image.copy(), image.crop((0, 0, 67, 45)), pickle.loads(pickle.dumps(image))]
    image.close()
    for entry in cache.entries():
        entry.unlink()
    assert all(copy.tobytes() == bare for copy in copies) and cache.num_found == 1
    with pytest.raises(ValueError, match="closed"):
        image.tobytes()


def test_a_changed_file_is_decoded_again(tmp_path: Path, cache: Cache) -> None:
    path = save(tmp_path / "a.png")
    Image.open(path).load()
    facts, old = path.stat(), path.read_bytes()
    other = io.BytesIO()
    noise(seed=1).save(other, "png")
    assert len(other.getvalue()) == len(old)
    path.write_bytes(other.getvalue())
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))  # as rsync does: name, size and this time stay
    assert Image.open(path).tobytes() == noise(seed=1).tobytes()
    assert (cache.num_kept, cache.num_found) == (2, 0)


def test_a_file_that_was_just_written_is_not_cached(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "SETTLED_NS", 10**12)
    Image.open(save(tmp_path / "a.png")).load()
    Image.open(io.BytesIO((tmp_path / "a.png").read_bytes())).load()
    assert cache.num_kept == 1, "bytes cannot change, a file may once more"


def test_other_formats_and_animations_are_not_cached(tmp_path: Path, cache: Cache) -> None:
    frames = [noise("P", seed=number) for number in range(3)]
    paths = [
        save(tmp_path / "a.gif", frames[0], save_all=True, append_images=frames[1:]),
        save(tmp_path / "a.bmp"),
        save(tmp_path / "moving.webp", noise(), save_all=True, append_images=[noise(seed=1)]),
        save(tmp_path / "a.tif"),
        save(tmp_path / "a.mpo", save_all=True, append_images=[noise(seed=1)]),
        save(tmp_path / "moving.png", noise(), save_all=True, append_images=[noise(seed=1)]),
    ]
    for path in paths * 2:
        with Image.open(path) as image:
            first = image.tobytes()
            if getattr(image, "n_frames", 1) > 1:
                image.seek(1)
                assert image.tobytes() != first
    assert not cache.entries() and not cache.said


def test_truncated_images_are_left_to_pillow(tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.jpg", "a.png"):
        whole = save(tmp_path / name, noise(size=(200, 200))).read_bytes()
        (tmp_path / f"cut-{name}").write_bytes(whole[: len(whole) // 2])
        for _ in range(2):
            with pytest.raises(OSError, match="truncated"):
                Image.open(tmp_path / f"cut-{name}").load()
        monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
        for _ in range(2):
            Image.open(tmp_path / f"cut-{name}").load()
        assert not cache.num_found
        num_kept = cache.num_kept
        Image.open(tmp_path / name).load()
        assert cache.num_kept == num_kept + 1, "whole ones are kept all the same"
        monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False)
        with pytest.raises(OSError, match="truncated"):
            Image.open(tmp_path / f"cut-{name}").load()
        monkeypatch.setattr(cache.allowance.meter, "_pages", memoryview(bytearray(3 * 8 * 512)).cast("Q"))


@pytest.mark.parametrize("name", ["a.jpg", "a.png"])
def test_truncated_images_that_pillow_completes_are_not_cached(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = save(tmp_path / name, noise(size=(200, 200))).read_bytes()
    path = tmp_path / f"cut-{name}"
    path.write_bytes(whole[: len(whole) // 2])
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    bare = opened_and_loaded(path)
    with Cache(tmp_path / "cache") as cache:
        assert opened_and_loaded(path) == opened_and_loaded(path) == bare and not cache.num_found


def flip_a_bit(entry: Path) -> None:
    data = bytearray(entry.read_bytes())
    data[512 + 1234] ^= 4
    entry.write_bytes(data)


def cut(entry: Path) -> None:
    os.truncate(entry, entry.stat().st_size - 1024)


def empty(entry: Path) -> None:
    entry.write_bytes(b"")


def spoil_head(entry: Path) -> None:
    data = bytearray(entry.read_bytes())
    data[40] ^= 1
    entry.write_bytes(data)


def swap_rows(entry: Path) -> None:
    data = entry.read_bytes()
    entry.write_bytes(data[:512] + data[1536:2560] + data[512:1536] + data[2560:])


@pytest.mark.parametrize("damage", [flip_a_bit, cut, empty, spoil_head, swap_rows])
def test_a_damaged_entry_is_decoded_again_and_replaced(damage: Callable[[Path], None], tmp_path: Path) -> None:
    path = save(tmp_path / "a.jpg")
    with Cache(tmp_path / "cache") as cache:
        bare = Image.open(path).tobytes()
        (entry,) = cache.entries()
        damage(entry)
        assert Image.open(path).tobytes() == bare and (cache.num_kept, cache.num_found) == (2, 0)
        assert Image.open(path).tobytes() == bare and (cache.num_kept, cache.num_found) == (2, 1)
        assert not cache.said


def test_a_full_disk_is_reported_once(tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", replace)
    paths = [save(tmp_path / f"{number}.jpg", noise(seed=number)) for number in range(3)]
    assert all(Image.open(path).load() for path in paths * 2)
    assert len(cache.said) == 1 and "the disk is full" in cache.said[0]
    assert not list(cache.folder.rglob("*.partial")), "nothing is left behind"


def test_writing_pauses_on_a_slow_disk(tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SLOW_S", 0.0)
    monkeypatch.setattr(room, "PATIENCE", 1e9)
    for number in range(3):
        Image.open(save(tmp_path / f"{number}.jpg", noise(seed=number))).load()
    assert cache.num_kept == 1 and not cache.said, "the others wait for a later epoch"


def test_a_file_that_the_script_closed_is_left_to_pillow(tmp_path: Path, cache: Cache) -> None:
    for file in (open(save(tmp_path / "a.jpg"), "rb"), io.BytesIO((tmp_path / "a.jpg").read_bytes())):  # noqa: SIM115
        image = Image.open(file)
        file.close()
        with pytest.raises(ValueError, match="closed file"):
            image.load()
    assert Image.open(tmp_path / "a.jpg").load() and cache.num_kept == 1 and not cache.said


def test_a_folder_that_is_not_writable_is_reported(tmp_path: Path) -> None:
    # A file in the place of the folder. A read-only folder would not stop root.
    (tmp_path / "file").write_text("")
    with Cache(tmp_path / "file" / "images") as cache:
        assert Image.open(save(tmp_path / "a.jpg")).load()
        assert len(cache.said) == 1 and "Not a directory" in cache.said[0]


def test_unfinished_files_are_deleted_when_the_store_is_opened(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    names = {f"a.pixels.{gone.pid}-1.partial": 100, f"b.pixels.{os.getpid()}-1.partial": 100, "c.pixels": 100}
    names |= {f"d.pixels.{gone.pid}-1.partial": 0, "somebody's.partial": 100}
    for name, age_s in names.items():
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    PixelStore(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(names) - {f"a.pixels.{gone.pid}-1.partial"}
    PixelStore(tmp_path / "not there")


def test_the_cache_may_be_cleared_while_it_is_used(tmp_path: Path, cache: Cache) -> None:
    from slipstream.data.images.cache_folder import clear

    path = save(tmp_path / "a.jpg")
    bare = Image.open(path).tobytes()
    image = Image.open(path)
    image.load()
    assert clear(cache.folder.parent) == 1 and not cache.folder.exists()
    assert image.tobytes() == bare
    assert Image.open(path).tobytes() == bare and cache.num_kept == 2 and not cache.said


def test_an_error_in_our_code_is_reported_once_and_pillow_continues(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("planted")

    path = save(tmp_path / "a.jpg")
    monkeypatch.setattr(cache.decoding, "_key", broken)
    assert Image.open(path).load() and Image.open(path).load()
    assert cache.said == ["images are decoded as before: RuntimeError: planted"]


def test_without_mappings_pixels_are_copied(tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "a.jpg")
    bare = opened_and_loaded(path)
    monkeypatch.setattr(pillow_cache, "_MOST_MAPPED", 2)
    held = [Image.open(path) for _ in range(5)]
    assert all(seen(image) == bare for image in held)
    assert len(cache.decoding._mapped) == 2 and cache.num_found == 5
    held.clear()
    assert not cache.decoding._mapped


def test_arrow_export_works(tmp_path: Path, cache: Cache) -> None:
    if not hasattr(Image.Image, "__arrow_c_array__"):
        pytest.skip("this Pillow exports nothing to Arrow")
    path = save(tmp_path / "a.jpg", noise("L"))
    bare = Image.open(path).tobytes()
    image = Image.open(path)
    copied = Image.fromarrow(image, "L", image.size)
    assert copied.tobytes() == bare and cache.num_found == 1


def test_works_together_with_another_replacement_of_load(tmp_path: Path) -> None:
    """Another technique that decodes may be installed before or after the cache."""
    path = save(tmp_path / "a.jpg")
    bare = Image.open(path).tobytes()
    calls = []
    patches = Patches(lambda seam, fault: calls.append(fault), lambda: False)
    patches.around(ImageFile.ImageFile, "load", "other", None, lambda *_: calls.append(1))
    try:
        with Cache(tmp_path / "cache") as cache:
            assert Image.open(path).tobytes() == bare and calls
            calls.clear()
            image = Image.open(path)
            assert isinstance(image, JpegImagePlugin.JpegImageFile)
            image.load()
            assert not calls and cache.num_found == 1, "a kept image needs no decoder"
            assert image.tobytes() == bare
    finally:
        patches.close()


SCRIPT = """
import resource, sys
from pathlib import Path
from PIL import Image, ImageFile
from slipstream.data.images import decode_cache
from slipstream.data.images.cache_budget import CacheBudget
from slipstream.data.images.pillow_cache import PillowDecoding
from slipstream.data.images.pixel_store import PixelStore
from slipstream.seams.patching import Patches
photographs, folder, limit = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
decode_cache.SETTLED_NS, decode_cache.SLOW_S = 0, 1e9
said = []
kept = decode_cache.DecodeCache(PixelStore(folder), CacheBudget(folder, 10**9, said.append), said.append)
PillowDecoding(kept).install(Patches(lambda seam, fault: sys.exit(repr(fault)), lambda: False), ImageFile)
total = 0
for _ in range(3):
    for path in sorted(photographs.glob("*.jpg")):
        total += sum(Image.open(path).tobytes())
print(total, *said, sep="|")
"""


def train(photographs: Path, folder: Path, most_bytes: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(photographs), str(folder), str(most_bytes)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def told(child: subprocess.Popen[str]) -> list[str]:
    out, err = child.communicate(timeout=100)
    assert child.returncode == 0, err
    return out.strip().split("|")


def test_two_runs_at_once_and_a_full_disk(tmp_path: Path) -> None:
    for number in range(8):
        save(tmp_path / f"{number}.jpg", noise(seed=number))
    total = str(3 * sum(sum(Image.open(path).tobytes()) for path in tmp_path.glob("*.jpg")))
    runs = [train(tmp_path, tmp_path / "shared"), train(tmp_path, tmp_path / "shared")]
    full = train(tmp_path, tmp_path / "full", most_bytes=5000)
    assert [told(child) for child in runs] == [[total], [total]]
    counted, *said = told(full)
    assert counted == total and len(said) == 1 and "the disk is full" in said[0]
    assert len(list((tmp_path / "shared").rglob("*.pixels"))) == 8
    assert not list(tmp_path.rglob("*.partial")) and not list((tmp_path / "full").rglob("*.pixels"))
