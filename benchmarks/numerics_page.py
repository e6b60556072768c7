"""Renders the page of numerics_errors.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from numerics_rows import Judged, Row

MOST_REJECTED, LEAST_FOUND = 0.02, 0.99


def render(rows: Sequence[Row], machine: str, command: str, commit: str) -> str:
    done = sorted((row for row in rows if not row.failure), key=lambda row: (row.is_public, row.name))
    num_public = sum(row.is_public for row in done)
    head = (
        f"# Errors of the numerics check\n\n{machine} `{command}`, commit {commit}.\n\n"
        f"{len(done)} training scripts, {num_public} of them from public repositories. Each script ran in real trials "
        "of up to 60 steps (40 steps with a planted fault), with one thread. These were its trials: the unchanged "
        "script twice, three draws of fp32 rounding noise, four draws of bf16 rounding noise, three other seeds, every "
        "sound technique that applies, and every planted fault in fp32 and under bf16 autocast.\n"
    )
    parts = [head, _sound(done), _faults(done), _errors(done), _times(done), _scripts(rows)]
    return "\n".join(parts)


# --- sound techniques -------------------------------------------------------------------------------------------------


def _sound(rows: Sequence[Row]) -> str:
    every = [(row, one) for row in rows for one in row.sound]
    lines = ["## Sound techniques", "", _shares(every), "", _table(every, lambda one: one.what.partition("=")[0])]
    for title, wanted in (("Rejected", False), ("Unsure", None)):
        lines += ["", f"### {title}", ""]
        found = [
            f"- `{row.name}`, `{one.what}` ({one.claimed}): {one.words}."
            for row, one in every
            if one.is_sound is wanted
        ]
        lines += found or ["None."]
    return "\n".join([*lines, "", _chance(rows)]) + "\n"


def _chance(rows: Sequence[Row]) -> str:
    every = [(row, one) for row in rows for one in row.chance]
    lines = [
        "### Chance alone",
        "",
        "Each trial with another seed is judged as if it claimed `redrawn`, by the base and the other seeds. Each "
        "random draw of bf16 noise is judged as if it claimed `approximate`, by the other draws. All these trials are "
        "sound by construction.",
        "",
        _table(every, lambda one: f"{one.what.rpartition(' ')[0]} as {one.claimed}"),
        "",
    ]
    lines += [f"- `{row.name}`, {one.what}: {one.words}." for row, one in every if one.is_sound is not True]
    return "\n".join(lines)


def _shares(every: Sequence[tuple[Row, Judged]]) -> str:
    counts = Counter(one.is_sound for _, one in every)
    number = max(1, len(every))
    changing = [one for _, one in every if one.basis != "bits"]
    rejected = sum(one.is_sound is False for one in changing)
    return (
        f"{len(every)} trials. Rejected: {counts[False]} ({counts[False] / number:.1%}; required: at most "
        f"{MOST_REJECTED:.0%}). Unsure: {counts[None]} ({counts[None] / number:.1%}). Rejected of the {len(changing)} "
        f"trials that were not bit-equal to the base: {rejected} ({rejected / max(1, len(changing)):.1%})."
    )


def _table(every: Sequence[tuple[Row, Judged]], kind: Callable[[Judged], str]) -> str:
    lines = [
        "| trial | sound, bit for bit | sound, by tensors and losses | unsure | rejected |",
        "|---|---:|---:|---:|---:|",
    ]
    for name in sorted({kind(one) for _, one in every}):
        mine = [one for _, one in every if kind(one) == name]
        bits = sum(one.is_sound is True and one.basis == "bits" for one in mine)
        sound = sum(one.is_sound is True for one in mine) - bits
        unsure, rejected = (sum(one.is_sound is what for one in mine) for what in (None, False))
        lines.append(f"| {name} | {bits} | {sound} | {unsure} | {rejected} |")
    return "\n".join(lines)


# --- faults -----------------------------------------------------------------------------------------------------------


def _faults(rows: Sequence[Row]) -> str:
    every = [(row, one) for row in rows for one in row.faults if one.effect != "nothing"]
    lines = [
        "## Planted faults",
        "",
        "A fault is *counted* if, alone and without lower precision, it changes a tensor that is evidence, or a loss "
        "before the horizon, by more than the claimed class allows. A fault that changes no bit is not in the table. "
        "For `reordered`, the trial that decides whether a fault is counted is also the trial that is judged. So the "
        "share of `reordered` only shows that no verdict is unsure. The list of undetectable faults below says more.",
        "",
        "| claimed as | faults | counted | of them rejected | unsure | kept | not counted | of them rejected |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for claimed in ("reordered", "approximate", "identical"):
        mine = [one for _, one in every if one.claimed == claimed]
        seen = [one for one in mine if claimed == "identical" or one.effect == "visible"]
        found, unsure, kept = (sum(one.is_sound is what for one in seen) for what in (False, None, True))
        rest = [one for one in mine if one not in seen]
        share = f"{found} ({found / max(1, len(seen)):.1%})"
        others = sum(one.is_sound is False for one in rest)
        lines.append(
            f"| {claimed} | {len(mine)} | {len(seen)} | {share} | {unsure} | {kept} | {len(rest)} | {others} |"
        )
    lines += [
        "",
        f"Required: at least {LEAST_FOUND:.0%} of the counted faults are rejected, and none is kept as `identical`.",
        "",
    ]
    lines += [_by_fault([one for _, one in every])]
    lines += ["", "### Counted and not rejected", ""]
    missed = [
        f"- `{row.name}`, {one.what} as {one.claimed}: {_verdict(one)}; the fault alone: {one.effect_words}."
        for row, one in every
        if one.is_sound is not False and (one.effect == "visible" or one.claimed == "identical")
    ]
    lines += missed or ["None."]
    lines += ["", "### Not counted and not rejected: undetectable", ""]
    for claimed in ("reordered", "approximate"):
        rest = [(row, one) for row, one in every if one.claimed == claimed and one.effect == "below"]
        lines += [
            f"- `{row.name}`, {one.what} as {claimed}: {one.effect_words}."
            for row, one in rest
            if one.is_sound is not False
        ]
    return "\n".join(lines) + "\n"


def _verdict(one: Judged) -> str:
    return f"unsure ({one.words})" if one.is_sound is None else f"kept ({one.words})"


def _by_fault(every: Iterable[Judged]) -> str:
    found: dict[str, Counter[str]] = {}
    for one in every:
        if one.claimed != "identical":
            counted = "counted" if one.effect == "visible" else "rest"
            key = f"{one.claimed} {counted} {'rejected' if one.is_sound is False else 'missed'}"
            found.setdefault(one.what, Counter())[key] += 1
    lines = [
        "| fault | reordered: rejected of counted | undetectable | approximate: rejected of counted | undetectable |",
        "|---|---:|---:|---:|---:|",
    ]
    for fault, counts in found.items():
        cells = []
        for claimed in ("reordered", "approximate"):
            rejected, missed = counts[f"{claimed} counted rejected"], counts[f"{claimed} counted missed"]
            cells += [f"{rejected} of {rejected + missed}", str(counts[f"{claimed} rest missed"])]
        lines.append(f"| {fault} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


# --- predictions and times --------------------------------------------------------------------------------------------


def _errors(rows: Sequence[Row]) -> str:
    lines = [
        "## The error of bf16 autocast, divided by the prediction",
        "",
        "Gradients of the first step. The prediction is the largest error of the four draws of bf16 rounding noise.",
        "",
        "| script | tensors | evidence | smallest | median | largest | tensor of the largest | all together |",
        "|---|---:|---:|---:|---:|---:|---|---:|",
    ]
    for row in rows:
        if row.errors is not None:
            e = row.errors
            ratios = f"{e.lowest:.2f} | {e.median:.2f} | {e.highest:.2f} | {e.worst_tensor} | {e.together:.2f}"
            lines.append(f"| {row.name} | {e.num_tensors} | {e.num_evidence} | {ratios} |")
    return "\n".join(lines) + "\n"


def _times(rows: Sequence[Row]) -> str:
    lines = [
        "## What the controls cost",
        "",
        "The table shows the seconds of whole trials, including their start, and the milliseconds of a step in the "
        "fastest block of a trial. Other programs ran on the machine, so the figures are rough.",
        "",
        "| script | base | 3 draws of fp32 | 4 draws of bf16 | 3 seeds | step of the base | step of a draw | ratio |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = f"{row.base_s:.1f} s | {row.fp32_s:.1f} s | {row.bf16_s:.1f} s | {row.seeds_s:.1f} s"
        steps = " | | "
        if row.base_step_ms and row.rounding_step_ms:
            ratio = row.rounding_step_ms / row.base_step_ms
            steps = f"{row.base_step_ms:.1f} ms | {row.rounding_step_ms:.1f} ms | {ratio:.1f}"
        lines.append(f"| {row.name} | {cells} | {steps} |")
    return "\n".join(lines) + "\n"


def _scripts(rows: Sequence[Row]) -> str:
    lines = [
        "## Scripts",
        "",
        "| script | steps | repeats itself | horizon fp32 | horizon bf16 | sound trials | faults | nothing to change |"
        " did not run |",
        "|---|---:|---|---:|---:|---:|---:|---|---|",
    ]
    for row in rows:
        if row.failure:
            lines.append(f"| {row.name} | | | | | | | | {row.failure} |")
            continue
        failed = "; ".join(f"{name}: {reason[:120]}" for name, reason in row.failed.items())
        num_faults = len({one.what for one in row.faults})
        lines.append(
            f"| {row.name} | {row.num_steps} | {'yes' if row.is_repeatable else 'no'} | {row.horizon_fp32} |"
            f" {row.horizon_bf16} | {len(row.sound)} | {num_faults} | {', '.join(row.unchanged)} | {failed} |"
        )
    return "\n".join(lines) + "\n"
