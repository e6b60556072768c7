"""The step by phase, and the ceilings on the same scale."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from slipstream.diagnose.steps.undisturbed import has_headline
from slipstream.numbers import in_ms, in_percent, plural
from slipstream.records import Session, Summary
from slipstream.report.html import svg
from slipstream.report.html.chart import Chart, Key, plain_table
from slipstream.report.text.check import verdict
from slipstream.report.text.step import (
    LONGEST,
    few_steps,
    idle_words,
    is_longest,
    known_ceilings,
    step_figure,
    why_no_ceilings,
)

IDENT = "phases"
TITLE = "By phase, with ceilings"


def phase_chart(session: Session, summary: Summary) -> Chart:
    device, known = summary.device_phases or {}, known_ceilings(summary.ceilings)
    host = summary.host_phases or summary.phases
    scale = max([summary.step_ms, sum(device.values()), *(ms for _, ms, _ in known), 1e-9])
    figure, basis = step_figure(summary)
    value = f"{figure}  ({basis})"
    shown = [_stacked("on the host" if device else "the step", value, host, scale)]
    if device:
        shown.append(_stacked("on the device", f"{in_ms(sum(device.values()))}{idle_words(summary)}", device, scale))
    shown += [_ceiling(words, ms, phase, summary, scale) for words, ms, phase in known]
    return Chart(
        IDENT,
        TITLE,
        _caption(session, summary, bool(known)),
        verdict(session),
        svg.rows(IDENT, TITLE, verdict(session), shown),
        _keys(host),
        plain_table("The step by phase", ("phase", "time", "share"), "lrr", _rows(summary, device)),
    )


def _stacked(name: str, value: str, phases: Mapping[str, float], scale: float) -> Markup:
    return svg.row(name, value, svg.BAR, [svg.stacked(phases, scale)], "strong")


def _ceiling(words: str, ms: float, phase: str, summary: Summary, scale: float) -> Markup:
    is_best = is_longest(ms, summary.ceilings)
    name = f"{words} ({LONGEST})" if is_best else words
    shape = svg.block(0.0, ms / scale, svg.THIN, f"phase-{phase}", f"{name}: {in_ms(ms)}")
    return svg.row(name, in_ms(ms), svg.THIN, [svg.backend(svg.THIN), shape], "" if is_best else "dim")


def _caption(session: Session, summary: Summary, has_ceilings: bool) -> str:
    if has_headline(summary):
        basis = f"The median of {plural(summary.num_steps, 'undisturbed step')} with its 95% interval."
    else:
        basis = f"The range of {few_steps(summary)}. There are too few undisturbed steps for a median."
    if not has_ceilings:
        return f"{basis} Ceilings: {why_no_ceilings(session.command, summary)}".rstrip(".") + "."
    return (
        f"{basis} A ceiling is the step if one resource were free. The longest ceiling is the step if nothing waited."
    )


def _keys(phases: Mapping[str, float]) -> list[Key]:
    total_ms = sum(phases.values()) or 1.0
    return [
        Key(f"phase-{name}", name, f"{in_ms(ms)} {in_percent(ms / total_ms)}") for name, ms in phases.items() if ms > 0
    ]


def _rows(summary: Summary, device: Mapping[str, float]) -> list[list[str]]:
    rows = _listed(summary.host_phases or summary.phases, "")
    rows += _listed(device, " (device)")
    return rows + [[words, in_ms(ms), ""] for words, ms, _ in known_ceilings(summary.ceilings)]


def _listed(phases: Mapping[str, float], suffix: str) -> list[list[str]]:
    total_ms = sum(phases.values()) or 1.0
    return [[f"{name}{suffix}", in_ms(ms), in_percent(ms / total_ms)] for name, ms in phases.items()]
