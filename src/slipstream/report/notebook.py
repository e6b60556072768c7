"""The session as a small piece of HTML for a notebook: no scripts, no outside files, light and dark, everything from
the user's code escaped."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from slipstream.records import Finding, Session, Summary
from slipstream.report.pace import known_ceilings
from slipstream.report.palette import colour_of
from slipstream.report.place import where
from slipstream.report.quantity import as_count, as_gain, in_ms, in_percent
from slipstream.report.verdict import ending, outlook, script_of, verdict, warning, watched

# Text takes the notebook's own colour, so that light and dark themes both work; greys are see-through.
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
    parts += [f'<div class="dim">{escape(note)}</div>' for note in session.notes]
    return f'<div class="slipstream">{"".join(parts)}</div>'


def _step(summary: Summary) -> str:
    device = summary.device_phases or {}
    known = known_ceilings(summary.ceilings)
    scale = max([summary.step_ms, sum(device.values()), *(ms for _, ms, _ in known)]) or 1.0
    html = _stacked(summary.phases, scale) + (
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
    parts = [f"{in_ms(summary.step_ms)} a step"]
    parts += [f"{as_count(summary.samples_per_s)} samples/s"] if summary.samples_per_s > 0 else []
    parts += [ahead] if (ahead := outlook(session)) else []
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
