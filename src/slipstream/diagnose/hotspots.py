"""Attributes a phase to the user's lines, by counted stack samples.

Sample counts give shares. The milliseconds come from the seams.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

import msgspec

from slipstream.diagnose.steps.selection import blocks_of, watched_kinds
from slipstream.records import Session, Site, StackCount

FEWEST_SAMPLES = 12  # A share of fewer samples is not meaningful.
NEAR_LINES = 20  # A comprehension that is at most this far from a function's line belongs to that function.


class Hotspot(msgspec.Struct, frozen=True):
    site: Site
    count: int
    expression: str


def watched_stacks(session: Session, role: str, phases: Collection[str] | None = None) -> list[StackCount]:
    """Returns the samples of the unmodified script in the processes with this role.

    Samples of workers come from all blocks, because workers do the same work in every block and do not know the block.
    """
    wanted = {block.index for block in blocks_of(session, watched_kinds(session))}
    return [
        stack
        for stack in session.stacks
        if stack.role == role
        and (role == "worker" or stack.block in wanted)
        and (phases is None or stack.phase in phases)
    ]


def total(stacks: Sequence[StackCount], wanted: Callable[[StackCount], bool] = lambda _: True) -> int:
    return sum(stack.count for stack in stacks if wanted(stack))


def hottest_function(stacks: Sequence[StackCount]) -> list[StackCount]:
    """The samples of the user's function that occurs in most samples, with its comprehensions and lambdas."""
    functions: dict[tuple[str, str], list[StackCount]] = {}
    for stack in stacks:
        if stack.file:
            functions.setdefault((stack.file, _owner(stack, stacks)), []).append(stack)
    return max(functions.values(), key=total, default=[])


def _owner(stack: StackCount, stacks: Sequence[StackCount]) -> str:
    """The name of the sample's function; for a comprehension or lambda, the function whose sampled line is nearest."""
    if not stack.function.startswith("<") or stack.function == "<module>":
        return stack.function
    named = [one for one in stacks if one.file == stack.file and not one.function.startswith("<")]
    nearest = min(named, key=lambda one: abs(one.line - stack.line), default=stack)
    return nearest.function if abs(nearest.line - stack.line) <= NEAR_LINES else stack.function


def hottest_line(session: Session, stacks: Sequence[StackCount]) -> Hotspot | None:
    counts: Counter[tuple[str, int]] = Counter()
    for stack in stacks:
        if stack.file:
            counts[stack.file, stack.line] += stack.count
    if not counts:
        return None
    (file, line), count = counts.most_common(1)[0]
    there = [stack for stack in stacks if (stack.file, stack.line) == (file, line)]
    most = max(there, key=lambda stack: stack.count)
    # A sample of a loop may fall on the jump back, whose position is some name on the line. The longest expression
    # shows most of the line.
    whole = [stack for stack in session.stacks if (stack.file, stack.line) == (file, line)]
    longest = max((stack.expression for stack in [*there, *whole]), key=len)
    text = next((site.text for site in session.sites if (site.file, site.line) == (file, line)), longest)
    return Hotspot(Site(file, line, text or longest, most.function), count, most.expression)


def phase_ms_of(
    session: Session, phases_ms: dict[str, float], wanted: Callable[[StackCount], bool]
) -> tuple[float, list[StackCount]]:
    """The milliseconds per step that the wanted samples of the main process stand for, and these samples.

    `phases_ms` contains the milliseconds of each phase that is searched.
    """
    chosen: list[StackCount] = []
    ms = 0.0
    for phase, phase_ms in phases_ms.items():
        stacks = watched_stacks(session, "main", (phase,))
        count = total(stacks)
        if count:
            ms += phase_ms * total(stacks, wanted) / count
            chosen += [stack for stack in stacks if wanted(stack)]
    return ms, chosen
