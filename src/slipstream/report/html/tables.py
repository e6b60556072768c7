"""The tables of the page: operators of one profiled step, the result of a fit, and the verdicts of a tuning."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.numbers import as_count, in_flops, in_ms, in_percent
from slipstream.records import Anatomy, Fitting, ModuleShare, Operator, Summary, Tuning
from slipstream.report.html import svg
from slipstream.report.html.chart import Cell, Chart, Key, Table, Terms, plain_table
from slipstream.report.terminal.anatomy import CLASS_WORDS, achieved, remarks
from slipstream.report.text.fit import FIT_ALIGN, FIT_HEADINGS, fit_rows
from slipstream.report.text.tune import (
    HEADINGS,
    Row,
    costs,
    not_applicable,
    not_raced,
    reasons,
    table_rows,
    worths,
    writable,
)

IDENT = "operators"
TITLE = "The model's operators, by kind"
MOST_MODULES = 15
MOST_OPERATORS = 15


def class_chart(anatomy: Anatomy, summary: Summary, cwd: str) -> Chart | None:
    total_ms = sum(anatomy.classes_ms.values())
    if total_ms <= 0:
        return None
    shares = sorted(((name, ms) for name, ms in anatomy.classes_ms.items() if ms > 0), key=lambda item: -item[1])
    bar = svg.stacked(dict(shares), total_ms, "class")
    sentence = ", ".join(f"{CLASS_WORDS.get(name, name)} {in_percent(ms / total_ms)}" for name, ms in shares) + "."
    rows = [
        [CLASS_WORDS.get(name, name), in_ms(ms), in_percent(ms / total_ms), _flops(anatomy.classes_flops.get(name, 0))]
        for name, ms in shares
    ]
    return Chart(
        IDENT,
        TITLE,
        " · ".join(_facts(anatomy, summary, cwd)),
        sentence,
        svg.rows(IDENT, TITLE, sentence, [svg.row("", "", svg.BAR, [bar])]),
        [Key(f"class-{name}", CLASS_WORDS.get(name, name), in_percent(ms / total_ms)) for name, ms in shares],
        plain_table(TITLE, ("kind", "time", "share", "FLOP"), "lrrr", rows),
    )


def _facts(anatomy: Anatomy, summary: Summary, cwd: str) -> Iterator[str]:
    if anatomy.flops:
        yield f"{achieved(anatomy, summary)} in a step"
    yield f"{as_count(anatomy.num_operators)} operator calls"
    yield from remarks(anatomy, cwd)
    yield "the profiler slows the step down, so the shares are more reliable than the times"


def _flops(flops: int) -> str:
    return in_flops(flops).rstrip() if flops else ""


def module_table(anatomy: Anatomy) -> Table | None:
    """Returns the modules with their own work, the most expensive module first."""
    total_ms = sum(module.forward_ms + module.backward_ms for module in anatomy.modules)
    if total_ms <= 0:
        return None
    dearest = sorted(anatomy.modules, key=lambda module: -(module.forward_ms + module.backward_ms))
    return Table(
        _cut("Modules; the work of a module's children is not included", len(dearest), MOST_MODULES),
        ["module", "class", "share", "forward", "backward", "FLOP"],
        "llrrrr",
        [_module_row(module, total_ms) for module in dearest[:MOST_MODULES]],
    )


def _module_row(module: ModuleShare, total_ms: float) -> list[Cell]:
    share = (module.forward_ms + module.backward_ms) / total_ms
    flops = module.flops + module.backward_flops
    return [
        Cell(module.path or "the model itself", style="code"),
        Cell(module.class_name),
        Cell(in_percent(share), share),
        Cell(in_ms(module.forward_ms), module.forward_ms),
        Cell(in_ms(module.backward_ms), module.backward_ms),
        Cell(_flops(flops), float(flops)),
    ]


def operator_table(anatomy: Anatomy) -> Table | None:
    """Returns the most expensive operators. The columns of the device appear only if one of these operators ran on the
    device."""
    operators = anatomy.operators[:MOST_OPERATORS]
    if not operators:
        return None
    on_device = any(operator.total_device_ms > 0 for operator in operators)
    more = ["device self", "device total"] if on_device else []
    return Table(
        _cut("Operators, most expensive first", len(anatomy.operators), MOST_OPERATORS),
        ["operator", "calls", "CPU self", "CPU total", *more, "FLOP"],
        "lrrr" + "r" * (3 if on_device else 1),
        [_operator_row(operator, on_device) for operator in operators],
    )


def _operator_row(operator: Operator, on_device: bool) -> list[Cell]:
    times = [operator.self_cpu_ms, operator.total_cpu_ms]
    times += [operator.self_device_ms, operator.total_device_ms] if on_device else []
    return [
        Cell(operator.name, style="code"),
        Cell(as_count(operator.count), float(operator.count)),
        *(Cell(in_ms(ms), ms) for ms in times),
        Cell(_flops(operator.flops), float(operator.flops)),
    ]


def _cut(caption: str, number: int, most: int) -> str:
    return f"{caption}; the first {most} of {number:,} are shown" if number > most else caption


def fit_table(fitting: Fitting) -> Table:
    rows = fit_rows(fitting)
    columns = [index for index in range(len(FIT_HEADINGS)) if any(row.cells[index] for row in rows)]
    return Table(
        "Relative to base: samples per second divided by those of the unchanged script, with the 95% interval.",
        [FIT_HEADINGS[index] for index in columns],
        "".join(FIT_ALIGN[index] for index in columns),
        [[Cell(row.cells[index]) for index in columns] for row in rows],
        is_sortable=False,
    )


_NUMBERS = ("batch", "memory", "step ms", "samples/s", "own gain")


def tune_table(tuning: Tuning) -> Table:
    """Returns the table of a tuning, without empty columns. All renderers show the same rows."""
    rows = table_rows(tuning)
    columns = [index for index in range(len(HEADINGS)) if any(row.cells[index] for row in rows)]
    return Table(
        "Own gain: the speed with the technique divided by the speed of the recipe that it was raced on top of, as"
        " estimated by the selection. Relative to base: the base's step divided by this step, with the 95% interval.",
        [HEADINGS[index] for index in columns],
        "".join("r" if HEADINGS[index] in _NUMBERS else "l" for index in columns),
        [[_cell(row, index) for index in columns] for row in rows],
        row_styles=[f"row-{row.kind} is-{row.verdict.replace(' ', '-')}" for row in rows],
    )


def _cell(row: Row, column: int) -> Cell:
    text = row.cells[column]
    style = "code" if column == 0 and row.kind not in ("base", "total", "ceiling") else ""
    return Cell(text, row.orders[column], style)


def whys(tuning: Tuning) -> list[Terms]:
    """Returns the lists below the table, without empty lists."""
    lists = [
        Terms("The proof of the recipe", list(worths(tuning))),
        Terms("What can be written into the source", writable(tuning)),
        Terms("What the kept techniques cost once", list(costs(tuning))),
        Terms("Why other techniques were not kept", list(reasons(tuning))),
        Terms("No time was left for", not_raced(tuning)),
        Terms("Not applicable here", not_applicable(tuning), is_folded=True),
    ]
    return [each for each in lists if each.entries]
