"""The step time from the original script to the tuned script, technique by technique, with intervals.

The table of the tuning shows the same step times. The step time with techniques is the base's step time divided by a
ratio that was measured in a race.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from slipstream.numbers import between_ms, in_ms
from slipstream.records import Recipe, Session, Speed, Tuning
from slipstream.report.html import svg
from slipstream.report.html.chart import Chart, plain_table
from slipstream.report.html.svg import element, percent
from slipstream.report.text.tune import BASE, CEILING, ceiling_remark, gain, relative, step_with

IDENT = "waterfall"
TITLE = "From the original step to the tuned one"


class Rung(msgspec.Struct, frozen=True):
    """A bar of the chart. `before_ms` is where the bar above ends, or None for a bar that starts at zero."""

    name: str
    ms: float
    before_ms: float | None = None
    speed: Speed | None = None
    kind: str = "added"  # base, added, total, ceiling
    remark: str = ""

    @property
    def interval_ms(self) -> tuple[float, float] | None:
        """The interval of the step, for a base of fixed length."""
        if self.speed is None or not self.speed.is_bounded:
            return None
        base_ms = self.ms * self.speed.ratio
        return base_ms / self.speed.high, base_ms / self.speed.low


def waterfall_chart(session: Session) -> Chart | None:
    tuning = session.tuning
    if tuning is None or not tuning.recipe.choices or tuning.total is None:
        return None
    rungs = rungs_of(tuning)
    scale = max([rung.ms for rung in rungs] + [rung.interval_ms[1] for rung in rungs if rung.interval_ms])
    scale = min(scale, 1.6 * tuning.base_step_ms)
    rows = [
        [rung.name, in_ms(rung.ms), _interval(rung), relative(rung.speed) if rung.speed else rung.remark]
        for rung in rungs
    ]
    return Chart(
        IDENT,
        TITLE,
        "Each bar is the step with all techniques named so far, raced against the unchanged script. Whiskers are 95% "
        "intervals. The recipe is proved by the last race, in new processes.",
        gain(session),
        svg.rows(IDENT, TITLE, gain(session), [_row(rung, scale) for rung in rungs]),
        [],
        plain_table(TITLE, ("with", "step", "95% interval", "relative to base"), "lrrl", rows),
    )


def rungs_of(tuning: Tuning) -> list[Rung]:
    """Returns the base, the parts of the recipe, the proof of the whole recipe, and the ceiling.

    A technique without a race of its own is combined with the next technique.
    """
    rungs = [Rung(BASE, tuning.base_step_ms, kind="base")]
    names: list[str] = []
    choices = tuning.recipe.choices
    for number, choice in enumerate(choices, start=1):
        names.append(str(choice))
        speed = _speed_of(tuning, choices[:number])
        if speed is not None:
            ms = step_with(tuning, speed)
            rungs.append(Rung("+ " + " + ".join(names), ms, rungs[-1].ms, speed))
            names = []
    assert tuning.total is not None
    rungs.append(Rung("all that was kept", step_with(tuning, tuning.total), None, tuning.total, "total"))
    if tuning.ceiling_ms:
        rungs.append(Rung(CEILING, tuning.ceiling_ms, kind="ceiling", remark=ceiling_remark(tuning)))
    return rungs


def _speed_of(tuning: Tuning, choices: Sequence[object]) -> Speed | None:
    """Returns the speed from the last race of exactly these techniques, because later races have more data."""
    found = [
        verdict.speed
        for verdict in tuning.verdicts
        if verdict.kind in ("single", "cumulative")
        and verdict.own_ratio is None
        and verdict.speed
        and _is_same(verdict.recipe, choices)
    ]
    return found[-1] if found else None


def _is_same(recipe: Recipe, choices: Sequence[object]) -> bool:
    return set(recipe.choices) == set(choices)


def _interval(rung: Rung) -> str:
    return between_ms(*rung.interval_ms) if rung.interval_ms else ""


def _row(rung: Rung, scale: float) -> Markup:
    style = "strong" if rung.kind in ("base", "total") else ""
    return svg.row(rung.name, _value(rung), svg.BAR, _shapes(rung, scale), style)


def _value(rung: Rung) -> str:
    if rung.before_ms is not None:
        change = rung.ms - rung.before_ms
        return f"{'−' if change <= 0 else '+'}{in_ms(abs(change))}  →  {in_ms(rung.ms)}"
    return "  ".join(filter(None, (in_ms(rung.ms), relative(rung.speed), rung.remark)))


def _shapes(rung: Rung, scale: float) -> list[Markup]:
    tip = f"{rung.name}: {in_ms(rung.ms)} a step" + (f", {relative(rung.speed)}" if rung.speed else "")
    before = rung.before_ms if rung.before_ms is not None else 0.0
    start, end = sorted((before, rung.ms))
    parts = [svg.backend()]
    if rung.before_ms is not None:
        parts.append(svg.block(0.0, rung.ms / scale, svg.BAR, "rung-rest", tip))
    style = "rung-worse" if rung.before_ms is not None and rung.ms > rung.before_ms else f"rung-{rung.kind}"
    parts.append(svg.block(start / scale, (end - start) / scale, svg.BAR, style, tip))
    return parts + _whisker(rung.interval_ms, svg.BAR / 2, scale)


def _whisker(interval: tuple[float, float] | None, y: float, scale: float) -> list[Markup]:
    """Returns an interval as a line with ends, clipped at the edge of the picture."""
    if interval is None:
        return []
    low, high = (min(value / scale, 1.0) for value in interval)
    ends = [
        element("line", class_="whisker", x1=percent(at), x2=percent(at), y1=y - 5.0, y2=y + 5.0) for at in (low, high)
    ]
    return [element("line", class_="whisker", x1=percent(low), x2=percent(high), y1=y, y2=y), *ends]
