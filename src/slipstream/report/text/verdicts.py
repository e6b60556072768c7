"""The reason of a verdict in words: a clause for the row or line of its technique."""

from __future__ import annotations

from slipstream.numbers import as_ratio, times
from slipstream.records import Speed, Verdict
from slipstream.report.text.numerics import describe_numerics

NOT_RACED = "not raced: too little time for it; a longer --budget helps"


def reason_of(verdict: Verdict) -> str:
    """Returns the clause for the verdict's cause. Sessions of older versions contain the clause itself."""
    if verdict.cause is None or verdict.cause in ("not_applicable", "failed"):
        return verdict.reason
    is_whole = verdict.own_ratio is None and verdict.cause in (
        "proved",
        "refuted",
        "not_proved",
        "measured",
        "not_checked",
    )
    return _of_whole(verdict) if is_whole or verdict.kind in ("total", "writable") else _of_technique(verdict)


def _of_technique(verdict: Verdict) -> str:
    own = as_ratio(verdict.own_ratio) if verdict.own_ratio is not None else ""
    on_top = " on top of the recipe so far" if len(verdict.recipe.choices) > 1 else ""
    match verdict.cause:
        case "gains":
            if verdict.kind == "left_out":
                return f"the recipe without it is slower by ~{own}"
            return f"about {own}{on_top}"
        case "no_gain":
            return f"about {own}{on_top}: no faster"
        case "outpaced":
            return f"about {own}{on_top}: others gained more in the same pass"
        case "conflict":
            return f"{verdict.other}, and the other technique gains more"
        case "not_together":
            return f"about {own} alone, but no gain beside {verdict.other}"
        case "not_again":
            return f"about {own}{on_top}, but no gain in new processes"
        case "superfluous":
            return "the recipe is as fast without it"
        case "unsound" if verdict.numerics is not None:
            return f"faster, but not sound: {describe_numerics(verdict.numerics)}"
        case "unchecked" if verdict.numerics is not None:
            return f"faster, but its numerics could not be checked: {describe_numerics(verdict.numerics)}"
        case "never_pays":
            steps = f"{verdict.payback_steps:,}" if verdict.payback_steps else "more"
            return f"pays off only after {steps} steps; this training has {verdict.num_training_steps or 0:,}"
        case "opt_in":
            return f"about {own}{on_top}, but kept only on request: --only {verdict.technique} keeps it"
        case "declined":
            who = f"{verdict.other}: " if verdict.other and verdict.other != verdict.technique else ""
            return f"{who}{verdict.reason}"
        case "no_effect":
            return "it had no effect on this script"
        case "untimed":
            return verdict.reason or "no block could be timed: something was compiled or started in every block"
        case "not_raced":
            return NOT_RACED
        case "not_proved":
            return f"about {own}{on_top}, but the recipe was not proved"
    return verdict.reason


def _of_whole(verdict: Verdict) -> str:
    speed = verdict.speed
    match verdict.cause:
        case "proved":
            return f"{_with_pairs(speed)} against the unchanged script"
        case "refuted" | "no_gain":
            return f"no faster in new processes: {_with_pairs(speed)}"
        case "measured":
            return f"measured, not proved: {_with_pairs(speed)}"
        case "not_checked":
            return f"faster, but there was no time to check its numerics: {_with_pairs(speed)}"
        case "other_load":
            return "not decided: other programs ran far more often during the blocks of one of the two trials"
        case "unsound" | "unchecked":
            return _of_technique(verdict)
    if speed is not None and speed.is_bounded and speed.low > 1:
        return f"faster, but perhaps by too little to be kept: {_with_pairs(speed)}"
    return f"not proved to be faster: {_with_pairs(speed)}"


def _with_pairs(speed: Speed | None) -> str:
    if speed is None:
        return "no pair of processes was timed"
    pairs = "1 pair" if speed.num_rounds == 1 else f"{speed.num_rounds} pairs"
    fast = times(speed) if speed.is_bounded else f"about {as_ratio(speed.ratio)}"
    return f"{fast} in {pairs} of new processes"
