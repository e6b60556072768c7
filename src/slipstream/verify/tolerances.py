"""How far gradients and buffers may lie from the base's before something other than rounding must be to blame. Bands
have floors, measured, and grow with what twins that are right by construction differ by. See docs/numerics.md."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from slipstream.verify.tensor_distance import TensorDistances

SMALL = 1e-3  # beside the largest gradient: may be rounding, where no twin tells

DRIFT_TIMES = 3.0  # of the gradients' error, in the buffers of the steps after


class Tolerance(msgspec.Struct, frozen=True):
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
    later: float  # floors of later steps, in those of the first: weights are no longer the same then


# Other rounding stays far below these floors, but for a single ReLU that flips in the candidate and not in the twin.
# The loss and the buffers do not jump when a ReLU flips: they are held to more.
REORDERED = Tolerance(
    each=0.03,
    each_times=30.0,
    typical=0.005,
    typical_times=30.0,
    together=0.01,
    together_times=30.0,
    norm=0.003,
    buffer=0.001,
    negligible=1e-6,
    later=10.0,
)
# Lower precision differs from model to model, and the coarse twin with it. Floors are low enough for dropout switched
# off to stand out (tests/verify/test_never_wrong.py).
APPROXIMATE = Tolerance(
    each=0.2,
    each_times=5.0,
    typical=0.12,
    typical_times=4.0,
    together=0.12,
    together_times=2.5,
    norm=0.03,
    buffer=0.1,
    negligible=1e-4,
    later=1.0,
)
# Lower precision, and no coarse twin to say what it does to this model: beyond this no precision is to blame.
NO_PRECISION = msgspec.structs.replace(APPROXIMATE, each=2.0, typical=0.8, together=0.8, norm=0.08, buffer=0.5)


def find_gradient_fault(
    band: Tolerance, found: Mapping[int, TensorDistances], controls: list[Mapping[int, TensorDistances]]
) -> str:
    """What is wrong with the gradients, as half a sentence, or ""."""
    worst = _Worst()
    for step, gaps in sorted(found.items()):
        for control in controls:
            worst.add(control.get(step))
        wider = 1.0 if step == min(found) else band.later
        for gap in gaps.tensors.values():
            limit = max(wider * band.each, band.each_times * worst.each.get(gap.name, 0.0))
            if gap.trouble:
                return f"the gradient of {gap.name} {gap.trouble}, at step {step}"
            if gap.error > limit:
                return _off(f"the gradient of {gap.name} is", gap.error, step, limit)
        if abs(gaps.norm_ratio - 1.0) > band.norm + worst.together**2:
            return f"gradients are {gaps.norm_ratio:.2f} times the base's at step {step}"
        for what, error, floor, times, known in (
            ("gradients are typically", gaps.typical, band.typical, band.typical_times, worst.typical),
            ("gradients are together", gaps.together, band.together, band.together_times, worst.together),
        ):
            limit = max(wider * floor, times * known)
            if error > limit:
                return _off(what, error, step, limit)
        # What was let pass here grows from step to step, as it would in a twin
        worst.add(gaps)
    return ""


def find_buffer_fault(
    band: Tolerance,
    found: Mapping[int, TensorDistances],
    controls: list[Mapping[int, TensorDistances]],
    gradients: Mapping[int, TensorDistances],
) -> str:
    """After the gradients: what they were allowed to differ by is in the weights from the next step on."""
    worst = _Worst()
    drift = 0.0
    for step, gaps in sorted(found.items()):
        for control in controls:
            worst.add(control.get(step))
        for gap in gaps.tensors.values():
            limit = max(band.buffer, drift, band.each_times * worst.each.get(gap.name, 0.0))
            if gap.trouble:
                return f"the buffer {gap.name} {gap.trouble}, at step {step}"
            if gap.error > (0.0 if gap.is_count else limit):
                return _off(f"the buffer {gap.name} is", gap.error, step, limit)
        if step in gradients:
            drift = max(drift, DRIFT_TIMES * gradients[step].together)
    return ""


def worst_error(found: Mapping[int, TensorDistances]) -> float:
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
        return f"{share:.0e}"
    return f"{share:.0%}" if share >= 0.095 else f"{100 * share:.1g}%"


class _Worst:
    """What was seen to be rounding up to a step. Errors feed on each other from step to step, so it never narrows."""

    def __init__(self) -> None:
        self.each: dict[str, float] = {}
        self.typical = 0.0
        self.together = 0.0

    def add(self, gaps: TensorDistances | None) -> None:
        if gaps is None:
            return
        for name, gap in gaps.tensors.items():
            if not gap.trouble:
                self.each[name] = max(self.each.get(name, 0.0), gap.error)
        self.typical = max(self.typical, gaps.typical)
        self.together = max(self.together, gaps.together)
