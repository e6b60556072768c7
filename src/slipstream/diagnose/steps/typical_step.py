"""Computes the typical step: a median that is robust against a loader's bursts, with its interval and its phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from slipstream.diagnose.statistics import fmean, median, median_interval, middle_half
from slipstream.diagnose.steps.undisturbed import FEWEST_STEPS, consecutive_groups, counted_steps
from slipstream.records import PHASES, Session, Step

UNEVEN = 1.5  # Steps are uneven if the average step is longer than this many usual steps.


class TypicalStep(msgspec.Struct, frozen=True):
    num_steps: int
    step_ms: float
    low_ms: float
    high_ms: float
    mean_ms: float  # Mean length of the steps. Unlike the median, it contains rare long waits.
    phases: dict[str, float]  # Phases that add up to step_ms
    device_phases: dict[str, float] | None
    host_phases: dict[str, float] | None  # Known if `phases` are those of the device. They add up to step_ms too.
    device_idle: dict[str, float] | None
    samples: float
    num_batches: float


def typical_step(steps: Sequence[Step], group_size: int = 1) -> TypicalStep | None:
    """Return the typical step, or None if there are no steps.

    With k workers every k-th step waits for all workers, so the median is taken over the means of groups of k
    consecutive steps (`group_size`). The first steps of epochs wait for workers to start, so they are left out if other
    steps remain.
    """
    chosen = [step for step in steps if not step.is_first_of_epoch] or list(steps)
    groups = consecutive_groups(chosen, max(1, group_size))
    if not groups:
        return None
    means = [fmean([step.step_ms for step in group]) for group in groups]
    low_ms, high_ms = median_interval(means)
    step_ms = median(means)
    by_length = sorted(range(len(groups)), key=means.__getitem__)
    middle = [step for at in middle_half(by_length) for step in groups[at]]
    return TypicalStep(
        num_steps=len(chosen),
        step_ms=step_ms,
        low_ms=low_ms,
        high_ms=high_ms,
        mean_ms=fmean([step.step_ms for step in chosen]),
        phases=_scaled([step.phases for step in middle], step_ms),
        device_phases=_device_phases(middle),
        host_phases=_host_phases(middle, step_ms),
        device_idle=_device_idle(middle),
        samples=fmean([step.samples for step in middle]),
        num_batches=fmean([step.num_batches for step in chosen]),
    )


class SampledStep(msgspec.Struct, frozen=True):
    step_ms: float
    other_ms: float
    is_average: bool = False

    @property
    def words(self) -> str:
        """The words that follow a number of milliseconds and name the step."""
        return "a step on average" if self.is_average else "a step"


def sampled_step(session: Session, step_ms: float, phases: Mapping[str, float]) -> SampledStep:
    """The step that stack samples describe: the usual step or, if steps are uneven, the average step.

    Samples are spread over the whole time. If a few long steps take a large part of the time, samples describe the
    average step. The same holds if only the phase `other` is uneven. For example, the usual step does not contain a
    line that draws a figure in every hundredth step. `step_ms` and `phases` describe the usual step.
    """
    steps = counted_steps(session)
    chosen = [step for step in steps if not step.is_first_of_epoch] or steps
    usual_ms = phases.get("other", 0.0)
    if len(chosen) < FEWEST_STEPS:
        return SampledStep(step_ms, usual_ms)
    mean_ms = fmean([step.step_ms for step in chosen])
    other_ms = fmean([step.phases.get("other", 0.0) for step in chosen])
    if mean_ms <= UNEVEN * step_ms and other_ms <= UNEVEN * usual_ms:
        return SampledStep(step_ms, usual_ms)
    return SampledStep(mean_ms, other_ms, is_average=True)


def _scaled(phases: Sequence[dict[str, float]], total_ms: float) -> dict[str, float]:
    means: dict[str, float] = {phase: fmean([max(0.0, one.get(phase, 0.0)) for one in phases]) for phase in PHASES}
    seen_ms = sum(means.values())
    if seen_ms <= 0:
        return {phase: total_ms if phase == "other" else 0.0 for phase in PHASES}
    scaled = {phase: ms * total_ms / seen_ms for phase, ms in means.items()}
    # Rounding must not make the sum differ from the step in the last digit.
    longest = max(scaled, key=scaled.__getitem__)
    scaled[longest] += total_ms - sum(scaled.values())
    return scaled


def _host_phases(steps: Sequence[Step], step_ms: float) -> dict[str, float] | None:
    """The host's phases, scaled to the step's length.

    The host runs ahead of the device for some steps and then waits, so no single step is typical. Over many steps, host
    and device take equally long.
    """
    known = [step.host_phases for step in steps if step.host_phases]
    return _scaled(known, step_ms) if known else None


def _device_idle(steps: Sequence[Step]) -> dict[str, float] | None:
    known = [step.device_idle for step in steps if step.device_idle is not None]
    if not known:
        return None
    return {phase: fmean([idle.get(phase, 0.0) for idle in known]) for phase in PHASES}


def _device_phases(steps: Sequence[Step]) -> dict[str, float] | None:
    known = [step.device_phases for step in steps if step.device_phases]
    if not known:
        return None
    total_ms = median([sum(phases.values()) for phases in known])
    return _scaled(known, total_ms)
