"""Compares what `slipstream machine` measured on this computer with what a check observed.

Each function whose name starts with `about_` returns a sentence about the machine's speed. Most of these sentences
compare the speed with a time of the script. The functions return "" if there is no usable speed test of this machine,
or if the comparison shows nothing.
"""

from __future__ import annotations

from slipstream.diagnose.speedtest_ranges import is_busy
from slipstream.numbers import in_bytes, in_ms
from slipstream.records import Session, Summary

SOURCE = "(slipstream machine)"
ALIKE = 1.5  # Two measurements within this ratio count as equal.
MUCH = 3.0
PICTURE = "a photograph of 500 x 375"  # The picture that the speed test decodes
FILE_BYTES = 110_000  # Size of the speed test's small files


def reading_of(session: Session, name: str, device: str = "cpu") -> float | None:
    """The speed test's reading; None if it cannot be used.

    A reading cannot be used if it was not measured, if it comes from another machine, or if the speed test or the check
    began while the machine was busy.
    """
    test, here = session.speedtest, session.environment
    if test is None:
        return None
    there = test.environment
    if (there.cpu, there.num_logical, there.num_usable) != (here.cpu, here.num_logical, here.num_usable):
        return None
    if is_busy(there) or is_busy(here):
        return None
    reading = test.reading(name, device)
    return reading.value if reading is not None and reading.value > 0 else None


def sample_ms(summary: Summary, step_ms: float) -> float | None:
    """The time of one sample, from the time of all samples of a step."""
    return step_ms / summary.samples_per_step if summary.samples_per_step > 0 else None


def about_decoding(session: Session, image_ms: float | None) -> str:
    """Compares the time to decode one image with the speed test's picture. Pillow must decode both."""
    rate = reading_of(session, "decode")
    if rate is None or not image_ms:
        return ""
    known_ms = 1000.0 / rate
    times = image_ms / known_ms
    fact = (
        f"An image takes {in_ms(image_ms)} to decode, and {PICTURE} takes {in_ms(known_ms)} "
        f"on a core of this machine {SOURCE}"
    )
    if times > ALIKE:
        return f"{fact}: {times:.1f} times as long, so smaller images would cost less."
    return f"{fact}: decoding is as fast as it can be here." if times > 1 / ALIKE else ""


def about_reading(session: Session, read_ms: float | None) -> str:
    """Compares the time to read one sample with the time to read a small file from the disk."""
    rate, test = reading_of(session, "disk_files"), session.speedtest
    if rate is None or test is None or not read_ms:
        return ""
    known_ms = 1000.0 / rate
    fact = (
        f"A sample takes {in_ms(read_ms)} to read; the disk of {test.folder} gives a file of {in_bytes(FILE_BYTES)} "
        f"that is not in memory in {in_ms(known_ms)} {SOURCE}"
    )
    if read_ms > ALIKE * known_ms:
        return f"{fact}: more than such a file is read for each, or from a slower place."
    return f"{fact}: the disk itself is the limit." if read_ms > known_ms / ALIKE else ""


def about_handing_over(session: Session, batch_bytes: int, spent_ms: float) -> str:
    """Compares the time that a worker needs to pass on one batch of tensors with the speed test's rate."""
    rate = reading_of(session, "hand_over")
    if rate is None or not batch_bytes or spent_ms <= 0:
        return ""
    known_ms = batch_bytes / rate / 1000.0  # Bytes divided by MB/s, in ms
    fact = f"At the {rate:,.0f} MB/s that one worker hands over here {SOURCE} a batch of {in_bytes(batch_bytes)} takes"
    if spent_ms > ALIKE * known_ms:
        return f"{fact} {in_ms(known_ms)}, and yours takes {in_ms(spent_ms)}: packing takes longer than copying."
    return f"{fact} {in_ms(known_ms)}: only fewer bytes, or reused memory, make it faster."


def about_starting(session: Session, start_ms: float, num_workers: int) -> str:
    known_ms = reading_of(session, "worker_start")
    if known_ms is None or start_ms < MUCH * known_ms * num_workers:
        return ""
    return f"A worker without work is ready after {in_ms(known_ms)} here {SOURCE}: the rest is imports and the dataset."


def precision_ratio(session: Session, unit: str, device: str) -> float | None:
    """The speed of this machine's multiplications in this precision, divided by their speed in fp32."""
    full, other = (reading_of(session, f"multiply_{name}", device.partition(":")[0]) for name in ("fp32", unit))
    return other / full if full and other else None


def about_copying(session: Session, device: str) -> str:
    kind = device.partition(":")[0]
    pinned, pageable = (reading_of(session, name, kind) for name in ("copy_pinned", "copy_pageable"))
    if not pinned or not pageable:
        return ""
    return f"This machine copies {pinned:.1f} GB/s from pinned memory and {pageable:.1f} from other memory {SOURCE}."
