"""Tolerances for gradients and buffers: how far they may be from the base's before rounding cannot explain it.

Tolerances have measured floors, and grow with the deviations of controls that are correct by construction. See
docs/numerics.md.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from slipstream.verify.tensor_distance import TensorDistances

SMALL = 1e-3  # relative to the largest gradient; a smaller one may be rounding if no control shows otherwise

DRIFT_TIMES = 3.0  # times the error of the gradients, in the buffers of later steps


class Tolerance(msgspec.Struct, frozen=True):
    """Errors are relative: 0.01 is one percent of the base's norm. A limit is a floor, or `times` the control's
    error.
    """

    each: float  # floor for one tensor
    each_times: float
    typical: float  # floor for the median tensor, which shows small errors in all tensors
    typical_times: float
    together: float  # floor for all tensors as one vector
    together_times: float
    norm: float  # how far the norm of all tensors as one vector may be from the base's
    buffer: float  # floor for one buffer
    negligible: float  # relative to the largest gradient
    later: float  # factor of the floors in later steps, because the weights are no longer equal then


# Different rounding stays far below these floors, except for a single ReLU that flips in the candidate and not in the
# control. The loss and the buffers do not jump when a ReLU flips, so their tolerances are narrower.
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
# The effect of lower precision differs between models, and the coarse control shows it. The floors are low enough to
# detect disabled dropout (tests/verify/test_never_wrong.py).
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
# For lower precision without a coarse control that shows its effect on this model. No precision explains more than
# this.
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
        # Deviations that passed here grow from step to step, as they would in a control.
        worst.add(gaps)
    return ""


def find_buffer_fault(
    band: Tolerance,
    found: Mapping[int, TensorDistances],
    controls: list[Mapping[int, TensorDistances]],
    gradients: Mapping[int, TensorDistances],
) -> str:
    """Judges the buffers. Deviations that the gradients were allowed are in the weights from the next step on."""
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
    """The error of the worst gradient at the first step. Gradients that are negligible beside the largest do not
    count.
    """
    if not found:
        return 0.0
    gaps = found[min(found)].tensors.values()
    largest = max((gap.norm for gap in gaps), default=0.0)
    return max((gap.error for gap in gaps if gap.norm >= SMALL * largest), default=0.0)


def _off(what: str, error: float, step: int, limit: float) -> str:
    return f"{what} off by {percent(error)} at step {step}, where rounding explains at most {percent(limit)}"


def percent(share: float) -> str:
    if share < 5e-4:
        return f"{share:.0e}"
    return f"{share:.0%}" if share >= 0.095 else f"{100 * share:.1g}%"


class _Worst:
    """The largest errors of the controls up to a step. Errors accumulate from step to step, so these never decrease."""

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
