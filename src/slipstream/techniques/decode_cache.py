"""Stores on disk the raw pixels of images that Pillow, OpenCV or torchvision has decoded. When an image is needed
again, its pixels are read from there.

Helps where decoding JPEG, PNG or WebP is a large part of the input work, and where the decoded dataset fits in half of
the free memory and half of the free disk. From the second epoch on nothing is decoded. Pixels are bit-identical. Random
augmentation is unaffected, because it runs after decoding. A changed file is decoded again.

Hurts the first epoch, in which every decoded image is also written. A photograph of 500 x 375 pixels takes 0.75 MB of
disk and 0.75 MB of the system's page cache. Images that do not fit are decoded as before. `slipstream cache` shows and
clears the cache.
"""

from __future__ import annotations

import functools
import os
import re
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.numbers import in_bytes, in_percent
from slipstream.records import Edit, Setting, Site
from slipstream.techniques._core.card import YES, Answer, Card, no
from slipstream.techniques._core.images import say_for_spawned
from slipstream.techniques._core.observation import Observation
from slipstream.techniques._core.prefill import fill_before_races

if TYPE_CHECKING:
    from slipstream.data.images.decode_cache import DecodeCache
    from slipstream.techniques._core.context import ApplyContext, LoaderArguments

CARD = Card(
    title="Decoded images kept between epochs",
    seam="loader",
    causes=("slow_decode",),
    numerics="identical",
    memory="more",
    is_later=True,
    claims=("image.cache",),
    nesting=1,  # Outermost, so the other decoders do not see an image that the cache holds.
)
VALUES = (True,)
LEAST_SHARE = 0.1  # Minimum share of decoding in the work on a batch
_NUM_TRIED = 16  # If none of this many samples contains an image, the dataset counts as one without images.
_OPENS = re.compile(r"\bImage\.open\(|\b(imread|imdecode|read_image|decode_image|decode_jpeg|decode_png)\(")


def applies(observation: Observation) -> Answer:
    length = observation.session.length
    if length is not None and length.num_epochs == 1 and length.around is None:
        return no("the script trains for one epoch, so no image is decoded twice")
    share = _decoding_share(observation)
    if share is not None:
        return YES if share >= LEAST_SHARE else no(f"decoding is only {in_percent(share)} of the work on a batch")
    loader = observation.loader
    if loader is None:
        return no("the script has no DataLoader, and no image was seen to be decoded")
    if loader.dataset_name in ("ImageFolder", "DatasetFolder") or _opens_images(loader.getitem_site):
        return YES
    return no(f"{loader.dataset_name} was not seen to decode images")


def _decoding_share(observation: Observation) -> float | None:
    """Returns the share of decoding in the work on a batch, or None if too few stacks were sampled."""
    from slipstream.diagnose.hotspots import FEWEST_SAMPLES, total
    from slipstream.diagnose.input_path import input_path

    path = input_path(observation.session, observation.summary) if observation.summary is not None else None
    if path is None or total(path.stacks) < FEWEST_SAMPLES:
        return None
    return path.share([stack for stack in path.stacks if stack.stage == "decode"])


def _opens_images(site: Site | None) -> bool:
    if site is None:
        return False
    try:
        return _OPENS.search(Path(site.file).read_text(encoding="utf-8", errors="replace")) is not None
    except OSError:
        return False


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.data.images.cache_budget import CacheBudget
    from slipstream.data.images.cache_folder import images_folder
    from slipstream.data.images.decode_cache import DecodeCache
    from slipstream.data.images.pixel_store import PixelStore
    from slipstream.data.workers.worker_flags import WorkerFlags
    from slipstream.machine.free_memory import free_bytes

    folder = images_folder()
    reason = _obstacle(folder)
    if reason:
        context.decline(reason)
        return
    kept, full, fault = range(3)
    flags = WorkerFlags(
        lambda: context.changed(what),
        lambda: context.decline(flags.text(full)),
        lambda: context.decline(flags.text(fault)),
    )
    flags.install(context.patches)
    budget = CacheBudget(folder, free_bytes(), lambda why: flags.raise_flag(full, why))
    what = f"decoded images are cached in {folder}, at most {in_bytes(budget.room_bytes)}"
    say_for_spawned(context, what)
    tell = functools.partial(flags.raise_flag, fault)
    cache = DecodeCache(PixelStore(folder), budget, tell, lambda: flags.raise_flag(kept))
    context.on_loader(lambda arguments: _expect(cache, arguments))
    _follow_decoders(context, cache)
    fill_before_races(context, lambda loader, limit_s: _fill(context, cache, loader, limit_s))


def _obstacle(folder: Path) -> str:
    """Returns why the folder cannot hold a cache, or ""."""
    from slipstream.machine.disk import read_disk_kind

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as fault:
        return f"{folder} cannot be written ({fault.strerror}): set SLIPSTREAM_CACHE to a writable folder"
    if read_disk_kind(folder.resolve()) == "network":
        return f"{folder} is on a network drive, which is slower than decoding: set SLIPSTREAM_CACHE to a local folder"
    return ""


def _expect(cache: DecodeCache, arguments: LoaderArguments) -> None:
    from torch.utils.data import Subset

    dataset = source = arguments["dataset"]
    while type(source) is Subset:
        source = source.dataset
    budget = cache.allowance
    try:
        if budget.expect(id(dataset), len(dataset), id(source), len(source)):
            weakref.finalize(dataset, budget.forget, id(dataset)).atexit = False
    except Exception:  # The dataset is iterable, has a wrong length, or is a list without finalizers.
        return


def _follow_decoders(context: ApplyContext, cache: DecodeCache) -> None:
    """Patches each decoder when the script imports it. That may be long after torch, or never."""
    from slipstream.data.images.array_cache import ArrayDecoding
    from slipstream.data.images.pillow_cache import PillowDecoding
    from slipstream.data.images.webp_cache import WebPDecoding
    from slipstream.seams.import_hooks import ImportHooks

    arrays = ArrayDecoding(cache)
    import_hooks = ImportHooks()
    context.patches.on_close(import_hooks.close)
    import_hooks.when_imported("PIL.ImageFile", lambda module: PillowDecoding(cache).install(context.patches, module))
    import_hooks.when_imported(
        "PIL.WebPImagePlugin", lambda module: WebPDecoding(cache).install(context.patches, module)
    )
    import_hooks.when_imported("cv2", lambda module: arrays.install_opencv(context.patches, module))
    import_hooks.when_imported("torchvision.io", lambda module: arrays.install_torchvision(context.patches, module))


def _fill(context: ApplyContext, cache: DecodeCache, loader: Any, limit_s: float) -> None:
    from slipstream.data.images import prefill

    budget, meter = cache.allowance, cache.allowance.meter
    if budget.is_closed:
        return

    def is_over(num_made: int) -> bool:
        """Whether the cache is full or the samples contain no images."""
        return budget.is_closed or (num_made >= _NUM_TRIED and not meter.num_kept + meter.num_found)

    share = prefill.fill(loader, lambda: loader.dataset.__getitem__, is_over, limit_s)
    if meter.num_kept + meter.num_found:
        context.changed(
            f"before the race {in_percent(share)} of the next epoch was decoded: {meter.num_kept:,} images stored "
            f"({in_bytes(meter.kept_bytes)} of disk), {meter.num_found:,} already stored"
        )


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    loader = observation.loader
    site = loader.getitem_site or loader.site if loader is not None else None
    reason = "decode each image once, np.save the pixels, then use np.load(..., mmap_mode='r')"
    return [Edit("decode_cache", "by_hand", site, reason=reason)]
