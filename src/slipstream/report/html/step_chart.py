"""Every step of the check in order, stacked by phase, so that the noise and its source are visible."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from slipstream.diagnose.statistics import fmean
from slipstream.numbers import as_count, in_ms, plural
from slipstream.records import PHASES, Session, Step
from slipstream.report.html.chart import Chart, Key, plain_table
from slipstream.report.html.svg import TOP, WIDE, Frame, Scale, axes, element, percent, picture, roof, stretched

IDENT = "steps"
TITLE = "Every step, in order"
MOST_COLUMNS = 400
HEIGHT = 190.0
KIND_WORDS = {
    "start": "start",
    "warmup": "warm-up",
    "watch": "as it is",
    "kept": "stored batches",
    "drain": "loader drained",
    "dissect": "under the profiler",
}


class Column(msgspec.Struct, frozen=True):
    """Consecutive steps of one block, averaged."""

    first: int
    last: int
    kind: str
    phases: dict[str, float]

    @property
    def ms(self) -> float:
        return sum(self.phases.values())


def step_chart(session: Session) -> Chart | None:
    columns = columns_of(session)
    if len(columns) < 2:
        return None
    first, last = columns[0].first, columns[-1].last
    shown = [column.ms for column in columns if column.kind != "dissect"] or [column.ms for column in columns]
    frame = Frame(Scale(first, last + 1), Scale(0.0, roof(shown)), HEIGHT)
    grid = axes(frame, as_count, in_ms)
    layer = stretched(frame, *_bands(columns, frame), *(_area(columns, phase, frame) for phase in PHASES))
    sentence = f"{plural(len(session.steps), 'step')}; {_longest(columns)}."
    return Chart(
        IDENT,
        TITLE,
        _caption(columns, frame),
        sentence,
        picture(IDENT, TITLE, sentence, frame.full_height, grid, layer, *_hits(columns, frame), style="with-axis"),
        _keys(columns),
        plain_table("Every step, in order", ("steps", "kind", "time", *PHASES), "ll" + "r" * 7, _rows(columns)),
    )


def columns_of(session: Session) -> list[Column]:
    """Returns single steps, or groups of consecutive steps if there are many. A group never spans two blocks."""
    kinds = {block.index: block.kind for block in session.blocks}
    size = math.ceil(len(session.steps) / MOST_COLUMNS) or 1
    columns: list[Column] = []
    group: list[Step] = []
    for step in session.steps:
        if group and (len(group) == size or step.block != group[0].block):
            columns.append(_column(group, kinds.get(group[0].block, "watch")))
            group = []
        group.append(step)
    return [*columns, _column(group, kinds.get(group[0].block, "watch"))] if group else columns


def _column(steps: Sequence[Step], kind: str) -> Column:
    phases: dict[str, float] = {phase: fmean([step.phases.get(phase, 0.0) for step in steps]) for phase in PHASES}
    return Column(steps[0].index, steps[-1].index, kind, phases)


def _area(columns: Sequence[Column], phase: str, frame: Frame) -> Markup:
    """Returns all columns of a phase as one path, because a few thousand rectangles would be slow to draw."""
    below = PHASES[: PHASES.index(phase)]
    path = []
    for column in columns:
        ms = column.phases.get(phase, 0.0)
        base = sum(column.phases.get(each, 0.0) for each in below)
        if ms <= 0 or base >= frame.y.high:
            continue
        left, right = (WIDE * frame.left(edge) for edge in (column.first, column.last + 1))
        path.append(f"M{left:.1f} {frame.top(base):.1f}V{frame.top(base + ms):.1f}H{right:.1f}V{frame.top(base):.1f}z")
    return element("path", class_=f"phase-{phase}", d="".join(path)) if path else Markup("")


def _bands(columns: Sequence[Column], frame: Frame) -> list[Markup]:
    """Returns shades behind the steps that did not run the unchanged script."""
    return [
        element(
            "rect",
            class_="apart",
            x=WIDE * frame.left(column.first),
            y=TOP,
            width=WIDE * (frame.left(column.last + 1) - frame.left(column.first)),
            height=frame.height,
        )
        for column in columns
        if column.kind != "watch"
    ]


def _hits(columns: Sequence[Column], frame: Frame) -> list[Markup]:
    """Returns the hover areas. Each covers one column, from top to bottom."""
    found = []
    for column in columns:
        left = frame.left(column.first)
        width = percent(frame.left(column.last + 1) - left)
        found.append(
            element(
                "rect", class_="hit", x=percent(left), y=TOP, width=width, height=frame.height, data_tip=_tip(column)
            )
        )
    return found


def _tip(column: Column) -> str:
    phases = ", ".join(f"{name} {in_ms(ms)}" for name, ms in column.phases.items() if ms >= 0.01 * column.ms)
    return f"{_name(column)} ({KIND_WORDS.get(column.kind, column.kind)}): {in_ms(column.ms)}; {phases}"


def _name(column: Column) -> str:
    if column.first == column.last:
        return f"step {column.first:,}"
    return f"steps {column.first:,} to {column.last:,}"


def _keys(columns: Sequence[Column]) -> list[Key]:
    seen = [phase for phase in PHASES if any(column.phases.get(phase, 0.0) > 0 for column in columns)]
    keys = [Key(f"phase-{phase}", phase) for phase in seen]
    return [*keys, Key("apart", "not the unchanged script")] if any(c.kind != "watch" for c in columns) else keys


def _caption(columns: Sequence[Column], frame: Frame) -> str:
    size = max(column.last - column.first + 1 for column in columns)
    apart = [KIND_WORDS.get(kind, kind) for kind in dict.fromkeys(c.kind for c in columns) if kind != "watch"]
    parts = [f"Steps on a grey background did not run the unchanged script: {', '.join(apart)}."] if apart else []
    parts += [f"Each column is the mean of up to {size:,} steps."] if size > 1 else []
    if max(column.ms for column in columns) > frame.y.high:
        parts.append(f"Columns are cut at {in_ms(frame.y.high)}; {_longest(columns)}.")
    return " ".join(parts)


def _longest(columns: Sequence[Column]) -> str:
    longest = max(columns, key=lambda column: column.ms)
    return f"the longest, {_name(longest)}, took {in_ms(longest.ms)}"


def _rows(columns: Sequence[Column]) -> list[list[str]]:
    return [
        [
            f"{column.first:,}" if column.first == column.last else f"{column.first:,}–{column.last:,}",
            KIND_WORDS.get(column.kind, column.kind),
            in_ms(column.ms),
            *(in_ms(column.phases.get(phase, 0.0)) for phase in PHASES),
        ]
        for column in columns
    ]
