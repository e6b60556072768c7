"""The table that people share, as rows of text: the base, what was tried singly, what was kept together, the ceiling.
Every renderer of a tuning draws these rows; none of them computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from slipstream.records import Numerics, RiderRecord, Speed, Tuning, Verdict
from slipstream.report.quantity import as_count, as_ratio, between_ratios, in_bytes

HEADINGS: Final = (
    *("technique", "batch", "memory", "step ms", "samples/s", "relative to base", "numerics", "verdict"),
)
BASE: Final = "as it is"
NOISE: Final = "nothing (A/A)"
CEILING: Final = "ceiling: no waiting"
WORDS: Final = {"not_applicable": "not applicable"}


class Row(msgspec.Struct, frozen=True):
    """Cells in the order of HEADINGS; empty where there is nothing to say."""

    name: str
    batch: str = ""
    memory: str = ""
    step: str = ""
    rate: str = ""
    relative: str = ""
    numerics: str = ""
    verdict: str = ""
    kind: str = "single"  # base, noise, single, cumulative, total, ceiling

    @property
    def cells(self) -> tuple[str, ...]:
        return (
            *(self.name, self.batch, self.memory, self.step, self.rate, self.relative, self.numerics, self.verdict),
        )


def table_rows(tuning: Tuning) -> list[Row]:
    """First the base, last the ceiling. What does not apply has no row: it was never on the track."""
    return [
        _base(tuning),
        *_noise(tuning),
        *(_tried(verdict, single_name(verdict)) for verdict in tried(tuning)),
        *_together(tuning),
        *_ceiling(tuning),
    ]


def single_name(verdict: Verdict) -> str:
    """ "+": raced on top of what was kept before it."""
    return f"+ {verdict.choice}" if len(verdict.recipe.choices) > 1 else str(verdict.choice)


def tried(tuning: Tuning) -> list[Verdict]:
    """Singly against the base, in the order of the races."""
    return [v for v in tuning.verdicts if v.kind == "single" and v.decision != "not_applicable"]


def _base(tuning: Tuning) -> Row:
    return Row(
        BASE,
        _count(tuning.base_batch_size),
        _bytes(tuning.base_peak_bytes),
        in_digits(tuning.base_step_ms),
        _rate(tuning.base_samples_per_s),
        "1.00x",
        kind="base",
    )


def _noise(tuning: Tuning) -> Iterator[Row]:
    """The twin: how far two equal riders were apart."""
    if tuning.noise is not None:
        twins = [each for each in tuning.riders if each.entrant.role == "twin" and len(each.entrant.recipe.choices) < 2]
        memory = _bytes(_peak_bytes(twins))
        yield Row(NOISE, _count(tuning.base_batch_size), memory, relative=relative(tuning.noise), kind="noise")


def _together(tuning: Tuning) -> Iterator[Row]:
    """Winners on top of each other, then the recipe as a whole where it was raced once more."""
    for verdict in tuning.verdicts:
        if verdict.kind == "cumulative":
            yield _tried(verdict, f"+ {verdict.choice}")
    whole = [verdict for verdict in tuning.verdicts if verdict.kind == "total"]
    if whole:
        yield _tried(whole[-1], "all that was kept")
    elif tuning.total is not None and len(tuning.recipe.choices) > 1:
        step_ms = tuning.base_step_ms / tuning.total.ratio
        rate = tuning.base_samples_per_s * tuning.total.ratio
        memory = _bytes(_peak_bytes([each for each in tuning.riders if each.entrant.recipe == tuning.recipe]))
        cells = (memory, in_digits(step_ms), _rate(rate), relative(tuning.total))
        yield Row("all that was kept", _count(tuning.base_batch_size), *cells, verdict="kept", kind="total")


def _peak_bytes(riders: Sequence[RiderRecord]) -> int | None:
    """Of whichever had most; on the device where there is one."""
    return max((each.device_peak_bytes or each.peak_bytes for each in riders), default=0) or None


def _tried(verdict: Verdict, name: str) -> Row:
    return Row(
        name,
        _count(verdict.batch_size),
        _bytes(verdict.peak_bytes),
        in_digits(verdict.step_ms) if verdict.step_ms is not None else "",
        _rate(verdict.samples_per_s),
        relative(verdict.speed),
        numerics_word(verdict.numerics),
        WORDS.get(verdict.decision, verdict.decision),
        verdict.kind,
    )


def _ceiling(tuning: Tuning) -> Iterator[Row]:
    """The best case for overlapping input and compute as the script has them; cheaper compute may go past it."""
    if tuning.ceiling_ms:
        gain = tuning.base_step_ms / tuning.ceiling_ms
        rate = _rate(tuning.base_samples_per_s * gain)
        yield Row(CEILING, "", "", in_digits(tuning.ceiling_ms), rate, as_ratio(gain), kind="ceiling")


def relative(speed: Speed | None) -> str:
    """The ratio and its 95% interval; where there were too few rounds for one, the ratio alone."""
    if speed is not None and not speed.is_bounded:
        return f"~{as_ratio(speed.ratio)}"
    return f"{as_ratio(speed.ratio)} {between_ratios(speed.low, speed.high)}" if speed else ""


def numerics_word(numerics: Numerics | None) -> str:
    """The class, where it was found to hold."""
    if numerics is None:
        return ""
    return {True: numerics.claimed, False: "unsound", None: "not seen"}[numerics.is_sound]


def in_digits(ms: float) -> str:
    """Milliseconds without their unit, which stands in the heading: three digits, or all before the point."""
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 1 else f"{ms:.2f}"


def _count(number: int | None) -> str:
    return f"{number:,}" if number else ""


def _bytes(num_bytes: int | None) -> str:
    return in_bytes(num_bytes) if num_bytes else ""


def _rate(samples_per_s: float | None) -> str:
    return as_count(samples_per_s) if samples_per_s else ""
