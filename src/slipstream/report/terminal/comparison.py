"""The comparison of two sessions: as lines, as one line for a build server, and as JSON. The conclusions come from
`verify`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from rich.console import Console
from rich.text import Text

from slipstream.numbers import as_ratio, between_ratios, in_ms, plural
from slipstream.records import SessionComparison
from slipstream.report.terminal.console import ConsoleStyle, styled
from slipstream.report.terminal.layout import MARGIN, heading, rows

CAVEAT = (
    "The two sessions were measured at different times. A change of the machine alone can cause such a difference. The"
    " interval covers only the noise inside the two sessions. To prove a gain, use slipstream tune, which runs both in"
    " turns."
)


def render_comparison(comparison: SessionComparison, console: Console) -> None:
    ink = ConsoleStyle(console)
    for line in _lines(comparison, ink):
        console.print(line, no_wrap=True, overflow="ignore", crop=False, highlight=False, soft_wrap=True)


def to_json(comparison: SessionComparison) -> bytes:
    return msgspec.json.format(msgspec.json.encode(comparison), indent=2)


def sentence(comparison: SessionComparison) -> str:
    """Returns a sentence that says how the step changed."""
    if comparison.ratio is None or comparison.before_ms is None or comparison.after_ms is None:
        return "There is no step to compare."
    steps = f"{in_ms(comparison.before_ms)} before, {in_ms(comparison.after_ms)} after"
    match comparison.outcome:
        case "faster":
            faster = as_ratio(comparison.ratio)
            return f"The step is {faster} as fast, beyond the noise of both: {steps}{_where(comparison)}."
        case "slower":
            slower = as_ratio(1 / comparison.ratio)
            return f"The step takes {slower} as long, beyond the noise of both: {steps}{_where(comparison)}."
        case "unsure":
            return f"It is not known whether the step changed: {_in_words(doubts(comparison))}. The step: {steps}."
        case _:
            return f"No difference beyond the noise: {steps}."


def doubts(comparison: SessionComparison) -> Iterator[str]:
    """Yields the reasons why nothing can be concluded, each as a clause."""
    for few in comparison.few:
        if few.num_groups == 0:
            yield f"other programs used the cores during all steps of {few.session}"
        elif few.group_size > 1:
            groups = plural(few.num_groups, "group")
            yield f"{few.session} has only {groups} of {few.group_size} undisturbed steps"
        else:
            yield f"{few.session} has only {plural(few.num_groups, 'undisturbed step')}"
    for busy in comparison.busy:
        if busy.when == "during":
            yield f"the machine was busy during {busy.session}"
        elif busy.when == "more":
            used = f"{busy.load:.2f} of {plural(busy.num_cores, 'core')}"
            yield f"other programs used {used} more during {busy.session}, which may explain the difference"
        else:
            load = f"a load of {busy.load:.1f} on {plural(busy.num_cores, 'core')}"
            yield f"the machine was busy when {busy.session} began ({load})"


def _in_words(parts: Iterator[str]) -> str:
    return " and ".join(parts)


def _where(comparison: SessionComparison) -> str:
    """Returns the phase that accounts for most of the change, as the end of a sentence."""
    assert comparison.before_ms is not None and comparison.after_ms is not None
    way = 1 if comparison.after_ms > comparison.before_ms else -1
    told = [one for one in comparison.phases if one.is_beyond_noise and (one.after_ms - one.before_ms) * way > 0]
    if not told:
        return ""
    most = max(told, key=lambda one: (one.after_ms - one.before_ms) * way)
    share = (most.after_ms - most.before_ms) / (comparison.after_ms - comparison.before_ms)
    return f", {'mostly in ' if share > 0.5 else 'most of it in '}{most.phase}"


def gate_line(comparison: SessionComparison, least: float, *, has_failed: bool) -> str:
    """Returns the line for `--fail-under`, with everything that decides whether the check fails."""
    if comparison.ratio is None or comparison.low is None or comparison.high is None:
        return f"FAILED: {' '.join(comparison.notes) or 'there is no step to compare.'}"
    steps = f"{in_ms(comparison.after_ms or 0.0)} a step, baseline {in_ms(comparison.before_ms or 0.0)}"
    speed = f"{as_ratio(comparison.ratio)} as fast ({between_ratios(comparison.low, comparison.high)})"
    machine = "" if comparison.is_same_machine else "; the baseline was measured on another machine"
    if comparison.outcome == "unsure":
        doubt, seen = _in_words(doubts(comparison)), as_ratio(comparison.ratio)
        return (
            f"unsure, so the check does not fail: {doubt}. Seen: {seen} as fast, at least {least:g} required: "
            f"{steps}{machine}"
        )
    if has_failed:
        return f"FAILED: {speed}, less than {least:g}: {steps}{machine}"
    doubt = "; below it, but within the noise" if comparison.ratio < least else ""
    return f"passed: {speed}, at least {least:g} required{doubt}: {steps}{machine}"


def _lines(comparison: SessionComparison, ink: ConsoleStyle) -> Iterator[Text]:
    yield heading("before", ink.clip(comparison.before, ink.width - MARGIN - 1), ink)
    yield heading("after", ink.clip(comparison.after, ink.width - MARGIN - 1), ink)
    yield from ink.wrap(sentence(comparison), 1, "bold")
    if comparison.ratio is not None and comparison.low is not None and comparison.high is not None:
        interval = f", 95% interval {between_ratios(comparison.low, comparison.high)}"
        shown = "" if comparison.outcome == "unsure" else interval
        yield heading("ratio", f"{as_ratio(comparison.ratio)}{shown}; above 1 is faster", ink)
        yield Text()
        yield from _phase_lines(comparison, ink)
    yield Text()
    yield from _difference_lines(comparison, ink)
    notes = list(comparison.notes)
    if not comparison.is_same_machine:
        notes.insert(0, "The two sessions were measured on different machines.")
    if comparison.ratio is not None:
        notes.append(CAVEAT)
    if notes:
        yield Text()
    for number, note in enumerate(notes):
        lines = ink.wrap(note, MARGIN, "dim")
        lines[0] = heading("notes" if not number else "", "", ink) + lines[0][MARGIN:]
        yield from lines


def _phase_lines(comparison: SessionComparison, ink: ConsoleStyle) -> Iterator[Text]:
    table: list[list[Text | str]] = [[styled(word, "bold") for word in ("phase", "before", "after", "difference", "")]]
    for one in comparison.phases:
        mark = "beyond the noise" if one.is_beyond_noise and comparison.outcome != "unsure" else ""
        change = _signed(one.after_ms - one.before_ms)
        cells = (one.phase, in_ms(one.before_ms), in_ms(one.after_ms), change, mark)
        table.append([ink.text(cell) for cell in cells])
    yield from rows(table, "lrrrl", ink, indent=1)


def _signed(ms: float) -> str:
    return "0 ms" if abs(ms) < 0.0005 else f"{'+' if ms > 0 else '-'}{in_ms(abs(ms))}"


def _difference_lines(comparison: SessionComparison, ink: ConsoleStyle) -> Iterator[Text]:
    if not comparison.differences:
        yield heading("changed", "nothing that the sessions recorded", ink)
    word = "changed"
    arrow = " → " if ink.has_unicode else " > "
    for one in comparison.differences:
        for number, line in enumerate(ink.wrap(f"{one.what}: {one.before}{arrow}{one.after}", MARGIN)):
            yield (heading(word, "", ink) + line[MARGIN:]) if not number else line
            word = ""
