"""What came of the race of loaders: rates, paired ratios, which goals are met, and the page that says so."""

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
# Megabytes: nine passes over 0.6 of floats; before, 0.4 of kept pixels are read (the mean crop), 0.2 resized ones
# written and read twice (half are flipped), and bytes of 0.15 written or read five times. A copy reads and writes 0.6.
BYTES_MOVED = (9 * 0.6 + 0.4 + 3 * 0.2 + 5 * 0.15) / (2 * 0.6)


@dataclass(frozen=True)
class Goal:
    what: str
    ratio: Interval | None  # None: one of the two was not there
    least: float

    @property
    def is_met(self) -> bool | None:
        return None if self.ratio is None else self.ratio.middle >= self.least

    def __str__(self) -> str:
        if self.ratio is None:
            return f"- {self.what}: not judged, one of the two is left out."
        verdict = "met" if self.ratio.low >= self.least else "met, but the interval reaches below it"
        verdict = verdict if self.is_met else "not met"
        return f"- {self.what}: {_times(self.ratio)}, asked for {self.least:g}x: **{verdict}**."


class Standings:
    def __init__(self, photographs: list[Contestant], ready: list[Contestant]) -> None:
        self.photographs, self.ready = photographs, ready
        self.riding = {c.spec.label: c for c in (*photographs, *ready) if c.rates and not c.failure}
        self.left_out = [c for c in (*photographs, *ready) if c.spec.label not in self.riding]
        self.best_plain = self._best(c for c in photographs if c.spec.peer == "dataloader")
        self.best_peer = self._best(c for c in photographs if c.spec.peer != "ours" and c.spec.has_same_pixels)

    def _best(self, among: Iterable[Contestant]) -> str:
        labels = [c.spec.label for c in among if c.spec.label in self.riding]
        return max(labels, key=self.rate, default="")

    def rate(self, label: str) -> float:
        return median(self.riding[label].rates)

    def ratio(self, label: str, other: str) -> Interval | None:
        """Of neighbours in time: lap i of one over lap i of the other. The first epoch may be over before all laps."""
        if label not in self.riding or other not in self.riding:
            return None
        pairs = zip(self.riding[label].rates, self.riding[other].rates, strict=False)
        return paired_interval([a / b for a, b in pairs])

    def goals(self) -> list[Goal]:
        return [
            Goal(
                f"Later epochs against the best that gives the same pixels ({self.best_peer})",
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
                "Hand-over of ready batches against DataLoader's",
                self.ratio(OURS_HANDOVER, PLAIN_HANDOVER),
                LEAST_HANDOVER,
            ),
        ]


def render(pace_model: Standings, head: str, material: str, options: argparse.Namespace, remark: str = "") -> str:
    parts = [
        f"# Photographs out of loaders\n\n{head}",
        f"{material}. Read, decode, random-resized-crop 224, flip, to float, normalise, batches of 32; after each a "
        f"step of 5 ms of sleep. slipstream's recipe: `{options.recipe}`; "
        f"for ready tensors: `{options.handover_recipe}`.",
        _table(pace_model, pace_model.photographs, pace_model.best_plain),
        "Ready tensors: the samples are floats that lie in memory, no step; of every batch each page is touched once.",
        _table(pace_model, pace_model.ready, PLAIN_HANDOVER),
        "\n".join(map(str, pace_model.goals())),
        _far(pace_model),
        _left_out(pace_model),
        _said(pace_model),
        f"Medians of {options.rounds} rounds, ratios of neighbours in time with a 95% interval (bootstrap). A round is "
        "a lap of every contestant, of 8 batches and at least 0.6 s, in an order drawn anew; who has no turn stands "
        f"still with all its processes. {_chosen(options)}"
        "Converting data, starting workers and compiling are not timed. Same pixels: the very functions of the plain "
        "script decode and crop; others decode or resize otherwise, and mean and std say by how much. All files of all "
        "contestants are held in memory, as they would be where nobody waits for a turn (warm_files.py). "
        f"{remark}{_first_timings(pace_model)}",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _first_timings(pace_model: Standings) -> str:
    if FIRST not in pace_model.riding:
        return ""
    return f"Of the first epoch there are {len(pace_model.riding[FIRST].rates)} laps: then it was over."


def _table(pace_model: Standings, contestants: list[Contestant], base: str) -> str:
    rows = [c for c in contestants if c.spec.label in pace_model.riding]
    if not rows:
        return ""
    lines = [f"| | images per second | against {base} | pixels | mean, std |", "|---|---:|---:|---|---:|"]
    for contestant in rows:
        label, facts = contestant.spec.label, contestant.facts
        ratio = pace_model.ratio(label, base)
        pixels = "same" if contestant.spec.has_same_pixels else "other"
        lines.append(
            f"| {label}{facts.get('version', '')} | {pace_model.rate(label):,.0f} | {_times(ratio) if ratio else ''} "
            f"| {pixels}, {facts['shape']} | {facts['mean']:.2f}, {facts['std']:.2f} |"
        )
    return "\n".join(lines)


def _times(ratio: Interval) -> str:
    return f"{ratio.middle:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})"


def _far(pace_model: Standings) -> str:
    """From what the memory allows."""
    shares = [(label, pace_model.ratio(label, COPYING)) for label in (OURS_HANDOVER, PLAIN_HANDOVER)]
    said = [f"{label} reach {ratio.middle:.0%}" for label, ratio in shares if ratio is not None]
    if not said:
        return ""
    if LATER in pace_model.riding:
        said.append(f"photographs in later epochs {pace_model.rate(LATER) / pace_model.rate(COPYING):.1%}")
    rate = pace_model.rate(COPYING)
    return (
        f"Of what copying the floats in memory allows ({rate:,.0f} images/s), {', '.join(said)}. An image of later "
        f"epochs moves about {BYTES_MOVED:.0f} times the bytes of that copy: its floats are read or written nine times "
        f"by the script's own lines (float, three operations in place, stack), its bytes a dozen times before. Memory "
        f"alone would so allow each core about {rate / BYTES_MOVED:,.0f} images/s."
    )


def _chosen(options: argparse.Namespace) -> str:
    """Who took part, where not all did."""
    wanted = [word for word in options.only if word]
    return f"Only contestants named like {', '.join(wanted)} took part. " if wanted else ""


def _left_out(pace_model: Standings) -> str:
    lines = [f"- {c.spec.label}: {c.failure}" for c in pace_model.left_out]
    return "Left out:\n\n" + "\n".join(lines) if lines else ""


def _said(pace_model: Standings) -> str:
    """By the techniques: what they changed, and what they would not."""
    lines = []
    for label in (FIRST, LATER, OURS_HANDOVER):
        facts = pace_model.riding[label].facts if label in pace_model.riding else {}
        said = [*facts.get("changes", []), *(f"declined: {why}" for why in facts.get("declined", []))]
        lines += [f"- {label.partition(',')[0]}: {_OWN_FOLDER.sub('its folder', what)}" for what in said]
    return "What the techniques said:\n\n" + "\n".join(dict.fromkeys(lines)) if lines else ""
