"""The transforms of each sample are slow, most often because Python code handles every value separately."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from slipstream.diagnose.epoch_invariance import draws, is_parsing, is_text, repeats
from slipstream.diagnose.gain import gain_of
from slipstream.diagnose.hotspots import Hotspot, hottest_function, total
from slipstream.diagnose.input_path import InputPath, building_site, costs_time, input_path, step_after
from slipstream.diagnose.stack_facts import is_collate, is_loop, is_torch_picking, line_to_change
from slipstream.diagnose.steps.selection import is_single_epoch
from slipstream.numbers import in_ms, in_percent, part_of_ms
from slipstream.records import Finding, Session, StackCount, Summary

CONCENTRATED = 0.4  # Least share of the work in one function that contains a Python loop
VECTORISED = 0.9  # Share saved if one array operation replaces a Python loop over values (ten times faster or more)
# Share saved in a library's C code by another call (other size, dtype or order). The true amount is unknown.
CLEVERER = 0.3
CONCENTRATED_IN_C = 0.6  # Least share of the work in one function, or in libraries, without a Python loop
ONCE = 0.9  # Share saved by tokenizing once. Only indexing the small results remains.
LESS = "do less here: a smaller input, a cheaper dtype"
TOKENS = "tokenize all texts once, before the training, and index the results here"
PARSED = "parse all of it once, before the training, store arrays (np.save, torch.save) and read those here"
SAME = "do it once: store the result before the training, or keep it from the first epoch, and read it here"
BEFORE_RANDOM = "do once, before the training, what comes before the random part; the rest on a smaller input"
VECTORS = "one array operation in place of the loop: NumPy or torch on the whole sample"
STAGES = ("transform", "python", "compute", "other")


def find(session: Session, summary: Summary) -> list[Finding]:
    path = input_path(session, summary)
    if path is None or not costs_time(summary, path) or path.waits > 0.7:
        return []
    stacks = [stack for stack in path.stacks if stack.stage in STAGES and stack.file and not is_collate(path, stack)]
    inside = hottest_function(stacks)
    loops, hot = is_loop(session, inside), line_to_change(session, inside)
    share = path.share(inside)
    if hot is None or share < (CONCENTRATED if loops else CONCENTRATED_IN_C):
        return _in_a_library(session, summary, path)
    return [_finding(session, summary, path, hot, inside, loops)]


def _in_a_library(session: Session, summary: Summary, path: InputPath) -> list[Finding]:
    """The finding for a library's dataset and its transforms.

    The loader calls no line of the user's. The finding therefore shows the line that builds the loader, and the
    evidence names the library's busiest function.
    """
    inside = [
        stack for stack in path.stacks if stack.stage in STAGES and not stack.file and not is_collate(path, stack)
    ]
    inside = [stack for stack in inside if not is_torch_picking(stack)]
    share = path.share(inside)
    if share < CONCENTRATED_IN_C:
        return []
    fix = _fix_of(session, path, inside, loops=False)
    then_ms = step_after(session, summary, path, work_ms=path.work_ms * (1 - share * fix.saved))
    busiest: Counter[str] = Counter()
    for stack in inside:
        busiest[stack.leaf] += stack.count
    return [
        Finding(
            cause="slow_transform",
            title="A library's transforms take most of the input",
            evidence=f"{in_percent(share)} of the {in_ms(path.work_ms)} that a step's batch takes to build is what the "
            f"dataset ({path.loader.dataset_name}) does to each sample, most of it in {busiest.most_common(1)[0][0]}; "
            f"the step waits {part_of_ms(path.wait_ms, summary.step_ms)}.",
            predicted_gain=gain_of(summary.step_ms, then_ms),
            change=fix.change,
            site=building_site(path.loader),
            techniques=_answers(session, path, inside),
            advice=fix.advice,
        )
    ]


def _finding(
    session: Session, summary: Summary, path: InputPath, hot: Hotspot, inside: list[StackCount], loops: bool
) -> Finding:
    share, fix = path.share(inside), _fix_of(session, path, inside, loops)
    then_ms = step_after(session, summary, path, work_ms=path.work_ms * (1 - share * fix.saved))
    kind = "runs as Python bytecode, value by value" if loops else "is spent inside one library's calls"
    return Finding(
        cause="slow_transform",
        title="Each sample goes through slow Python" if loops else "One transform takes most of the input",
        evidence=f"{in_percent(share)} of the {in_ms(path.work_ms)} that a step's batch takes to build {kind}, "
        f"around line {hot.site.line}; the step waits {part_of_ms(path.wait_ms, summary.step_ms)}.",
        predicted_gain=gain_of(summary.step_ms, then_ms),
        change=fix.change,
        site=hot.site,
        techniques=_answers(session, path, inside, loops),
        advice=fix.advice,
    )


class _Fix(NamedTuple):
    change: str
    saved: float  # Share of the work that the change saves
    advice: str = ""


def _fix_of(session: Session, path: InputPath, inside: list[StackCount], loops: bool) -> _Fix:
    """The change. Work that gives the same result in every epoch is best done once.

    The prediction assumes only for texts and parsed files that doing the work once saves nearly all of it. For other
    samples it is unknown whether the results fit in memory or on disk.
    """
    saved = VECTORISED if loops else CLEVERER
    if is_single_epoch(session):
        return _Fix(VECTORS if loops else LESS, saved)
    if is_text(inside) or is_parsing(inside):
        return _Fix(TOKENS if is_text(inside) else PARSED, max(saved, ONCE), "It gives the same in every epoch.")
    is_same, has_drawn = repeats(session, path.loader, inside, path.stacks), draws(session, path.loader)
    drew = "Building its batches drew no random number, so it gives the same in every epoch" if is_same else ""
    if loops:
        return _Fix(VECTORS, saved, f"{drew}: doing it once, before the training, would also work." if is_same else "")
    if is_same:
        return _Fix(SAME, saved, f"{drew}.")
    return _Fix(BEFORE_RANDOM if has_drawn else f"{LESS}, or the result kept from an earlier epoch", saved)


def _answers(session: Session, path: InputPath, inside: list[StackCount], loops: bool = False) -> list[str]:
    """The techniques for this work. Samples that draw random numbers, or come from a stream, cannot be cached."""
    may_keep = not path.loader.is_iterable and not draws(session, path.loader)
    quicker = ["fast_resize"] if not loops and _resizes(inside) else []
    return [*quicker, *(["sample_cache"] if may_keep else []), *([] if loops else ["thread_workers"]), "workers"]


def _resizes(stacks: list[StackCount]) -> bool:
    """Whether at least half of the stack samples are in Pillow's resize."""
    return 2 * total(stacks, lambda stack: stack.leaf.endswith("PIL/Image.py:resize")) >= total(stacks)
