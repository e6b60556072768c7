"""Renders the results of loaders.py: rates, paired ratios, goals, and the page."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from intervals import Interval, paired_interval
from turns import Contestant

NO_WORKERS = "DataLoader as the script has it, no workers"
FIRST, LATER = "slipstream, first epoch", "slipstream, later epochs"
FFCV_RAW = "FFCV, raw pixels"
PLAIN_HANDOVER = "ready tensors by DataLoader, 2 workers"
OURS_HANDOVER = "ready tensors by slipstream"
COPYING = "the floats copied in memory"
_OWN_FOLDER = re.compile(r"\S*/loaders-[^\s,]*")
LEAST_LATER, LEAST_FIRST, LEAST_HANDOVER = 1.7, 1.1, 2.0
# The bytes that an image moves, divided by those of a copy. In megabytes per image: 0.6 of floats are read or written
# nine times. Before that, 0.4 of cached pixels are read (the mean crop). 0.2 of resized pixels are written and read,
# three passes in all (half of the images are flipped). 0.15 of bytes are written or read five times. A copy reads and
# writes 0.6.
BYTES_MOVED = (9 * 0.6 + 0.4 + 3 * 0.2 + 5 * 0.15) / (2 * 0.6)


@dataclass(frozen=True)
class Goal:
    what: str
    ratio: Interval | None  # None if one of the two contestants was left out
    least: float

    @property
    def is_met(self) -> bool | None:
        return None if self.ratio is None else self.ratio.middle >= self.least

    def __str__(self) -> str:
        if self.ratio is None:
            return f"- {self.what}: not judged, one of the two is left out."
        verdict = "met" if self.ratio.low >= self.least else "met, but the interval reaches below it"
        verdict = verdict if self.is_met else "not met"
        return f"- {self.what}: {_times(self.ratio)}, required {self.least:g}x: **{verdict}**."


class Standings:
    def __init__(self, photographs: list[Contestant], ready: list[Contestant]) -> None:
        self.photographs, self.ready = photographs, ready
        self.running = {c.spec.label: c for c in (*photographs, *ready) if c.rates and not c.failure}
        self.left_out = [c for c in (*photographs, *ready) if c.spec.label not in self.running]
        self.best_plain = self._best(c for c in photographs if c.spec.peer == "dataloader")
        self.best_peer = self._best(c for c in photographs if c.spec.peer != "ours" and c.spec.has_same_pixels)

    def _best(self, among: Iterable[Contestant]) -> str:
        labels = [c.spec.label for c in among if c.spec.label in self.running]
        return max(labels, key=self.rate, default="")

    def rate(self, label: str) -> float:
        return median(self.running[label].rates)

    def ratio(self, label: str, other: str) -> Interval | None:
        """The ratio of the rates of two contestants, in pairs of blocks that are close to each other in time.

        The first epoch may end before all blocks have run, so the lists may differ in length.
        """
        if label not in self.running or other not in self.running:
            return None
        pairs = zip(self.running[label].rates, self.running[other].rates, strict=False)
        return paired_interval([a / b for a, b in pairs])

    def goals(self) -> list[Goal]:
        return [
            Goal(
                f"Later epochs against the fastest loader that gives the same pixels ({self.best_peer})",
                self.ratio(LATER, self.best_peer),
                LEAST_LATER,
            ),
            Goal("Later epochs against FFCV's raw pixels", self.ratio(LATER, FFCV_RAW), 1.0),
            Goal(
                f"First epoch against the best plain loader ({self.best_plain})",
                self.ratio(FIRST, self.best_plain),
                LEAST_FIRST,
            ),
            Goal(
                "Transfer of ready batches against DataLoader",
                self.ratio(OURS_HANDOVER, PLAIN_HANDOVER),
                LEAST_HANDOVER,
            ),
        ]


def render(standings: Standings, head: str, material: str, options: argparse.Namespace, remark: str = "") -> str:
    parts = [
        f"# Photographs per second\n\n{head}",
        f"{material}. Read, decode, random-resized-crop 224, flip, to float, normalise, batches of 32. After each "
        f"batch, a step sleeps for 5 ms. The recipe of slipstream: `{options.recipe}`; "
        f"for ready tensors: `{options.handover_recipe}`.",
        _table(standings, standings.photographs, standings.best_plain),
        "Ready tensors: the samples are floats in memory. There is no step, but each page of every batch is read once.",
        _table(standings, standings.ready, PLAIN_HANDOVER),
        "\n".join(map(str, standings.goals())),
        _far(standings),
        _left_out(standings),
        _said(standings),
        f"Medians of {options.rounds} rounds, and ratios of neighbours in time with a 95% interval (bootstrap). In a "
        "round, every contestant runs a block of 8 batches and at least 0.6 s, in a random order, while all processes "
        f"of the others are stopped. {_chosen(options)}"
        "Converting data, starting workers and compiling are not timed. *Same* pixels: the functions of the plain "
        "script decode and crop. *Other* pixels: the loader decodes or resizes in another way, and mean and std show "
        "the difference. All files of all contestants are held in memory, as they would be without turns "
        "(warm_files.py). "
        f"{remark}{_first_timings(standings)}",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _first_timings(standings: Standings) -> str:
    if FIRST not in standings.running:
        return ""
    return f"The first epoch ended after {len(standings.running[FIRST].rates)} blocks."


def _table(standings: Standings, contestants: list[Contestant], base: str) -> str:
    rows = [c for c in contestants if c.spec.label in standings.running]
    if not rows:
        return ""
    lines = [f"| | images per second | against {base} | pixels | mean, std |", "|---|---:|---:|---|---:|"]
    for contestant in rows:
        label, facts = contestant.spec.label, contestant.facts
        ratio = standings.ratio(label, base)
        pixels = "same" if contestant.spec.has_same_pixels else "other"
        lines.append(
            f"| {label}{facts.get('version', '')} | {standings.rate(label):,.0f} | {_times(ratio) if ratio else ''} "
            f"| {pixels}, {facts['shape']} | {facts['mean']:.2f}, {facts['std']:.2f} |"
        )
    return "\n".join(lines)


def _times(ratio: Interval) -> str:
    return f"{ratio.middle:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})"


def _far(standings: Standings) -> str:
    """A paragraph that compares the loaders with the rate that memory allows."""
    shares = [(label, standings.ratio(label, COPYING)) for label in (OURS_HANDOVER, PLAIN_HANDOVER)]
    said = [f"{label} reach {ratio.middle:.0%}" for label, ratio in shares if ratio is not None]
    if not said:
        return ""
    if LATER in standings.running:
        said.append(f"photographs in later epochs {standings.rate(LATER) / standings.rate(COPYING):.1%}")
    rate = standings.rate(COPYING)
    return (
        f"Relative to copying the floats in memory ({rate:,.0f} images/s), {', '.join(said)}. An image of later "
        f"epochs moves about {BYTES_MOVED:.0f} times the bytes of that copy: the script's own lines (float, three "
        "operations in place, stack) read or write its floats nine times, and its bytes a dozen times before that. "
        f"Memory alone would therefore allow each core about {rate / BYTES_MOVED:,.0f} images/s."
    )


def _chosen(options: argparse.Namespace) -> str:
    """A sentence about the selection of contestants; "" if all took part."""
    wanted = [word for word in options.only if word]
    return f"Only contestants whose name contains {' or '.join(wanted)} took part. " if wanted else ""


def _left_out(standings: Standings) -> str:
    lines = [f"- {c.spec.label}: {c.failure}" for c in standings.left_out]
    return "Left out:\n\n" + "\n".join(lines) if lines else ""


def _said(standings: Standings) -> str:
    """A list of what the techniques changed and what they declined."""
    lines = []
    for label in (FIRST, LATER, OURS_HANDOVER):
        facts = standings.running[label].facts if label in standings.running else {}
        said = [*facts.get("changes", []), *(f"declined: {why}" for why in facts.get("declined", []))]
        lines += [f"- {label.partition(',')[0]}: {_OWN_FOLDER.sub('its folder', what)}" for what in said]
    return "What the techniques reported:\n\n" + "\n".join(dict.fromkeys(lines)) if lines else ""
