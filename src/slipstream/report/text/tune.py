"""A tuning in words: the rows of its table and the sentences around the table.

All renderers of a tuning use these rows and sentences. This module only reads the session and measures nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from slipstream.diagnose.source_hints import place
from slipstream.diagnose.steps.training_time import binding_length
from slipstream.numbers import (
    as_count,
    as_ratio,
    between_ratios,
    in_bytes,
    in_ms,
    in_seconds,
    ms_in_digits,
    plural,
    times,
)
from slipstream.records import Choice, Finding, Length, Numerics, Session, Speed, TrialRecord, Tuning, Verdict
from slipstream.report.text.verdicts import reason_of
from slipstream.techniques._core.catalogue import catalogue

HEADINGS: Final = (
    *("technique", "batch", "memory", "step ms", "samples/s"),
    *("own gain", "relative to base", "numerics", "verdict"),
)
BASE: Final = "as it is"
NOISE: Final = "nothing (A/A)"
CEILING: Final = "ceiling: no waiting"
WORDS: Final = {"not_applicable": "not applicable"}


class Row(msgspec.Struct, frozen=True):
    """The values of a row, and its cells in the order of HEADINGS. A cell without a value is empty.

    A row of the selection has only its own gain. This gain is an estimate from a few rounds. It must not be compared
    with the proof.
    """

    name: str
    batch_size: int | None = None
    peak_bytes: int | None = None
    step_ms: float | None = None
    samples_per_s: float | None = None
    speed: Speed | None = None  # relative to the base
    ratio: float | None = None  # relative to the base, for a row that was not raced
    own_ratio: float | None = None  # relative to the recipe that the technique was raced on top of
    numerics: str = ""
    verdict: str = ""
    kind: str = "single"  # base, noise, single, cumulative, total, writable, ceiling

    @property
    def memory(self) -> str:
        return in_bytes(self.peak_bytes) if self.peak_bytes else ""

    @property
    def step(self) -> str:
        return ms_in_digits(self.step_ms) if self.step_ms is not None else ""

    @property
    def own(self) -> str:
        return f"~{as_ratio(self.own_ratio)}" if self.own_ratio is not None else ""

    @property
    def relative_parts(self) -> tuple[str, str]:
        """The ratio and its interval."""
        return (as_ratio(self.ratio), "") if self.ratio is not None else relative_parts(self.speed)

    @property
    def relative(self) -> str:
        return " ".join(filter(None, self.relative_parts))

    @property
    def cells(self) -> tuple[str, ...]:
        return (
            self.name,
            f"{self.batch_size:,}" if self.batch_size else "",
            self.memory,
            self.step,
            as_count(self.samples_per_s) if self.samples_per_s else "",
            self.own,
            self.relative,
            self.numerics,
            self.verdict,
        )

    @property
    def orders(self) -> tuple[float | None, ...]:
        """The number behind each cell, by which its column is sorted."""
        ratio = self.speed.ratio if self.speed is not None else self.ratio
        numbers = (self.batch_size, self.peak_bytes, self.step_ms, self.samples_per_s, self.own_ratio, ratio)
        return (None, *numbers, None, None)


def table_rows(tuning: Tuning) -> list[Row]:
    """Returns the rows of the table, from the base to the ceiling. Techniques that do not apply or were not raced have
    no row."""
    return [
        _base(tuning),
        *_noise(tuning),
        *(_tried(tuning, verdict, single_name(verdict)) for verdict in tried(tuning) if was_raced(verdict)),
        *_together(tuning),
        *_ceiling(tuning),
    ]


def single_name(verdict: Verdict) -> str:
    """Returns the name of the row. A leading "+" means that the technique was raced on top of the recipe so far."""
    return f"+ {verdict.choice}" if len(verdict.recipe.choices) > 1 else str(verdict.choice)


def tried(tuning: Tuning) -> list[Verdict]:
    """Returns the verdicts on single techniques that apply, in the order of the races. Some may not have been raced."""
    return [v for v in tuning.verdicts if v.kind == "single" and v.decision != "not_applicable"]


def was_raced(verdict: Verdict) -> bool:
    """Whether the technique was raced. It was not raced if no time was left for it."""
    return verdict.speed is not None or verdict.decision != "unsure"


def _base(tuning: Tuning) -> Row:
    return Row(
        BASE,
        tuning.base_batch_size,
        tuning.base_peak_bytes,
        tuning.base_step_ms,
        tuning.base_samples_per_s,
        ratio=1.0,
        kind="base",
    )


def _noise(tuning: Tuning) -> Iterator[Row]:
    """Yields the row of the A/A control, which shows how far two equal trials were apart."""
    if tuning.noise is not None:
        controls = [each for each in tuning.trials if each.spec.role == "twin" and len(each.spec.recipe.choices) < 2]
        row = Row(NOISE, tuning.base_batch_size, _peak_bytes(controls), kind="noise")
        if tuning.noise.is_bounded:
            yield msgspec.structs.replace(row, speed=tuning.noise)
        else:
            yield msgspec.structs.replace(row, own_ratio=tuning.noise.ratio)


def _together(tuning: Tuning) -> Iterator[Row]:
    """Yields the rows of recipes with several techniques: in older sessions the kept techniques on top of each other,
    then the whole recipe, then the best recipe that `patch` can write."""
    for verdict in tuning.verdicts:
        if verdict.kind == "cumulative":
            yield _tried(tuning, verdict, f"+ {verdict.choice}")
    whole = [verdict for verdict in tuning.verdicts if verdict.kind == "total"]
    if whole:
        yield _tried(tuning, whole[-1], "all that was kept" if tuning.recipe.choices else "all together")
    elif tuning.total is not None and len(tuning.recipe.choices) > 1:
        step_ms = step_with(tuning, tuning.total)
        rate = tuning.base_samples_per_s * tuning.total.ratio
        peak_bytes = _peak_bytes([each for each in tuning.trials if each.spec.recipe == tuning.recipe])
        values = (tuning.base_batch_size, peak_bytes, step_ms, rate, tuning.total)
        yield Row("all that was kept", *values, verdict="kept", kind="total")
    for verdict in tuning.verdicts:
        if verdict.kind == "writable":
            yield _tried(tuning, verdict, "what patch writes")


def _peak_bytes(trials: Sequence[TrialRecord]) -> int | None:
    """Returns the largest peak of these trials. Where there is a device, it is the peak of the device's memory."""
    return max((each.device_peak_bytes or each.peak_bytes for each in trials), default=0) or None


