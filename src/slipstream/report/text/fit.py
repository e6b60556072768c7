"""The result of a fit in words, for every renderer.

The texts are an attempt in the live view, the sentence at the top, the rows of the table, and the question about the
learning rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from slipstream.numbers import as_count, as_ratio, in_binary, plural
from slipstream.records import FitAttempt, Fitting
from slipstream.report.text.tune import relative

FIT_HEADINGS: Final = ("batch", "with", "memory", "step ms", "samples/s", "relative to base", "within the limit")
FIT_ALIGN: Final = "rlrrrll"
_OUTCOMES: Final = {"ran": "ran", "ran_out": "ran out", "ended": "ended early", "failed": "failed"}


def say_trial(attempt: FitAttempt, limit_bytes: int) -> str:
    """Returns the line about one attempt that stays on the screen."""
    what = f"batch {attempt.batch_size}" if attempt.batch_size else "the batch"
    what += f" with {attempt.recipe}" if attempt.recipe.choices else ""
    where = f"within {in_binary(limit_bytes)}" if attempt.is_held else "without a limit"
    if attempt.outcome == "ran":
        held = f", {in_binary(attempt.peak_bytes)} at most" if attempt.peak_bytes else ""
        rate = f", {as_count(attempt.samples_per_s)} samples/s" if attempt.samples_per_s else ""
        return f"{what} ran {where}{held}{rate}"
    if attempt.outcome == "ran_out":
        return f"{what} ran out of memory {where}"
    return f"{what} {attempt.outcome}: {attempt.reason}"


def sentence(fitting: Fitting) -> str:
    """Returns sentences that say whether the script's batch fits, what makes it fit, and which other batches fit."""
    limit = in_binary(fitting.limit_bytes)
    own = f"The script's batch of {fitting.own_batch}" if fitting.own_batch else "The script's batch"
    parts = [f"{own} fits in {limit}." if fitting.own_fits else _remedies(fitting, own, limit)]
    if fitting.largest is not None:
        failed = f" ({fitting.too_large} ran out)" if fitting.too_large is not None else ""
        parts.append(f"The largest batch that runs is {fitting.largest}{failed}{_fastest(fitting)}.")
    return " ".join(parts)


def _remedies(fitting: Fitting, own: str, limit: str) -> str:
    """Returns what makes the batch fit: "The script's batch of 32 does not fit in 6 GiB; checkpointing=half fits at
    1.18x step time. Kept: checkpointing=half."."""
    ran = [
        attempt
        for attempt in unique(fitting)
        if attempt.recipe.choices and attempt.outcome == "ran" and attempt.is_held
    ]
    if not ran:
        if not any(attempt.recipe.choices for attempt in fitting.attempts):
            return f"{own} does not fit in {limit} without changes."
        return f"{own} does not fit in {limit}, and nothing that was tried makes it fit{_least(fitting)}."
    ran.sort(key=_cost)
    costs = [f"{attempt.recipe}{_price(attempt, 'fits' if not number else '')}" for number, attempt in enumerate(ran)]
    return f"{own} does not fit in {limit}; {', '.join(costs)}. Kept: {fitting.recipe}."


def _least(fitting: Fitting) -> str:
    """Returns the technique that needs the least memory. If no technique was measured, returns what else to try."""
    ran = [one for one in fitting.attempts if one.recipe.choices and one.outcome == "ran" and one.peak_bytes]
    best = min(ran, key=lambda attempt: attempt.peak_bytes or 0, default=None)
    if best is None or best.peak_bytes is None:
        bare = next(
            (one for one in fitting.attempts if not one.recipe.choices and not one.is_held and one.peak_bytes), None
        )
        needs = f": unchanged it needs {in_binary(bare.peak_bytes)}" if bare is not None and bare.peak_bytes else ""
        return f"{needs}; --fit finds the largest batch that fits"
    return f": {best.recipe} needs the least memory, {in_binary(best.peak_bytes)}"


def _price(attempt: FitAttempt, fits: str) -> str:
    if attempt.rate is None:
        return f" {fits or 'fits'}"
    return f" {fits} at {as_ratio(_cost(attempt))} step time" if fits else f" at {as_ratio(_cost(attempt))}"


def _cost(attempt: FitAttempt) -> float:
    return 1.0 / attempt.rate.ratio if attempt.rate is not None else 1e3


def _fastest(fitting: Fitting) -> str:
    if fitting.fastest is None:
        return ""
    if fitting.fastest == fitting.own_batch:
        return f"; no other batch is faster than the script's own, {fitting.own_batch}"
    attempt = next((one for one in unique(fitting) if one.batch_size == fitting.fastest and one.rate is not None), None)
    if attempt is None or attempt.rate is None:
        return f", the fastest is {fitting.fastest}"
    rate = f"{as_count(attempt.samples_per_s)} samples/s, " if attempt.samples_per_s else ""
    return f", the fastest is {fitting.fastest}: {rate}{relative(attempt.rate)} of {fitting.own_batch}'s"


