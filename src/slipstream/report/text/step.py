"""The figures of a check's step and its ceilings. Every report takes them from here."""

from __future__ import annotations

from typing import Final

from slipstream.diagnose.steps.undisturbed import has_headline
from slipstream.numbers import between_ms, in_ms, plural
from slipstream.records import Ceilings, Summary

LONGEST: Final = "if nothing waited"
LEAST_IDLE: Final = 0.02  # share of a step


def step_figure(summary: Summary) -> tuple[str, str]:
    """Returns the median of the undisturbed steps and its 95% interval. With too few undisturbed steps, returns the
    range of the steps and their number."""
    interval = between_ms(summary.step_low_ms, summary.step_high_ms)
    if has_headline(summary):
        return in_ms(summary.step_ms), interval
    shortest, longest = in_ms(summary.step_low_ms), in_ms(summary.step_high_ms)
    return longest if shortest == longest else interval, few_steps(summary)


def few_steps(summary: Summary) -> str:
    """Returns the number of steps that is too small for a headline: "3 steps", "3 undisturbed steps" or "40 disturbed
    steps"."""
    if summary.num_undisturbed == 0:
        return plural(summary.num_steps, "disturbed step")
    return plural(summary.num_steps, "undisturbed step" if summary.num_disturbed else "step")


def idle_words(summary: Summary) -> str:
    """Returns how long the device waits for the host in a step, or "" if that is not known or too little to matter."""
    idle_ms = sum((summary.device_idle or {}).values())
    return f", idle for at most {in_ms(idle_ms)}" if idle_ms > LEAST_IDLE * summary.step_ms else ""


def is_longest(ms: float, ceilings: Ceilings) -> bool:
    """Returns whether this ceiling is the step if nothing waited. This is the longest of several ceilings, because the
    step cannot be shorter than any of them."""
    return ms == ceilings.best_ms() and len(known_ceilings(ceilings)) > 1


def known_ceilings(ceilings: Ceilings) -> list[tuple[str, float, str]]:
    """Returns the known ceilings as (what would be free, milliseconds, the phase whose colour the ceiling has).

    A loader that could not be drained gives 0, which is not a ceiling.
    """
    listed = (
        ("if data were free", ceilings.compute_ms, "forward"),
        ("if compute were free", ceilings.input_ms, "input"),
        ("if no core idled", ceilings.shared_ms, "transfer"),
    )
    return [(words, ms, phase) for words, ms, phase in listed if ms]


def why_no_ceilings(command: str, summary: Summary) -> str:
    silent = "not measured" if command != "watch" else "none while watching; slipstream check measures them"
    return ceilings_reason(summary) or silent


def ceilings_reason(summary: Summary) -> str:
    """Returns the note that replaces the ceilings, or "" if there are ceilings."""
    ceilings = summary.ceilings
    return ceilings.notes[0] if ceilings.notes and ceilings.best_ms() is None else ""