def _tried(tuning: Tuning, verdict: Verdict, name: str) -> Row:
    is_whole = verdict.kind == "total" and bool(tuning.recipe.choices)
    if verdict.own_ratio is not None:
        return Row(
            name,
            verdict.batch_size,
            verdict.peak_bytes,
            own_ratio=verdict.own_ratio,
            numerics=numerics_word(verdict.numerics),
            verdict=WORDS.get(verdict.decision, verdict.decision),
        )
    speed = tuning.total if is_whole and tuning.total is not None else verdict.speed
    return Row(
        name,
        verdict.batch_size,
        verdict.peak_bytes,
        step_with(tuning, speed) if speed is not None else verdict.step_ms,
        verdict.samples_per_s,
        speed,
        numerics=numerics_word(verdict.numerics),
        verdict=WORDS.get(verdict.decision, verdict.decision),
        kind=verdict.kind,
    )


def _ceiling(tuning: Tuning) -> Iterator[Row]:
    """Yields the row of the ceiling: the step if input and compute of the unchanged script never waited for each
    other."""
    if tuning.ceiling_ms:
        gain = tuning.base_step_ms / tuning.ceiling_ms
        rate = tuning.base_samples_per_s * gain
        remark = ceiling_remark(tuning)
        yield Row(CEILING, step_ms=tuning.ceiling_ms, samples_per_s=rate, ratio=gain, verdict=remark, kind="ceiling")


