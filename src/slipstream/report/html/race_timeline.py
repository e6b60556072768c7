"""The blocks of every rider in the order of the races, lane below lane on one clock: what the machine did to all of
them alike stands in one column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from markupsafe import Markup

from slipstream.diagnose.statistics import median
from slipstream.records import Lap, RiderRecord, Tuning
from slipstream.report.html import svg
from slipstream.report.html.chart import Chart, Key, plain_table
from slipstream.report.html.svg import Scale, element, percent, roof, ticks_of_time
from slipstream.report.text.numbers import in_ms, in_seconds, plural
from slipstream.report.text.tune import BASE, NOISE

IDENT = "blocks"
TITLE = "Block by block, in the order of the races"
HEIGHT = 52.0
MOST_LANES = 24


class Lane(msgspec.Struct, frozen=True):
    """One recipe; its riders, if it was started several times, one after the other."""

    name: str
    role: str
    laps: list[Lap]

    @property
    def step_ms(self) -> float:
        counted = [lap.step_s for lap in self.laps if not lap.is_disturbed] or [lap.step_s for lap in self.laps]
        return 1e3 * median(counted)


def lap_chart(tuning: Tuning) -> Chart | None:
    lanes = lanes_of(tuning.riders)
    if sum(len(lane.laps) for lane in lanes) < 2:
        return None
    laps = [lap for lane in lanes for lap in lane.laps]
    start_ns = min(lap.time_ns for lap in laps)
    seconds = Scale(0.0, (max(lap.time_ns for lap in laps) - start_ns) / 1e9 or 1.0)
    base_ms = next((lane.step_ms for lane in lanes if lane.role == "base"), None)
    ms = Scale(0.0, _roof(laps, base_ms))
    sentence = f"{plural(len(laps), 'block')} of {plural(len(lanes), 'recipe')} over {in_seconds(seconds.high)}."
    return Chart(
        IDENT,
        TITLE,
        _caption(ms, laps, len(lanes_of(tuning.riders, most=len(tuning.riders))) - len(lanes)),
        sentence,
        svg.rows(IDENT, TITLE, sentence, _draw(lanes, start_ns, seconds, ms, base_ms)),
        [Key("mark-base", "base"), Key("mark-kept", "candidate"), Key("mark-noise", "twin that does nothing")],
        plain_table(TITLE, ("recipe", "round", "at", "steps", "a step"), "lrrrr", _rows(lanes, start_ns)),
    )


def _roof(laps: Sequence[Lap], base_ms: float | None) -> float:
    """A recipe that is three times slower must not flatten everybody's noise."""
    top = roof([1e3 * lap.step_s for lap in laps])
    return min(top, 2.0 * base_ms) if base_ms else top


def lanes_of(riders: Sequence[RiderRecord], most: int = MOST_LANES) -> list[Lane]:
    """The base, its twin, then candidates as they came. Riders whose time was never taken (round -1) have no lane."""
    found: dict[tuple[str, str], list[Lap]] = {}
    for record in riders:
        laps = [lap for lap in record.laps if lap.round >= 0 and lap.num_steps and lap.seconds > 0]
        if laps and record.entrant.role in ("base", "twin", "candidate"):
            found.setdefault((record.entrant.role, _name(record)), []).extend(laps)
    lanes = [Lane(name, role, sorted(laps, key=lambda lap: lap.time_ns)) for (role, name), laps in found.items()]
    rank = {"base": 0, "twin": 1, "candidate": 2}
    return sorted(lanes, key=lambda lane: (rank[lane.role], lane.laps[0].time_ns))[:most]


def _name(record: RiderRecord) -> str:
    return {"base": BASE, "twin": NOISE}.get(record.entrant.role, str(record.entrant.recipe))


def _draw(lanes: Sequence[Lane], start_ns: int, seconds: Scale, ms: Scale, base_ms: float | None) -> Iterator[Markup]:
    for lane in lanes:
        shapes = [element("line", class_="grid", x1="0", x2="100%", y1=HEIGHT - 0.5, y2=HEIGHT - 0.5)]
        if base_ms is not None:
            at = _height(base_ms, ms)
            shapes.append(element("line", class_="base-line", x1="0", x2="100%", y1=at, y2=at))
        style = {"base": "mark-base", "twin": "mark-noise"}.get(lane.role, "mark-kept")
        shapes += [_mark(lap, lane.name, style, start_ns, seconds, ms) for lap in lane.laps]
        yield svg.row(lane.name, f"{in_ms(lane.step_ms)} a step", HEIGHT, shapes)
    yield svg.ruler([(seconds.share(at), in_seconds(at) if at else "0") for at in ticks_of_time(seconds.high)])


def _height(step_ms: float, ms: Scale) -> float:
    """From the top, with room for half a mark."""
    return 4.0 + (HEIGHT - 4.0) * (1.0 - ms.share(step_ms))


def _mark(lap: Lap, name: str, style: str, start_ns: int, seconds: Scale, ms: Scale) -> Markup:
    step_ms = 1e3 * lap.step_s
    note = ", does not count: something was compiled anew" if lap.is_disturbed else ""
    tip = f"{name}, round {lap.round}: {plural(lap.num_steps, 'step')} of {in_ms(step_ms)}{note}"
    share = 0.006 + 0.988 * seconds.share((lap.time_ns - start_ns) / 1e9)
    style = f"{style} disturbed" if lap.is_disturbed else style
    return element("circle", class_=style, cx=percent(share), cy=_height(step_ms, ms), r="3.2", data_tip=tip)


def _caption(ms: Scale, laps: Sequence[Lap], num_left_out: int) -> str:
    parts = [f"Every lane goes from 0 to {in_ms(ms.high)} a step; the dashed line is the base's median."]
    longest_ms = 1e3 * max(lap.step_s for lap in laps)
    if longest_ms > ms.high:
        parts.append(f"Longer ones lie on the upper edge; the longest took {in_ms(longest_ms)} a step.")
    if num_left_out > 0:
        parts.append(f"{plural(num_left_out, 'more recipe')} not shown.")
    return " ".join(parts)


def _rows(lanes: Sequence[Lane], start_ns: int) -> list[list[str]]:
    return [
        [
            lane.name,
            str(lap.round),
            in_seconds((lap.time_ns - start_ns) / 1e9),
            str(lap.num_steps),
            in_ms(1e3 * lap.step_s),
        ]
        for lane in lanes
        for lap in lane.laps
    ]
