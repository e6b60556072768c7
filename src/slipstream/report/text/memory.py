"""The memory of a step in sentences, and the rows that every renderer shows. This module measures nothing."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from slipstream.diagnose.memory_growth import has_stopped, was_followed
from slipstream.diagnose.steps.selection import training_loader
from slipstream.memory.forecast import Forecast, forecast
from slipstream.memory.remedies import Remedy
from slipstream.numbers import in_bytes, in_percent, plural
from slipstream.records import Footprint, Growth, Leak, LineBytes, ModuleBytes, Remains, Session
from slipstream.report.text.locations import where

MEMORY = "memory"  # the command
_LEAST_SHARE = 0.005  # the least share of the peak with which a module or a line gets a row
_LEAST_GROWTH = 1024
_DOUBTFUL = 0.05
_FRAGMENTED = 0.1  # memory is called fragmented if this share of the reserved bytes is free in split blocks


def summarise(session: Session) -> str:
    """Returns the sentence about the peak and what fills it."""
    if not session.footprints:
        return "No step was observed. The script must train for about six steps."
    footprint = session.footprints[0]
    kind, share = largest_kind(footprint)
    return f"Peak {in_bytes(footprint.peak_bytes)} {reached(footprint, session.cwd)}; {in_percent(share)} of it {kind}."


def reached(footprint: Footprint, cwd: str) -> str:
    """Returns when and where the peak was reached: "in backward, reached by sum at net.py:14"."""
    at = f" at {where(footprint.peak_site, cwd)}" if footprint.peak_site else ""
    operator = footprint.peak_operator.removeprefix("aten::")
    phase = "between the phases" if footprint.peak_phase == "other" else f"in {footprint.peak_phase}"
    return f"{phase}, reached by {operator}{at}" if operator else f"{phase}{at}"


def largest_kind(footprint: Footprint) -> tuple[str, float]:
    """Returns the kind that fills most of the peak, in words, and its share of the peak."""
    kind, most = max(footprint.kinds.items(), key=lambda item: item[1])
    return kind_words(kind), most / footprint.peak_bytes if footprint.peak_bytes else 0.0


def kind_words(kind: str) -> str:
    return kind.replace("_", " ")


def observed(session: Session) -> list[str]:
    """Returns the batch size and the device on which a memory session was measured."""
    if not session.footprints:
        return []
    footprint = session.footprints[0]
    return [f"batch of {footprint.batch_size}" if footprint.batch_size else "", footprint.device]


class MemoryOwner(NamedTuple):
    """A group of similar modules, or a line, and its part of the peak."""

    name: str
    about: str  # "6 x Linear", or the text of the line
    kinds: Counter[str]


def module_holders(footprint: Footprint) -> list[MemoryOwner]:
    """Returns the modules, largest first, without those that hold almost nothing."""
    return _worth([MemoryOwner(*group) for group in grouped(footprint.modules)], footprint)


def line_holders(footprint: Footprint, cwd: str) -> list[MemoryOwner]:
    return _worth([_line(line, cwd) for line in footprint.lines], footprint)


def _line(line: LineBytes, cwd: str) -> MemoryOwner:
    return MemoryOwner(where(line.site, cwd), line.site.text, Counter(line.kinds))


def _worth(holders: list[MemoryOwner], footprint: Footprint) -> list[MemoryOwner]:
    return [holder for holder in holders if holder.kinds.total() >= _LEAST_SHARE * footprint.peak_bytes]


def grouped(modules: list[ModuleBytes]) -> list[tuple[str, str, Counter[str]]]:
    """Groups repeated modules: blocks.0.up to blocks.5.up become blocks.*.up."""
    sums: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    paths: Counter[tuple[str, str]] = Counter()
    for module in modules:
        key = (re.sub(r"(?<![^.])\d+(?![^.])", "*", module.path), module.class_name)
        sums[key].update(module.kinds)
        paths[key] += 1
    ranked = sorted(sums, key=lambda key: -sums[key].total())
    return [
        (path or "(the model)", f"{paths[path, name]} x {name}" if paths[path, name] > 1 else name, sums[path, name])
        for path, name in ranked
    ]


def about(remedy: Remedy) -> str:
    return f"{remedy.what} · {remedy.numerics}; {remedy.price}"


def batch_sizes(made: Forecast) -> list[int]:
    """Returns the observed batch sizes, and twice and four times the script's own batch size."""
    own = max(made.observed)
    return sorted({*made.observed, 2 * own, 4 * own})


def batch_sentence(made: Forecast, num_samples: int | None = None) -> str:
    """Returns the forecast in words: "32: 83 MB; 64: 150 MB; 128: 290 MB; largest that fits in 23 GB: 10,400"."""
    own = max(made.observed)
    sizes = "; ".join(f"{size}: {in_bytes(made.peak_bytes(size))}" for size in (own, 2 * own, 4 * own))
    largest = made.largest_batch()
    fits = f"; largest that fits in {in_bytes(made.capacity_bytes)}: {largest:,}" if largest else ""
    return f"{sizes}{fits}{beyond_all(largest, num_samples)}{doubt(made)}"