def ceiling_remark(tuning: Tuning) -> str:
    """Returns why a recipe was faster than the ceiling, or "" if none was."""
    if not tuning.ceiling_ms:
        return ""
    ceiling_gain = tuning.base_step_ms / tuning.ceiling_ms
    raced = [
        (verdict.recipe, verdict.speed)
        for verdict in tuning.verdicts
        if verdict.kind not in ("left_out", "noise") and verdict.own_ratio is None
    ]
    raced += [(tuning.recipe, tuning.total), (tuning.candidate, tuning.candidate_speed)]
    raced += [(tuning.writable, tuning.writable_speed)]
    beyond = [(recipe, speed) for recipe, speed in raced if speed is not None and speed.ratio > ceiling_gain]
    if not beyond:
        return ""
    known = catalogue()
    works = {known[one.technique].CARD.work for recipe, _ in beyond for one in recipe.choices if one.technique in known}
    if "less" in works:
        return "beaten: less work"
    if "spread" in works:
        return "beaten: more cores"
    is_noise = all(speed.low <= ceiling_gain for _, speed in beyond)
    return "beaten: noise" if is_noise else "beaten: measured earlier"


def step_with(tuning: Tuning, speed: Speed) -> float:
    """Returns the step in milliseconds at this speed. Every report divides the races' base step by the ratio."""
    return tuning.base_step_ms / speed.ratio


def from_the_check(tuning: Tuning) -> str:
    """Returns the sentence that a tuned session shows beside the figures of its check."""
    return (
        "These figures are from the check that ran before the races. In the races a step of the unchanged script took "
        f"{in_ms(tuning.base_step_ms)}."
    )


def measured(tuning: Tuning | None, finding: Finding) -> str:
    """Returns what the races measured for a finding of the check, or "" if none of the finding's techniques was
    raced."""
    verdicts = [verdict for verdict in tried(tuning) if verdict.technique in finding.techniques] if tuning else []
    raced = [(verdict.decision == "kept", _own(verdict), verdict) for verdict in verdicts if verdict.speed]
    if not raced:
        return ""
    _, ratio, verdict = max(raced, key=lambda each: each[:2])
    if verdict.own_ratio is None and verdict.speed is not None:
        sentence = f"With {verdict.recipe} tune measured {times(verdict.speed)}"
    else:
        others = verdict.recipe.without(verdict.technique)
        sentence = f"With {verdict.choice} tune measured about {as_ratio(ratio)}"
        sentence += f" on top of {others}" if others.choices else ""
    if ratio <= finding.predicted_gain:
        return f"{sentence}."
    if len(verdict.recipe.choices) > 1:
        return f"{sentence}. The check predicted less for this cause alone; other techniques of the recipe gain too."
    return f"{sentence}. The check, which ran at another time, predicted less for this cause alone."


def _own(verdict: Verdict) -> float:
    """Returns the speed relative to what the technique was raced on. In older sessions that was the base."""
    return verdict.own_ratio or _ratio(verdict)


def relative(speed: Speed | None) -> str:
    """Returns the ratio and its 95% interval. With too few rounds for an interval, returns the ratio after a tilde."""
    return " ".join(filter(None, relative_parts(speed)))


def relative_parts(speed: Speed | None) -> tuple[str, str]:
    if speed is None:
        return "", ""
    if not speed.is_bounded:
        return f"~{as_ratio(speed.ratio)}", ""
    return as_ratio(speed.ratio), between_ratios(speed.low, speed.high)


def numerics_word(numerics: Numerics | None) -> str:
    """Returns the numerics class if the numerics check found that it holds, else "unsound" or "not seen"."""
    if numerics is None:
        return ""
    return {True: numerics.claimed, False: "unsound", None: "not seen"}[numerics.is_sound]


NOTHING_KEPT = "No technique was proved to make the script faster. The script stays as it is."
NOTHING_TRIED = "No technique could be tried. The reasons are below. The script stays as it is."
BROKEN_OFF = "The tuning was interrupted before a technique was kept."
ALWAYS_BUSY = "Other programs used the cores in every round, so nothing could be measured. The script stays as it is."
_RANK = {"kept": 0, "unsure": 1, "rejected": 2, "failed": 3}


