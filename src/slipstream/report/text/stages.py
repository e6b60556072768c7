"""What the input phase and the phase `other` spend their time on, by stage and by the user's hottest line.

Shares come from counted stack samples. They are applied to measured times, because a sample has no duration.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec

from slipstream.diagnose.hotspots import FEWEST_SAMPLES, total, watched_stacks
from slipstream.diagnose.input_path import input_path
from slipstream.diagnose.steps.typical_step import sampled_step
from slipstream.records import Session, StackCount


class StageLine(msgspec.Struct, frozen=True):
    """A line of the user's code and its part of a stage."""

    file: str
    line: int
    expression: str
    ms: float


class StageShare(msgspec.Struct, frozen=True):
    stage: str
    ms: float
    share: float
    line: StageLine | None = None  # the hottest of the user's lines, if there is one


class StageTable(msgspec.Struct, frozen=True):
    """`total_ms` is the time of the main process in a step, or of one worker on the batches of a step."""

    phase: str
    total_ms: float
    num_samples: int
    num_workers: int  # 0 if batches are built in the main process
    stages: list[StageShare]
    # Whether `total_ms` is the average over all steps. If so, a few long steps take much of the time, and the usual
    # step would be misleading.
    is_average: bool = False


def input_stages(session: Session) -> StageTable | None:
    """Returns the stages in which a step's batches are built, in the workers or in the main process."""
    path = input_path(session, session.summary) if session.summary else None
    if path is None or total(path.stacks) < FEWEST_SAMPLES:
        return main_stages(session, "input")
    return _table("input", path.stacks, path.work_ms, path.loader.num_workers)


def main_stages(session: Session, phase: str) -> StageTable | None:
    """Returns the stages of a phase of the main process, from the samples in the watched blocks."""
    phase_ms = session.summary.phases.get(phase, 0.0) if session.summary else 0.0
    is_average = False
    if phase == "other" and session.summary:
        step = sampled_step(session, session.summary.step_ms, session.summary.phases)
        phase_ms, is_average = step.other_ms, step.is_average
    stacks = watched_stacks(session, "main", (phase,))
    found = _table(phase, stacks, phase_ms, 0) if total(stacks) >= FEWEST_SAMPLES and phase_ms > 0 else None
    return msgspec.structs.replace(found, is_average=is_average) if found else None


def _table(phase: str, stacks: Iterable[StackCount], total_ms: float, num_workers: int) -> StageTable:
    by_stage: dict[str, Counter[tuple[str, int]]] = defaultdict(Counter)
    expressions: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for stack in stacks:
        by_stage[stack.stage][stack.file, stack.line] += stack.count
        expressions[stack.file, stack.line][stack.expression] += stack.count
    num_samples = sum(lines.total() for lines in by_stage.values())
    shares = [
        _stage(stage, lines, total_ms / num_samples, num_samples, expressions)
        for stage, lines in by_stage.items()
        if num_samples
    ]
    shares.sort(key=lambda share: -share.ms)
    return StageTable(phase, total_ms, num_samples, num_workers, shares)


def _stage(
    stage: str,
    lines: Counter[tuple[str, int]],
    sample_ms: float,
    num_samples: int,
    expressions: dict[tuple[str, int], Counter[str]],
) -> StageShare:
    count = lines.total()
    hottest = next((place for place, _ in lines.most_common() if place[0]), None)
    line = None
    if hottest is not None:
        [(expression, _)] = expressions[hottest].most_common(1)
        line = StageLine(hottest[0], hottest[1], expression, lines[hottest] * sample_ms)
    return StageShare(stage, count * sample_ms, count / num_samples, line)
