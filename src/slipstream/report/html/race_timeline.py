"""The blocks of every trial in the order of the races, with one row per recipe and a common time axis.

A disturbance of the machine affects all trials alike, so all rows show the disturbance at the same place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from markupsafe import Markup

from slipstream.diagnose.statistics import median
from slipstream.numbers import in_ms, in_seconds, plural
from slipstream.records import BlockTiming, TrialRecord, Tuning
from slipstream.report.html import svg
from slipstream.report.html.chart import Chart, Key, plain_table
from slipstream.report.html.svg import Scale, element, percent, roof, ticks_of_time
from slipstream.report.text.tune import BASE, NOISE

IDENT = "blocks"
TITLE = "Block by block, in the order of the races"
HEIGHT = 52.0
MOST_PROCESSES = 24


class RaceRow(msgspec.Struct, frozen=True):
    """The blocks of one recipe, from all of its trials."""

    name: str
    role: str
    timings: list[BlockTiming]

    @property
    def step_ms(self) -> float:
        counted = [timing.step_s for timing in self.timings if not timing.is_disturbed] or [
            timing.step_s for timing in self.timings
        ]
        return 1e3 * median(counted)


def timing_chart(tuning: Tuning) -> Chart | None:
    processes = processes_of(tuning.trials)
    if sum(len(process.timings) for process in processes) < 2:
        return None
    timings = [timing for process in processes for timing in process.timings]
    start_ns = min(timing.time_ns for timing in timings)
    seconds = Scale(0.0, (max(timing.time_ns for timing in timings) - start_ns) / 1e9 or 1.0)
    base_ms = tuning.base_step_ms
    ms = Scale(0.0, _roof(timings, base_ms))
    sentence = f"{plural(len(timings), 'block')} of {plural(len(processes), 'recipe')} over {in_seconds(seconds.high)}."
    return Chart(
        IDENT,
        TITLE,
        _caption(ms, timings, len(processes_of(tuning.trials, most=len(tuning.trials))) - len(processes)),
        sentence,
        svg.rows(IDENT, TITLE, sentence, _draw(processes, start_ns, seconds, ms, base_ms)),
        [Key("mark-base", "base"), Key("mark-kept", "candidate"), Key("mark-noise", "A/A control")],
        plain_table(TITLE, ("recipe", "round", "at", "steps", "a step"), "lrrrr", _rows(processes, start_ns)),
    )


def _roof(timings: Sequence[BlockTiming], base_ms: float) -> float:
    """Returns the top of the axis. It is at most twice the base step, so that a very slow recipe does not flatten the
    other rows."""
    top = roof([1e3 * timing.step_s for timing in timings])
    return min(top, 2.0 * base_ms) if base_ms else top


def processes_of(trials: Sequence[TrialRecord], most: int = MOST_PROCESSES) -> list[RaceRow]:
    """Returns the rows: the base, the A/A control, then the candidates in order. Blocks that were not timed (round -1)
    are left out."""
    found: dict[tuple[str, str], list[BlockTiming]] = {}
    for record in trials:
        timings = [timing for timing in record.timings if timing.round >= 0 and timing.num_steps and timing.seconds > 0]
        if timings and record.spec.role in ("base", "twin", "candidate"):
            found.setdefault((record.spec.role, _name(record)), []).extend(timings)
    processes = [
        RaceRow(name, role, sorted(timings, key=lambda timing: timing.time_ns))
        for (role, name), timings in found.items()
    ]
    rank = {"base": 0, "twin": 1, "candidate": 2}
    return sorted(processes, key=lambda process: (rank[process.role], process.timings[0].time_ns))[:most]


def _name(record: TrialRecord) -> str:
    return {"base": BASE, "twin": NOISE}.get(record.spec.role, str(record.spec.recipe))


def _draw(
    processes: Sequence[RaceRow], start_ns: int, seconds: Scale, ms: Scale, base_ms: float | None
) -> Iterator[Markup]:
    for process in processes:
        shapes = [element("line", class_="grid", x1="0", x2="100%", y1=HEIGHT - 0.5, y2=HEIGHT - 0.5)]
        if base_ms is not None:
            at = _height(base_ms, ms)
            shapes.append(element("line", class_="base-line", x1="0", x2="100%", y1=at, y2=at))
        style = {"base": "mark-base", "twin": "mark-noise"}.get(process.role, "mark-kept")
        shapes += [_mark(timing, process.name, style, start_ns, seconds, ms) for timing in process.timings]
        yield svg.row(process.name, f"median {in_ms(process.step_ms)}", HEIGHT, shapes)
    yield svg.ruler([(seconds.share(at), in_seconds(at) if at else "0") for at in ticks_of_time(seconds.high)])


def _height(step_ms: float, ms: Scale) -> float:
    """Returns the distance from the top, with space for half a mark."""
    return 4.0 + (HEIGHT - 4.0) * (1.0 - ms.share(step_ms))


def _mark(timing: BlockTiming, name: str, style: str, start_ns: int, seconds: Scale, ms: Scale) -> Markup:
    step_ms = 1e3 * timing.step_s
    note = ", not counted: something was compiled again" if timing.is_disturbed else ""
    tip = f"{name}, round {timing.round}: {plural(timing.num_steps, 'step')} of {in_ms(step_ms)}{note}"
    share = 0.006 + 0.988 * seconds.share((timing.time_ns - start_ns) / 1e9)
    style = f"{style} disturbed" if timing.is_disturbed else style
    return element("circle", class_=style, cx=percent(share), cy=_height(step_ms, ms), r="3.2", data_tip=tip)


def _caption(ms: Scale, timings: Sequence[BlockTiming], num_left_out: int) -> str:
    parts = [
        f"Every row goes from 0 to {in_ms(ms.high)} a step. The dashed line is the base step. Beside each row is the "
        "median of its blocks. The medians of two rows may come from different rounds."
    ]
    longest_ms = 1e3 * max(timing.step_s for timing in timings)
    if longest_ms > ms.high:
        parts.append(f"Longer blocks are drawn at the upper edge. The longest block took {in_ms(longest_ms)} a step.")
    if num_left_out > 0:
        parts.append(f"{plural(num_left_out, 'more recipe')} {'is' if num_left_out == 1 else 'are'} not shown.")
    return " ".join(parts)


def _rows(processes: Sequence[RaceRow], start_ns: int) -> list[list[str]]:
    return [
        [
            process.name,
            str(timing.round),
            in_seconds((timing.time_ns - start_ns) / 1e9),
            str(timing.num_steps),
            in_ms(1e3 * timing.step_s),
        ]
        for process in processes
        for timing in process.timings
    ]
