"""Images, sound or video are decoded again in every epoch."""

from __future__ import annotations

import re

from slipstream.diagnose.gain import gain_of
from slipstream.diagnose.hotspots import hottest_line, total
from slipstream.diagnose.input_path import InputPath, costs_time, data_site, granted_share, input_path, step_after
from slipstream.diagnose.source_hints import joined, taking
from slipstream.diagnose.speedtest_context import about_decoding, sample_ms
from slipstream.diagnose.steps.selection import is_single_epoch
from slipstream.numbers import in_ms, in_percent, part_of_ms
from slipstream.records import Finding, Loader, Session, StackCount, Summary

LEAST_SHARE = 0.3  # Share of the work on a batch
CACHED = 0.95  # Share that a cache of decoded pixels saves. A copy out of a memory map remains.
# The longest time that a slow core needs to decode one pixel of a JPEG. A longer time means that there are more pixels.
NS_PER_PIXEL = 20.0
# Least ratio of decoded pixels to kept pixels. libjpeg can decode at half the width and height, or less.
SHRUNK = 4.0
SHRINKS = re.compile(r"\b(resize|thumbnail|reduce)\b")
QUICKER = 0.1  # Share of each decode that a faster decode saves. Used if there is no second epoch to cache for.


def find(session: Session, summary: Summary) -> list[Finding]:
    path = input_path(session, summary)
    if path is None or not costs_time(summary, path):
        return []
    stacks = [stack for stack in path.stacks if stack.stage == "decode"]
    share = path.share(stacks)
    if share < LEAST_SHARE:
        return []
    # The finding no_workers may be reported too, and the larger prediction comes first. On few cores the cache has the
    # larger prediction, because workers use cores that the step also needs. On many cores the workers have the larger
    # prediction.
    is_single = is_single_epoch(session)
    removed = share * (QUICKER if is_single else CACHED)
    then_ms = step_after(session, summary, path, work_ms=path.work_ms * (1 - removed))
    hot = hottest_line(session, stacks)
    image_ms = sample_ms(summary, share * path.work_ms)
    small = _decoded_smaller(path, stacks, image_ms, granted_share(session, summary.ceilings))
    techniques = ["fast_decode"] if is_single else ["decode_cache", "fast_decode"]
    return [
        Finding(
            cause="slow_decode",
            title=taking("Decoding", share),
            evidence=f"Decoding is {in_percent(share)} of the {in_ms(path.work_ms)} that a step's batch takes to "
            f"build; the step waits {part_of_ms(path.wait_ms, summary.step_ms)}.",
            predicted_gain=gain_of(summary.step_ms, then_ms),
            change="decode once, np.save the pixels, np.load(..., mmap_mode='r') from then on; or store smaller images",
            site=data_site(path.loader, hot),
            techniques=[*techniques, "scaled_decode"] if is_single or small else techniques,
            advice=joined(
                "" if is_single else "The first epoch still decodes; the gain is that of all later ones.",
                small,
                about_decoding(session, image_ms) if _is_pillows(stacks) else "",
            ),
        )
    ]


def _decoded_smaller(path: InputPath, stacks: list[StackCount], image_ms: float | None, granted: float) -> str:
    """Advice for JPEGs that are decoded and then shrunk.

    The advice is given if the decoding time shows that the images are far larger than what is kept of them. `granted`
    is the share of a core that the decoding had. The advice is not given for a crop, which may be enlarged afterwards.
    """
    is_jpeg = any("JpegImagePlugin" in stack.leaf for stack in stacks)
    shrunk = [stack for stack in path.stacks if SHRINKS.search(f"{stack.leaf} {stack.expression}")]
    is_cropped = any("crop" in f"{stack.leaf} {stack.expression}".lower() for stack in path.stacks)
    kept = _kept_pixels(path.loader)
    if not is_jpeg or not shrunk or is_cropped or not kept or not image_ms:
        return ""
    width, height = kept
    if granted * image_ms * 1e6 / NS_PER_PIXEL < SHRUNK * width * height:
        return ""
    return (
        f"A picture takes {in_ms(image_ms)} to decode and {width} x {height} pixels of it are kept: image.draft('RGB', "
        "size) after Image.open, with the size it is shrunk to, decodes it at a half, a quarter or an eighth."
    )


def _kept_pixels(loader: Loader) -> tuple[int, int] | None:
    """Width and height of the pictures in a batch, with channels first or last; None if they are not known."""
    shapes = [facts.shape for facts in loader.tensor_facts if len(facts.shape) == 4]
    if len(shapes) != 1:
        return None
    _, first, second, third = shapes[0]
    return (second, first) if third in (1, 3, 4) and first not in (1, 3, 4) else (third, second)


def _is_pillows(stacks: list[StackCount]) -> bool:
    """Whether almost all stack samples are in Pillow, so that the decoded files are images."""
    return total(stacks, lambda stack: "PIL/" in stack.leaf) >= 0.9 * total(stacks)
