"""The memory of a step in sentences, and the rows that every renderer of it shows. Measures nothing."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import NamedTuple

from slipstream.diagnose.memory_growth import has_stopped, was_followed
from slipstream.diagnose.selection import training_loader
from slipstream.memory.forecast import Forecast, forecast
from slipstream.memory.remedies import Remedy
from slipstream.records import Footprint, Growth, Leak, LineBytes, ModuleBytes, Session
from slipstream.report.text.numbers import in_bytes, in_percent, plural, where

MEMORY = "memory"  # the command
_LEAST_SHARE = 0.005  # of the peak, to have a row
_LEAST_GROWTH = 1024
_DOUBTFUL = 0.05
_SPLINTERED = 0.1  # of what is reserved


def summarise(session: Session) -> str:
    """The peak, and what fills it, in one sentence."""
    if not session.footprints:
        return "No step was observed: that takes about six steps of a training."
    footprint = session.footprints[0]
    kind, share = largest_kind(footprint)
    return f"Peak {in_bytes(footprint.peak_bytes)} {reached(footprint, session.cwd)}; {in_percent(share)} of it {kind}."


def reached(footprint: Footprint, cwd: str) -> str:
    """ "in backward, reached by sum at net.py:14"."""
    at = f" at {where(footprint.peak_site, cwd)}" if footprint.peak_site else ""
    operator = footprint.peak_operator.removeprefix("aten::")
    phase = "between the phases" if footprint.peak_phase == "other" else f"in {footprint.peak_phase}"
    return f"{phase}, reached by {operator}{at}" if operator else f"{phase}{at}"


def largest_kind(footprint: Footprint) -> tuple[str, float]:
    """Of the peak: which kind fills most of it, in words, and its share."""
    kind, most = max(footprint.kinds.items(), key=lambda item: item[1])
    return kind_words(kind), most / footprint.peak_bytes if footprint.peak_bytes else 0.0


def kind_words(kind: str) -> str:
    return kind.replace("_", " ")


def observed(session: Session) -> list[str]:
    """What a session of memory rests on."""
    if not session.footprints:
        return []
    footprint = session.footprints[0]
    return [f"batch of {footprint.batch_size}" if footprint.batch_size else "", footprint.device]


class MemoryOwner(NamedTuple):
    """Modules that are alike, as one, or a line, and what of the peak is theirs."""

    name: str
    about: str  # "6 x Linear"; the text of the line
    kinds: Counter[str]


def module_holders(footprint: Footprint) -> list[MemoryOwner]:
    """Most first; without those that hold next to nothing."""
    return _worth([MemoryOwner(*group) for group in grouped(footprint.modules)], footprint)


def line_holders(footprint: Footprint, cwd: str) -> list[MemoryOwner]:
    return _worth([_line(line, cwd) for line in footprint.lines], footprint)


def _line(line: LineBytes, cwd: str) -> MemoryOwner:
    return MemoryOwner(where(line.site, cwd), line.site.text, Counter(line.kinds))


def _worth(holders: list[MemoryOwner], footprint: Footprint) -> list[MemoryOwner]:
    return [holder for holder in holders if holder.kinds.total() >= _LEAST_SHARE * footprint.peak_bytes]


def grouped(modules: list[ModuleBytes]) -> list[tuple[str, str, Counter[str]]]:
    """Repeated modules as one: blocks.0.up to blocks.5.up are blocks.*.up."""
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
    """Those that were observed, then twice and four times the script's own."""
    own = max(made.observed)
    return sorted({*made.observed, 2 * own, 4 * own})


def batch_sentence(made: Forecast, num_samples: int | None = None) -> str:
    """ "32: 83 MB; 64: 150 MB; 128: 290 MB; largest that fits in 23 GB: 10,400"."""
    own = max(made.observed)
    sizes = "; ".join(f"{size}: {in_bytes(made.peak_bytes(size))}" for size in (own, 2 * own, 4 * own))
    largest = made.largest_batch()
    fits = f"; largest that fits in {in_bytes(made.capacity_bytes)}: {largest:,}" if largest else ""
    return f"{sizes}{fits}{beyond_all(largest, num_samples)}{doubt(made)}"


def beyond_all(largest: int, num_samples: int | None) -> str:
    """A batch cannot have more samples than there are."""
    return f", more than all {num_samples:,} samples" if num_samples and largest > num_samples else ""


def samples_of(session: Session) -> int | None:
    """In the data that the training goes through; None: not known."""
    loader = training_loader(session)
    return loader.num_samples if loader is not None else None


def doubt(made: Forecast) -> str:
    error = made.error or 0.0
    return f" (the rule missed an observed size by {in_percent(error)})" if error > _DOUBTFUL else ""


def largest_batch(session: Session) -> int:
    """That fits; 0: not known."""
    made = forecast(session.footprints)
    return made.largest_batch() if made is not None else 0


def growth_sentence(session: Session) -> str:
    """What a step leaves behind, and who keeps it; "" where nothing grows."""
    growth = session.footprints[0].growth if session.footprints else None
    sums = [leak for leak in session.leaks if leak.is_sum]
    if growth is None or has_stopped(session.memory) is not None:
        return "; ".join(_keeper(leak, session.cwd) for leak in sums)  # what has stopped growing was a cache
    if growth.num_bytes < _LEAST_GROWTH and not session.leaks:
        return ""
    left = f"{in_bytes(growth.num_bytes)} behind{_made_at(growth, session.cwd)}"
    if not session.leaks and not was_followed(session.memory):  # batches that lie ready come and go, too
        return f"the observed step left {left}; whether others do was not seen"
    return "; ".join([f"every step leaves {left}", *(_keeper(leak, session.cwd) for leak in session.leaks)])


def cached_sentence(session: Session) -> str:
    """What the observed step left behind, and later ones did not."""
    growth, stopped = session.footprints[0].growth if session.footprints else None, has_stopped(session.memory)
    if growth is None or stopped is None:
        return ""
    left = f"the observed step left {in_bytes(growth.num_bytes)} behind{_made_at(growth, session.cwd)}"
    return f"{left}; that stopped after step {stopped}: a cache"


def _made_at(growth: Growth, cwd: str) -> str:
    return f", made at {where(growth.site, cwd)}" if growth.site is not None else ""


def _keeper(leak: Leak, cwd: str) -> str:
    at = f" at {where(leak.site, cwd)}" if leak.site else ""
    if leak.is_sum:
        return f"{leak.name} adds up {plural(leak.num_tensors, 'step')} with their graphs{at}"
    graphs = " with their graphs" if leak.has_graph else ""
    return f"{leak.name} keeps {plural(leak.num_tensors, 'tensor')}{graphs}{at}"


def allocator_sentence(footprint: Footprint) -> str:
    """Only accelerators have one that keeps memory."""
    split, reserved = footprint.split_bytes, footprint.reserved_bytes
    if not reserved:
        return ""
    cure = ": splintered; expandable_segments lets segments grow instead" if split >= _SPLINTERED * reserved else ""
    return f"{in_bytes(reserved)} reserved, {in_bytes(split)} of it free in pieces of split blocks{cure}"
