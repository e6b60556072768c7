"""Selects the steps from which the typical step of a check is computed: watched steps that were not disturbed.

A step is disturbed if other programs used too many cores during the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from slipstream.diagnose.foreign_load import foreign_cores, is_disturbed
from slipstream.diagnose.steps.selection import alike, blocks_of, num_workers, training_loader, watched_kinds
from slipstream.records import Block, IndexEntry, Session, Step, Summary

# Phases are averaged over the middle half of the steps. Of eight steps, this half leaves out the two shortest and the
# two longest, so two disturbed steps that were not noticed do not change the phases.
FEWEST_STEPS: Final = 8


def undisturbed(session: Session) -> list[Step]:
    """The settled steps that were not disturbed. All settled steps if none was disturbed, or if this was not measured.

    With k workers every k-th step waits for all workers. If one step of a group of k consecutive steps was disturbed,
    the whole group is left out.
    """
    settled = settled_steps(session)
    disturbed = {step.index for step in settled if is_disturbed(session, step)}
    if not disturbed:
        return settled
    steps = [step for step in settled if not step.is_first_of_epoch] or settled
    groups = consecutive_groups(steps, max(1, num_workers(session)))
    return [step for group in groups if disturbed.isdisjoint(step.index for step in group) for step in group]


def counted_steps(session: Session) -> list[Step]:
    """The undisturbed steps. If there are none, all settled steps.

    Disturbed steps show phases and causes, but no report shows their median as the length of a step (`has_headline`).
    """
    return undisturbed(session) or settled_steps(session)


def consecutive_groups(steps: Sequence[Step], size: int) -> list[list[Step]]:
    """Groups of `size` consecutive steps. A group does not span two blocks.

    If no group is complete, returns all steps as one group.
    """
    whole: list[list[Step]] = []
    for _, members in groupby(steps, key=lambda step: step.block):
        block = list(members)
        whole += [block[at : at + size] for at in range(0, len(block) - size + 1, size)]
    return whole or ([list(steps)] if steps else [])


def foreign_cores_during(session: Session, steps: Sequence[Step]) -> float:
    """The cores that other programs used during these steps, on average over their time; 0 if this was not measured."""
    seen = [(foreign_cores(session, step.start_ns, step.end_ns), step.step_ms) for step in steps]
    total_ms = sum(ms for cores, ms in seen if cores is not None)
    return sum(cores * ms for cores, ms in seen if cores is not None) / total_ms if total_ms else 0.0


def settled_steps(session: Session) -> list[Step]:
    """The watched steps, without the first steps of a block that follows a block with free data or a profiled step.

    These first steps use batches that the workers have finished in advance.
    """
    kept = {block.index for block in blocks_of(session, ("kept", "drain", "dissect"))}
    loader = training_loader(session)
    buffered = loader.num_workers * (loader.prefetch_factor or 2) if loader else 0
    settled: list[Step] = []
    for block in blocks_of(session, watched_kinds(session)):
        steps = alike(session, [step for step in session.steps if step.block == block.index])
        follows_rest = _previous(session, block) in kept
        settled += steps[buffered:] if follows_rest and len(steps) >= 2 * buffered else steps
    return settled


def has_headline(summary: Summary | IndexEntry) -> bool:
    """Whether enough undisturbed steps were seen to say how long a step takes and what limits it."""
    num_steps = summary.num_steps if summary.num_undisturbed is None else summary.num_undisturbed
    return num_steps >= FEWEST_STEPS


def _previous(session: Session, block: Block) -> int:
    earlier = [one for one in session.blocks if one.end_ns <= block.start_ns]
    return max(earlier, key=lambda one: one.end_ns).index if earlier else -1