def beyond_all(largest: int, num_samples: int | None) -> str:
    """Returns a remark if the largest batch exceeds the training data, else ""."""
    return f", more than all {num_samples:,} samples" if num_samples and largest > num_samples else ""


def samples_of(session: Session) -> int | None:
    """Returns the number of samples in the training data, or None if it is not known."""
    loader = training_loader(session)
    return loader.num_samples if loader is not None else None


def doubt(made: Forecast) -> str:
    error = made.error or 0.0
    return f" (the estimate is off by {in_percent(error)})" if error > _DOUBTFUL else ""


def largest_batch(session: Session) -> int:
    """Returns the largest batch that fits, or 0 if it is not known."""
    made = forecast(session.footprints)
    return made.largest_batch() if made is not None else 0


def growth_sentence(session: Session) -> str:
    """Returns what memory a step leaves behind and what keeps that memory alive, or "" if nothing grows."""
    growth = session.footprints[0].growth if session.footprints else None
    sums = [leak for leak in session.leaks if leak.is_sum]
    if growth is None or has_stopped(session.memory) is not None:
        return "; ".join(_keeper(leak, session.cwd) for leak in sums)  # memory that has stopped growing was a cache
    if growth.num_bytes < _LEAST_GROWTH and not session.leaks:
        return ""
    left = f"{in_bytes(growth.num_bytes)} behind{_made_at(growth, session.cwd)}"
    if not session.leaks and not was_followed(session.memory):  # one step may also leave prefetched batches behind
        return f"the observed step left {left}; other steps were not observed"
    return "; ".join([f"every step leaves {left}", *(_keeper(leak, session.cwd) for leak in session.leaks)])


def cached_sentence(session: Session) -> str:
    """Returns a sentence about memory that the observed step left behind and later steps did not, or ""."""
    growth, stopped = session.footprints[0].growth if session.footprints else None, has_stopped(session.memory)
    if growth is None or stopped is None:
        return ""
    left = f"the observed step left {in_bytes(growth.num_bytes)} behind{_made_at(growth, session.cwd)}"
    return f"{left}; the growth stopped after step {stopped}, so this is a cache"


def _made_at(growth: Growth, cwd: str) -> str:
    return f", made at {where(growth.site, cwd)}" if growth.site is not None else ""


def _keeper(leak: Leak, cwd: str) -> str:
    at = f" at {where(leak.site, cwd)}" if leak.site else ""
    if leak.is_sum:
        return f"{leak.name} adds up {plural(leak.num_tensors, 'step')} with their graphs{at}"
    graphs = " with their graphs" if leak.has_graph else ""
    return f"{leak.name} keeps {plural(leak.num_tensors, 'tensor')}{graphs}{at}"


def allocator_sentence(footprint: Footprint) -> str:
    """Returns what the caching allocator reserved, or "" on a device that has none, such as the CPU."""
    split, reserved = footprint.split_bytes, footprint.reserved_bytes
    if not reserved:
        return ""
    remedy = (
        "; the memory is fragmented, and expandable_segments avoids that" if split >= _FRAGMENTED * reserved else ""
    )
    return f"{in_bytes(reserved)} reserved, {in_bytes(split)} of it free in pieces of split blocks{remedy}"


_MOST_REMAINS = 3  # largest number of modules, and of lines
_LEAST_REMAINS = 0.02  # the least share of the bytes in tensors that is listed


def remains_lines(remains: Remains, cwd: str) -> Iterator[str]:
    """Yields lines about what filled the memory when it ran out. They are printed below the script's own traceback."""
    total = sum(remains.kinds.values())
    if not total:
        return
    at = f" at {where(remains.site, cwd)}" if remains.site is not None else ""
    inside = f" in {remains.module}" if remains.module else ""
    ranked = sorted(remains.kinds.items(), key=lambda item: -item[1])
    kinds = ", ".join(f"{kind_words(kind)} {in_bytes(size)}" for kind, size in ranked if size >= _LEAST_REMAINS * total)
    yield f"memory ran out{at}{inside}, with {in_bytes(total)} in tensors: {kinds}"
    modules = [
        f"{path} ({about}) {in_bytes(held.total())}"
        for path, about, held in grouped(remains.modules)[:_MOST_REMAINS]
        if held.total() >= _LEAST_REMAINS * total
    ]
    if modules:
        yield f"modules that hold the most: {', '.join(modules)}"
    lines = [(line, sum(line.kinds.values())) for line in remains.lines[:_MOST_REMAINS]]
    worth = [f"{where(line.site, cwd)} {in_bytes(size)}" for line, size in lines if size >= _LEAST_REMAINS * total]
    if worth:
        yield f"lines whose module calls hold the most activations: {', '.join(worth)}"