def gain(session: Session) -> str:
    """Returns the text above the table: "90 epochs: 14 h → 9 h. A step is 1.52x as fast (95%: 1.46x to 1.58x) with
    workers=2." The first sentence is about the user's whole training, and includes one-off costs and start-up."""
    tuning = session.tuning
    if tuning is None:
        return ""
    if not tuning.recipe.choices and tuning.candidate.choices:
        return _candidate(session, tuning)
    if not tuning.recipe.choices and tuning.num_rounds == tuning.num_discarded > 0:
        return ALWAYS_BUSY
    if not tuning.recipe.choices:
        return BROKEN_OFF if tuning.was_interrupted else NOTHING_KEPT if _started(tuning) else NOTHING_TRIED
    sentence = f"A step is {as_fast(tuning.total)} with {tuning.recipe}." if tuning.total else f"Kept: {tuning.recipe}."
    return f"{_before_and_after(session, tuning)}{sentence}"


def _candidate(session: Session, tuning: Tuning) -> str:
    """Returns the sentence about the best recipe that was not proved, and the command that continues the proof."""
    speed = tuning.candidate_speed
    fast = f"a step is {as_fast(speed)} with {tuning.candidate}" if speed is not None else f"{tuning.candidate}"
    return f"Best so far, not proved: {fast}. Continue: {_resume(session)}."


def _resume(session: Session) -> str:
    return resume_command(session.script, session.options)


def resume_command(script: Sequence[str], options: Sequence[str]) -> str:
    """Returns the command that continues a tuning, with the options of the first command."""
    words = [word for word in options if word != "--resume"]
    return f"{shlex.join(['slipstream', 'tune', '--resume', *words])} {shlex.join(script) or 'this program'}"


def as_fast(speed: Speed) -> str:
    if not speed.is_bounded:
        return f"about {as_ratio(speed.ratio)} as fast"
    return f"{as_ratio(speed.ratio)} as fast (95%: {as_ratio(speed.low)} to {as_ratio(speed.high)})"


def _before_and_after(session: Session, tuning: Tuning) -> str:
    if tuning.seconds_before is None or tuning.seconds_after is None:
        return ""
    whole = whole_training(binding_length(session))
    seconds = f"{in_seconds(tuning.seconds_before)} → {in_seconds(tuning.seconds_after)}"
    return f"{whole[0].upper()}{whole[1:]}: {seconds}. "


def whole_training(length: Length | None) -> str:
    """Returns the length in words: "90 epochs". If an outer loop repeats the training, it is the length of one
    iteration, because the number of iterations is not known."""
    if length is None or not (length.num_epochs or length.num_steps):
        return "the whole training"
    words = plural(length.num_epochs, "epoch") if length.num_epochs else plural(length.num_steps or 0, "step")
    return f"{words} for each iteration of {place(length.around)}" if length.around else words


def caveats(session: Session) -> Iterator[str]:
    """Yields sentences about how far the table can be trusted."""
    tuning = session.tuning
    if tuning is None:
        return
    if tuning.noise_note:
        yield tuning.noise_note
    if tuning.num_discarded:
        yield other_load(tuning)
    yield from tuning.notes
    if not tuning.is_complete and not tuning.candidate.choices:
        yield f"The tuning did not finish. Continue: {_resume(session)}."


def other_load(tuning: Tuning) -> str:
    """Returns how much other programs computed, and how many rounds and seconds were lost to their load."""
    seen = f"Other programs used {plural(round(tuning.foreign_cores, 1), 'core')}"
    waited = f" The tuning waited {in_seconds(tuning.waited_s)} for them." if tuning.waited_s else ""
    rounds = f"{tuning.num_discarded} of {plural(tuning.num_rounds, 'round')}"
    return f"{seen} in {rounds}, which {'does' if tuning.num_discarded == 1 else 'do'} not count.{waited}"


def writable(tuning: Tuning) -> list[tuple[str, str]]:
    """Returns one entry for the recipe that `slipstream patch` can write, if it cannot write the kept recipe."""
    if not tuning.writable.choices or tuning.writable_speed is None:
        return []
    speed = tuning.writable_speed
    fast = times(speed) if speed.is_bounded else f"about {as_ratio(speed.ratio)}"
    return [(str(tuning.writable), f"{fast}; slipstream patch can write it into the source")]


def raced(session: Session) -> str:
    """Returns how many techniques were raced and how long the tuning took: "12 tried in 4.8 min"."""
    tuning = session.tuning
    if tuning is None:
        return ""
    return f"{len(_started(tuning))} tried in {in_seconds(tuning.seconds_spent)}"