def unique(fitting: Fitting) -> list[FitAttempt]:
    """Returns the last result for each batch size, recipe and limit. A later result `ran` replaces no other outcome. A
    result `ran` without a timing replaces no earlier result."""
    found: dict[tuple[int, str, bool], FitAttempt] = {}
    for attempt in fitting.attempts:
        key = (attempt.batch_size, str(attempt.recipe), attempt.is_held)
        before = found.get(key)
        if before is None or before.outcome == "ran" or attempt.outcome != "ran":
            found[key] = attempt if before is None or attempt.rate is not None or attempt.outcome != "ran" else before
    return list(found.values())


class FitRow(msgspec.Struct, frozen=True):
    """One attempt, with its cells in the order of FIT_HEADINGS."""

    cells: tuple[str, ...]
    has_run_out: bool  # whether the memory limit was reached
    is_chosen: bool  # whether it is the largest batch, the fastest batch or the kept recipe


def fit_rows(fitting: Fitting) -> list[FitRow]:
    """Returns the rows: attempts without the limit, then batches by size, then the script's own batch with techniques
    that save memory."""
    rows = sorted(unique(fitting), key=lambda one: (one.is_held, bool(one.recipe.choices), one.batch_size))
    return [_row(attempt, fitting) for attempt in rows]


def _row(attempt: FitAttempt, fitting: Fitting) -> FitRow:
    is_timed = attempt.rate is not None and attempt.rate.num_rounds > 0
    marks = [word for word, size in (("largest", fitting.largest), ("fastest", fitting.fastest)) if _is(attempt, size)]
    kept = ["kept"] if attempt.recipe.choices and attempt.recipe == fitting.recipe else []
    outcome = _OUTCOMES[attempt.outcome] if attempt.is_held else "no limit"
    cells = (
        f"{attempt.batch_size:,}" if attempt.batch_size else "",
        str(attempt.recipe) if attempt.recipe.choices else "",
        in_binary(attempt.peak_bytes) if attempt.peak_bytes and attempt.outcome == "ran" else "",
        f"{attempt.step_ms:,.1f}" if attempt.step_ms and attempt.outcome == "ran" else "",
        as_count(attempt.samples_per_s) if attempt.samples_per_s and attempt.outcome == "ran" else "",
        relative(attempt.rate) if is_timed else "1.00x" if attempt.rate is not None else "",
        ", ".join([outcome, *marks, *kept]),
    )
    return FitRow(cells, attempt.is_held and attempt.outcome == "ran_out", bool(marks or kept))


def _is(attempt: FitAttempt, size: int | None) -> bool:
    return size is not None and attempt.batch_size == size and attempt.is_held and not attempt.recipe.choices


def remarks(fitting: Fitting) -> Iterator[str]:
    """Yields what the limit includes, what was kept, and what only the user can decide."""
    yield meaning(fitting)
    other = fitting.fastest if fitting.fastest not in (None, fitting.own_batch) else fitting.largest
    if other is not None and other != fitting.own_batch:
        yield learning_rate_question(fitting.own_batch, other)
        if not any(choice.setting == other for choice in fitting.recipe.choices):
            yield (
                "No batch size was kept. Set the batch size in the script, or use --fit --allow different, which"
                " writes the fastest one into the recipe."
            )
    yield from fitting.notes


def meaning(fitting: Fitting) -> str:
    source = f"{in_binary(fitting.limit_bytes)} ({fitting.limit_source})"
    if fitting.device.startswith("cpu"):
        return (
            f"The limit, {source}, applies to the private writable memory of the training process (RLIMIT_DATA)."
            " Python and libraries are included, and loader workers are not. The column memory is counted in the"
            " same way."
        )
    return (
        f"The limit, {source}, applies to what torch reserves on {fitting.device}. The column memory is counted in the"
        " same way."
    )


def learning_rate_question(own: int, other: int) -> str:
    factor = other / own if own else 1.0
    steps = f"{factor:.2g} times the samples" if factor >= 1 else f"{1 / factor:.2g} times fewer samples"
    return (
        f"Another batch size changes training. A step of {plural(other, 'sample')} in place of {own:,} has {steps}, and"
        f" an epoch has {'fewer' if factor >= 1 else 'more'} updates. Decide whether to change the learning rate. It is"
        f" often scaled by {factor:.2g} (the linear rule, for SGD) or by {factor**0.5:.2g} (the square root, for Adam),"
        " or left as it is. slipstream changed neither the learning rate nor its schedule. Check the validation loss."
    )
