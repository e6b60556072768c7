"""How far gradients and buffers may lie from the base's before something other than rounding must be to blame. Bands
have floors, measured, and grow with what twins that are right by construction differ by. See docs/numerics.md."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from slipstream.verify.gaps import Gaps

SMALL = 1e-3  # beside the largest gradient: may be rounding, where no twin tells


class Band(msgspec.Struct, frozen=True):
    """Errors are relative: 0.01 is one percent of the base's norm. A limit is a floor, or `times` the twin's error."""

    each: float  # floor for one tensor
    each_times: float
    typical: float  # floor for the median tensor: what is off everywhere, if only a little
    typical_times: float
    together: float  # floor for all as one
    together_times: float
    norm: float  # how far the norm of all as one may be from the base's
    buffer: float  # floor for one buffer
    negligible: float  # beside the largest gradient


# Other rounding: measured 1e-7 to 1e-5, but 5e-3 where a single ReLU flips, in the candidate and not in the twin. The
# loss and the buffers do not jump when a ReLU flips: they are held to more.
REORDERED = Band(3e-2, 30.0, 5e-3, 30.0, 1e-2, 30.0, 3e-3, 1e-3, 1e-6)
# Lower precision: measured 0.005 in a transformer, 0.3 in a fresh ResNet of 20 layers, where the coarse twin shows 0.2.
# Dropout switched off: 0.25 to 0.6.
APPROXIMATE = Band(0.2, 5.0, 0.12, 4.0, 0.12, 2.5, 0.03, 0.1, 1e-4)
# Lower precision, and no coarse twin to say what it does to this model: beyond this no precision is to blame.
NO_PRECISION = Band(2.0, 5.0, 0.8, 4.0, 0.8, 2.5, 0.08, 0.5, 1e-4)


def find_gradient_fault(band: Band, found: Mapping[int, Gaps], twins: list[Mapping[int, Gaps]]) -> str:
    """What is wrong with the gradients, as half a sentence, or ""."""
    worst = _Worst()
    for step, gaps in sorted(found.items()):
        for twin in twins:
            worst.add(twin.get(step))
        for gap in gaps.tensors.values():
            limit = max(band.each, band.each_times * worst.each.get(gap.name, 0.0))
            if gap.is_broken:
                return f"the gradient of {gap.name} is not finite, or missing, at step {step}, and the base's is there"
            if gap.error > limit:
                return _off(f"the gradient of {gap.name} is", gap.error, step, limit)
        if abs(gaps.norm_ratio - 1.0) > band.norm + worst.together**2:
            return f"gradients are {gaps.norm_ratio:.2f} times the base's at step {step}"
        for what, error, floor, times, known in (
            ("gradients are typically", gaps.typical, band.typical, band.typical_times, worst.typical),
            ("gradients are together", gaps.together, band.together, band.together_times, worst.together),
        ):
            if error > max(floor, times * known):
                return _off(what, error, step, max(floor, times * known))
        # What was let pass here grows from step to step, as it would in a twin
        worst.add(gaps)
    return ""


def find_buffer_fault(band: Band, found: Mapping[int, Gaps], twins: list[Mapping[int, Gaps]]) -> str:
    worst = _Worst()
    for step, gaps in sorted(found.items()):
        for twin in twins:
            worst.add(twin.get(step))
        for gap in gaps.tensors.values():
            limit = max(band.buffer, band.each_times * worst.each.get(gap.name, 0.0))
            if gap.is_broken:
                return f"the buffer {gap.name} is not finite, or missing, at step {step}, and the base's is there"
            if gap.error > (0.0 if gap.is_count else limit):
                return _off(f"the buffer {gap.name} is", gap.error, step, limit)
    return ""


def worst_error(found: Mapping[int, Gaps]) -> float:
    """Of one gradient at the first step; those that are nothing beside the largest may be rounding and do not count."""
    if not found:
        return 0.0
    gaps = found[min(found)].tensors.values()
    largest = max((gap.norm for gap in gaps), default=0.0)
    return max((gap.error for gap in gaps if gap.norm >= SMALL * largest), default=0.0)


def _off(what: str, error: float, step: int, limit: float) -> str:
    return f"{what} off by {percent(error)} at step {step}, where at most {percent(limit)} can be rounding"


def percent(share: float) -> str:
    if share < 5e-4:
        return f"{share:.0e}" if share else "nothing"
    return f"{share:.0%}" if share >= 0.095 else f"{100 * share:.1g}%"


class _Worst:
    """What was seen to be rounding up to a step. Errors feed on each other from step to step, so it never narrows."""

    def __init__(self) -> None:
        self.each: dict[str, float] = {}
        self.typical = 0.0
        self.together = 0.0

    def add(self, gaps: Gaps | None) -> None:
        if gaps is None:
            return
        for name, gap in gaps.tensors.items():
            if not gap.is_broken:
                self.each[name] = max(self.each.get(name, 0.0), gap.error)
        self.typical = max(self.typical, gaps.typical)
        self.together = max(self.together, gaps.together)
