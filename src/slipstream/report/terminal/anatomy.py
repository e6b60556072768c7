"""The model's operators of one step on a terminal: their classes, the most expensive modules, the top operators."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from slipstream.numbers import as_count, in_flops, in_ms, in_percent
from slipstream.records import Anatomy, Summary
from slipstream.report.terminal import layout
from slipstream.report.terminal.console import ConsoleStyle, styled
from slipstream.report.terminal.layout import MARGIN, folded
from slipstream.report.text.locations import where

NUM_OPERATORS = 5
# If the profiled step is longer than the usual step by this factor, its FLOP count is not used for a rate. The profiler
# alone adds less than this to a step whose operators are long enough for a rate.
MUCH_LONGER = 1.5
CLASS_WORDS = {"contraction": "contractions", "normalisation": "normalisations", "elementwise": "element-wise"}


def anatomy_lines(anatomy: Anatomy, summary: Summary, cwd: str, ink: ConsoleStyle) -> Iterator[Text]:
    """Yields the shares of the operator classes, remarks, and the top operators."""
    total_ms = sum(anatomy.classes_ms.values())
    if total_ms <= 0:
        return
    parts = [achieved(anatomy, summary)] if anatomy.flops else []
    parts += [f"{CLASS_WORDS.get(name, name)} {in_percent(ms / total_ms)}" for name, ms in _largest(anatomy.classes_ms)]
    yield from folded("model", parts, ink)
    calls = f"{as_count(anatomy.num_operators)} operator calls"
    yield from folded("", [calls, *_modules(anatomy), *remarks(anatomy, cwd)], ink)
    rows = _operator_rows(anatomy, ink)
    if rows:
        rows[0] += styled("  self / total", "dim")
    yield from rows


def achieved(anatomy: Anatomy, summary: Summary) -> str:
    """Returns the FLOP of a step and, if it is known, the achieved FLOP/s over the observed steps.

    The profiler slows the profiled step down, so its time is not used. If the profiled step was much longer than the
    usual step, as with texts of different lengths, its FLOP count does not apply to other steps, and there is no rate.
    """
    phases = summary.device_phases or summary.phases
    compute_ms = phases.get("forward", 0.0) + phases.get("backward", 0.0)
    is_typical = bool(summary.device_phases) or sum(anatomy.classes_ms.values()) <= MUCH_LONGER * compute_ms
    has_rate = compute_ms > 0 and is_typical
    rate = f" at {in_flops(anatomy.flops / compute_ms * 1000)}FLOP/s" if has_rate else ""
    return f"{in_flops(anatomy.flops)}FLOP{rate}"


def _largest(classes_ms: dict[str, float]) -> list[tuple[str, float]]:
    total_ms = sum(classes_ms.values())
    return sorted(((name, ms) for name, ms in classes_ms.items() if ms > 0.03 * total_ms), key=lambda item: -item[1])


def _modules(anatomy: Anatomy) -> Iterator[str]:
    """Yields the three modules whose own work takes longest. The work of a module's children does not count."""
    total_ms = sum(module.forward_ms + module.backward_ms for module in anatomy.modules)
    dearest = sorted(anatomy.modules, key=lambda module: -(module.forward_ms + module.backward_ms))
    for module in dearest[:3] if total_ms > 0 else []:
        share = in_percent((module.forward_ms + module.backward_ms) / total_ms)
        yield f"{module.path or 'the model itself'} ({module.class_name}) {share}"


def remarks(anatomy: Anatomy, cwd: str) -> Iterator[str]:
    """Yields remarks about padding and about attention that the model computes by hand."""
    if anatomy.padding_share:
        yield f"{in_percent(anatomy.padding_share)} of the tokens are padding"
    if anatomy.attentions:
        place = where(anatomy.attentions[0].site, cwd) or anatomy.attentions[0].path
        share = sum(attention.share for attention in anatomy.attentions)
        yield f"attention by hand at {place}, {in_percent(share)} of the forward pass"


def _operator_rows(anatomy: Anatomy, ink: ConsoleStyle) -> list[Text]:
    """Returns a row of self and total times for each of the top operators. The column of the device appears only if one
    of these operators ran on the device.
    """
    operators = anatomy.operators[:NUM_OPERATORS]
    on_device = any(operator.total_device_ms > 0 for operator in operators)
    rows: list[list[layout.Cell]] = []
    for operator in operators:
        row: list[layout.Cell] = [ink.clip(operator.name, max(ink.width - 66, 24)), f"{as_count(operator.count)} x"]
        row += _times("CPU", operator.self_cpu_ms, operator.total_cpu_ms, ink)
        row += _times("device", operator.self_device_ms, operator.total_device_ms, ink) if on_device else []
        rows.append(row)
    return layout.rows(rows, "lr" + "r" * (2 if on_device else 1), ink, indent=MARGIN) if rows else []


def _times(processor: str, self_ms: float, total_ms: float, ink: ConsoleStyle) -> list[layout.Cell]:
    return [ink.text(in_ms(self_ms)) + ink.text(f" / {in_ms(total_ms):>7} {processor}", "dim")]
