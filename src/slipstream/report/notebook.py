"""A session as a small piece of HTML for a notebook.

The HTML has no scripts and no external files, works in light and dark themes, and escapes all text from the user's
code. Each phase has the same colour in the notebook and in the HTML report. The colours are Okabe and Ito's, which
people with colour vision deficiency can distinguish. The terminal uses named colours of similar hues
(`report/terminal/console.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Final

from slipstream.diagnose.steps.undisturbed import has_headline
from slipstream.numbers import as_count, as_gain, in_ms, in_percent
from slipstream.records import Finding, Session, Summary
from slipstream.report.text.check import ending, script_of, training_time, verdict, warning, watched
from slipstream.report.text.locations import where
from slipstream.report.text.notes import all_notes
from slipstream.report.text.step import known_ceilings, step_figure
from slipstream.report.text.tune import (
    HEADINGS,
    Row,
    caveats,
    costs,
    gain,
    not_applicable,
    not_raced,
    raced,
    reasons,
    table_rows,
    worths,
    writable,
)

# Text takes the notebook's own colour, so that it works in light and dark themes. Greys are transparent.
STYLE = """
.slipstream{font:13px/1.5 system-ui,sans-serif;max-width:900px;margin:.5em 0}
.slipstream .dim{opacity:.65}.slipstream .verdict{font-size:15px;font-weight:600;margin:.2em 0 .6em}
.slipstream .bar{display:flex;height:18px;border-radius:3px;overflow:hidden;background:rgba(128,128,128,.2)}
.slipstream .bar span{display:block;height:100%}.slipstream .key{margin-right:1.2em;white-space:nowrap}
.slipstream .key i{display:inline-block;width:9px;height:9px;border-radius:2px;margin-right:.4em}
.slipstream .ceiling{height:4px;border-radius:2px;margin-top:.5em}
.slipstream ol{padding-left:1.6em;margin:.8em 0 0}.slipstream li{margin-bottom:.6em}
.slipstream code{font:12px ui-monospace,monospace;background:rgba(128,128,128,.15);padding:1px 4px;border-radius:3px}
.slipstream .gain{color:#2e9a45;font-weight:600;margin-right:.5em}
"""


def to_html(session: Session) -> str:
    parts = [
        f"<style>{STYLE}</style>",
        f'<div class="dim">slipstream {escape(session.command)} · {escape(script_of(session))} · '
        f"{escape(watched(session))} · {escape(ending(session))}</div>",
        f'<div class="verdict">{escape(verdict(session))}</div>',
    ]
    if sentence := warning(session):
        parts.append(f'<div class="verdict">{escape(sentence)}</div>')
    if session.summary is not None and session.summary.num_steps > 0:
        parts += [_step(session.summary), _rate(session, session.summary), _findings(session)]
    parts += [f'<div class="dim">{escape(note)}</div>' for note in all_notes(session)]
    return f'<div class="slipstream">{"".join(parts)}</div>'


def _step(summary: Summary) -> str:
    device = summary.device_phases or {}
    known = known_ceilings(summary.ceilings)
    scale = max([summary.step_ms, sum(device.values()), *(ms for _, ms, _ in known)]) or 1.0
    html = _stacked(summary.host_phases or summary.phases, scale) + (
        f'<div class="dim">device</div>{_stacked(device, scale)}' if device else ""
    )
    for words, ms, phase in known:
        style = f"width:{100 * ms / scale:.1f}%;background:{colour_of(phase)}"
        html += f'<div class="ceiling" style="{style}"></div><span class="dim">{in_ms(ms)} {words}</span>'
    return html


def _stacked(phases: Mapping[str, float], scale: float) -> str:
    total = sum(phases.values()) or 1.0
    shown = [(name, ms) for name, ms in phases.items() if ms > 0]
    spans = [f'<span style="width:{100 * ms / scale:.2f}%;background:{colour_of(name)}"></span>' for name, ms in shown]
    keys = [
        f'<span class="key"><i style="background:{colour_of(name)}"></i>{escape(name)} '
        f'<span class="dim">{in_ms(ms)} {escape(in_percent(ms / total))}</span></span>'
        for name, ms in shown
    ]
    return f'<div class="bar">{"".join(spans)}</div><div>{"".join(keys)}</div>'


def _rate(session: Session, summary: Summary) -> str:
    figure, basis = step_figure(summary)
    is_known = has_headline(summary)
    parts = [f"{figure} a step" if is_known else f"{figure} a step ({basis})"]
    parts += [f"{as_count(summary.samples_per_s)} samples/s"] if summary.samples_per_s > 0 and is_known else []
    parts += [ahead] if (ahead := training_time(session)) else []
    return f"<div>{escape(' · '.join(parts))}</div>"


def _findings(session: Session) -> str:
    if not session.findings:
        return ""
    return f"<ol>{''.join(_finding(finding, session.cwd) for finding in session.findings)}</ol>"


def _finding(finding: Finding, cwd: str) -> str:
    html = f'<span class="gain">{as_gain(finding.predicted_gain)}</span><b>{escape(finding.title)}</b> '
    html += f'<span class="dim">{escape(finding.cause)}</span><br>{escape(finding.evidence)}'
    if finding.site:
        html += f"<br>{escape(where(finding.site, cwd))} <code>{escape(finding.site.text)}</code>"
    html += f"<br>→ <code>{escape(finding.change)}</code>" if finding.change else ""
    return f"<li>{html}" + (f"<br>{escape(finding.advice)}" if finding.advice else "") + "</li>"


PHASE_COLOURS: Final = {
    "input": "#e69f00",
    "transfer": "#cc79a7",
    "forward": "#0072b2",
    "backward": "#56b4e9",
    "optimizer": "#009e73",
    "other": "#8d8d8d",
}


def colour_of(phase: str) -> str:
    return PHASE_COLOURS.get(phase, PHASE_COLOURS["other"])


_STYLE = """
.slipstream table{border-collapse:collapse;margin:.4em 0}
.slipstream th,.slipstream td{padding:2px 10px;text-align:left;white-space:nowrap;background:none}
.slipstream th{opacity:.65;font-weight:400}.slipstream td.number,.slipstream th.number{text-align:right}
.slipstream .kept{color:#2e9a45}.slipstream .failed{color:#c0392b}.slipstream .unsure{color:#b7860b}
"""
_NUMBERS = {"batch", "memory", "step ms", "samples/s"}


def tuning_to_html(session: Session) -> str:
    tuning = session.tuning
    assert tuning is not None
    rows = table_rows(tuning)
    columns = [index for index in range(len(HEADINGS)) if any(row.cells[index] for row in rows)]
    heads = "".join(f"<th{_class(index)}>{HEADINGS[index]}</th>" for index in columns)
    parts = [
        f"<style>{STYLE}{_STYLE}</style>",
        f'<div class="dim">slipstream tune · {escape(script_of(session))} · {escape(raced(session))}</div>',
        f'<div class="verdict">{escape(gain(session))}</div>',
        *(f"<div>{escape(sentence)}</div>" for sentence in caveats(session)),
        f"<table><tr>{heads}</tr>{''.join(_row(row, columns) for row in rows)}</table>",
        *_listed([*worths(tuning), *writable(tuning), *costs(tuning), *reasons(tuning), *not_raced(tuning)]),
        *(
            f'<div class="dim">not applicable: {escape(names)}: {escape(reason)}</div>'
            for names, reason in not_applicable(tuning)
        ),
        *(f'<div class="dim">{escape(note)}</div>' for note in all_notes(session)),
    ]
    return f'<div class="slipstream">{"".join(parts)}</div>'


def _row(row: Row, columns: list[int]) -> str:
    cells = "".join(f"<td{_class(index)}>{escape(row.cells[index])}</td>" for index in columns)
    return f'<tr class="{escape(row.verdict.replace(" ", "_"))}">{cells}</tr>'


def _class(column: int) -> str:
    return ' class="number"' if HEADINGS[column] in _NUMBERS else ""


def _listed(entries: Iterable[tuple[str, str]]) -> Iterable[str]:
    return (f'<div><code>{escape(name)}</code> <span class="dim">{escape(why)}</span></div>' for name, why in entries)