def _started(tuning: Tuning) -> list[Verdict]:
    return [verdict for verdict in tried(tuning) if was_raced(verdict)]


def not_raced(tuning: Tuning) -> list[tuple[str, str]]:
    """Returns one entry that names all techniques that apply and for which no time was left. The techniques are in the
    order in which they would have been raced. If there is none, the list is empty."""
    raced_names = {verdict.technique for verdict in _started(tuning)}
    names = dict.fromkeys(verdict.technique for verdict in tried(tuning) if verdict.technique not in raced_names)
    return [(", ".join(names), "not raced. A longer --budget races them.")] if names else []


def worths(tuning: Tuning) -> Iterator[tuple[str, str]]:
    """Yields the proof of the recipe, and for each of its techniques how much slower the recipe is without the
    technique. In older sessions this figure is the proof of a technique that has no interval in its own row."""
    whole = [verdict for verdict in tuning.verdicts if verdict.kind == "total" and verdict.cause is not None]
    if whole:
        yield str(whole[-1].recipe), reason_of(whole[-1])
    for choice in tuning.recipe.choices:
        left_out = [each for each in tuning.verdicts if each.kind == "left_out" and each.choice == choice]
        if left_out and left_out[-1].cause is not None:
            yield str(choice), reason_of(left_out[-1])
            continue
        if speed := _left_out(tuning, choice):
            yield str(choice), f"worth {times(speed)} inside the recipe"
            continue
        own = [verdict for verdict in tried(tuning) if verdict.choice == choice and verdict.decision == "kept"]
        if own and own[-1].cause is None and own[-1].speed is not None and not own[-1].speed.is_bounded:
            yield str(choice), reason_of(own[-1])


def _left_out(tuning: Tuning, choice: Choice) -> Speed | None:
    """Returns the speed of the last race that left this choice out, if the speed has an interval."""
    speeds = [verdict.speed for verdict in tuning.verdicts if verdict.kind == "left_out" and verdict.choice == choice]
    return speeds[-1] if speeds and speeds[-1] is not None and speeds[-1].is_bounded else None


def costs(tuning: Tuning) -> Iterator[tuple[str, str]]:
    """Yields the one-off cost of each kept technique, and after how many steps the technique has saved its cost."""
    for verdict in tried(tuning):
        if verdict.choice in tuning.recipe.choices and verdict.payback_steps:
            once = f"{in_seconds(verdict.one_off_s)} once, " if verdict.one_off_s else ""
            yield str(verdict.choice), f"{once}paid back after {plural(verdict.payback_steps, 'step')}"


def reasons(tuning: Tuning) -> Iterator[tuple[str, str]]:
    """Yields the reason why each raced technique was not kept, for the setting that came closest. Techniques with the
    same reason share one entry."""
    by_reason: dict[str, list[str]] = {}
    for verdicts in _by_technique(tuning).values():
        closest = min(verdicts, key=lambda verdict: (_RANK[verdict.decision], -_ratio(verdict)))
        by_reason.setdefault(reason_of(closest), []).append(str(closest.choice))
    for reason, names in by_reason.items():
        yield ", ".join(names), reason


def _by_technique(tuning: Tuning) -> dict[str, list[Verdict]]:
    kept = {choice.technique for choice in tuning.recipe.choices}
    found: dict[str, list[Verdict]] = {}
    for verdict in _started(tuning):
        if verdict.technique not in kept:
            found.setdefault(verdict.technique, []).append(verdict)
    return found


def _ratio(verdict: Verdict) -> float:
    return verdict.speed.ratio if verdict.speed else 0.0


def not_applicable(tuning: Tuning) -> list[tuple[str, str]]:
    """Returns names and reasons: "tf32, cudnn_benchmark" and "no CUDA device". Techniques with the same reason share
    one entry."""
    by_reason: dict[str, list[str]] = {}
    for verdict in tuning.verdicts:
        if verdict.decision == "not_applicable":
            by_reason.setdefault(reason_of(verdict), []).append(verdict.technique)
    return [(", ".join(dict.fromkeys(names)), reason) for reason, names in by_reason.items()]
