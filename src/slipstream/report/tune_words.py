"""A tuning in sentences: what it gained, why each technique was not kept, what could not be told. Concludes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.records import Choice, Session, Speed, Tuning, Verdict
from slipstream.report.quantity import as_ratio, in_seconds, plural
from slipstream.report.tune_table import tried

NOTHING_KEPT = "Nothing that was tried made the script faster beyond doubt; it stays as it is."
NOTHING_TRIED = "Nothing could be tried; the reasons stand below. The script stays as it is."
BROKEN_OFF = "Interrupted before anything was kept."
_RANK = {"kept": 0, "unsure": 1, "rejected": 2, "failed": 3}


def gain(session: Session) -> str:
    """The sentence above the table: "90 epochs: 14 h → 9 h. 1.52x as fast (95%: 1.46x to 1.58x) with workers=2." """
    tuning = session.tuning
    if tuning is None:
        return ""
    if not tuning.recipe.choices:
        return BROKEN_OFF if tuning.was_interrupted else NOTHING_KEPT if _started(tuning) else NOTHING_TRIED
    sentence = f"{as_fast(tuning.total)} with {tuning.recipe}." if tuning.total else f"Kept: {tuning.recipe}."
    return f"{_before_and_after(session, tuning)}{sentence}"


def as_fast(speed: Speed) -> str:
    return f"{as_ratio(speed.ratio)} as fast (95%: {as_ratio(speed.low)} to {as_ratio(speed.high)})"


def _before_and_after(session: Session, tuning: Tuning) -> str:
    if tuning.seconds_before is None or tuning.seconds_after is None:
        return ""
    length = session.length
    if length and length.num_epochs:
        whole = plural(length.num_epochs, "epoch")
    elif length and length.num_steps:
        whole = plural(length.num_steps, "step")
    else:
        whole = "The whole training"
    return f"{whole}: {in_seconds(tuning.seconds_before)} → {in_seconds(tuning.seconds_after)}. "


def caveats(session: Session) -> Iterator[str]:
    """What to know before believing the table."""
    tuning = session.tuning
    if tuning is None:
        return
    if tuning.noise_note:
        yield tuning.noise_note
    yield from tuning.notes
    if not tuning.is_complete and not tuning.notes:
        yield "Not everything was decided: the same command again goes on from here."


def raced(session: Session) -> str:
    """ "12 tried in 4.8 min", for the headline."""
    tuning = session.tuning
    if tuning is None:
        return ""
    return f"{len(_started(tuning))} tried in {in_seconds(tuning.seconds_spent)}"


def _started(tuning: Tuning) -> list[Verdict]:
    """Not those for which no time was left."""
    return [verdict for verdict in tried(tuning) if verdict.speed is not None or verdict.decision != "unsure"]


def worths(tuning: Tuning) -> Iterator[tuple[str, str]]:
    """For each kept technique what leaving it out costs, with the interval: its worth beside the others. What was built
    on before it was decided has no interval in its own row, and this, or the race of the whole recipe, is its proof."""
    for choice in tuning.recipe.choices:
        if speed := _left_out(tuning, choice):
            interval = f"{speed.low:.2f} to {speed.high:.2f}"
            yield str(choice), f"worth {as_ratio(speed.ratio)} ({interval}) inside the recipe"
            continue
        own = [verdict for verdict in tried(tuning) if verdict.choice == choice and verdict.decision == "kept"]
        if own and own[-1].speed is not None and not own[-1].speed.is_bounded:
            yield str(choice), own[-1].reason


def _left_out(tuning: Tuning, choice: Choice) -> Speed | None:
    """Of the last race without it, if that bounded it."""
    speeds = [verdict.speed for verdict in tuning.verdicts if verdict.kind == "left_out" and verdict.choice == choice]
    return speeds[-1] if speeds and speeds[-1] is not None and speeds[-1].is_bounded else None


def costs(tuning: Tuning) -> Iterator[tuple[str, str]]:
    """What the kept ones cost once, and when they have paid it back."""
    for verdict in tried(tuning):
        if verdict.choice in tuning.recipe.choices and verdict.payback_steps:
            once = f"{in_seconds(verdict.one_off_s)} once, " if verdict.one_off_s else ""
            yield str(verdict.choice), f"{once}paid back after {plural(verdict.payback_steps, 'step')}"


def reasons(tuning: Tuning) -> Iterator[tuple[str, str]]:
    """For each technique that was tried and is not in the recipe, of its settings the one that came closest; those
    with the same reason together."""
    by_reason: dict[str, list[str]] = {}
    for verdicts in _by_technique(tuning).values():
        closest = min(verdicts, key=lambda verdict: (_RANK[verdict.decision], -_ratio(verdict)))
        by_reason.setdefault(closest.reason, []).append(str(closest.choice))
    for reason, names in by_reason.items():
        yield ", ".join(names), reason


def _by_technique(tuning: Tuning) -> dict[str, list[Verdict]]:
    kept = {choice.technique for choice in tuning.recipe.choices}
    found: dict[str, list[Verdict]] = {}
    for verdict in tried(tuning):
        if verdict.technique not in kept:
            found.setdefault(verdict.technique, []).append(verdict)
    return found


def _ratio(verdict: Verdict) -> float:
    return verdict.speed.ratio if verdict.speed else 0.0


def not_applicable(tuning: Tuning) -> list[str]:
    """ "tf32, cudnn_benchmark: no CUDA device", those with the same reason together."""
    by_reason: dict[str, list[str]] = {}
    for verdict in tuning.verdicts:
        if verdict.decision == "not_applicable":
            by_reason.setdefault(verdict.reason, []).append(verdict.technique)
    return [f"{', '.join(dict.fromkeys(names))}: {reason}" for reason, names in by_reason.items()]
