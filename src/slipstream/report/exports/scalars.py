"""A session as named numbers for experiment trackers: curves over steps, single values, facts."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from slipstream.diagnose.steps.selection import watched_steps
from slipstream.records import Session
from slipstream.report.text.check import script_of, verdict

MOST_POINTS = 2000  # largest number of points of a curve


class Point(msgspec.Struct, frozen=True):
    name: str
    step: int
    value: float


def curves(session: Session) -> Iterator[Point]:
    """Yields the points of the observed steps in order, then the points of the memory."""
    steps = watched_steps(session)
    for step in steps[:: max(1, -(-len(steps) // MOST_POINTS))]:
        yield Point("step/ms", step.index, step.step_ms)
        for phase, ms in step.phases.items():
            yield Point(f"phase/{phase}_ms", step.index, ms)
    for one in session.memory[:: max(1, -(-len(session.memory) // MOST_POINTS))]:
        yield Point("memory/process_bytes", one.step, float(one.resident_bytes))
        if one.device_bytes:
            yield Point("memory/device_bytes", one.step, float(one.device_bytes))


def values(session: Session) -> dict[str, float]:
    """Returns the numbers at the top of a report. A tuning has figures of its check and of its races, under different
    names."""
    of_check = "check" if session.tuning else "summary"
    found: dict[str, float | None] = {}
    if summary := session.summary:
        found |= {f"{of_check}/step_ms": summary.step_ms, f"{of_check}/samples_per_s": summary.samples_per_s}
        found |= {f"{of_check}/{phase}_ms": ms for phase, ms in summary.phases.items()}
        found |= {"ceiling/compute_ms": summary.ceilings.compute_ms, "ceiling/input_ms": summary.ceilings.input_ms}
    for finding in session.findings:
        found.setdefault(f"finding/{finding.cause}", finding.predicted_gain)
    if tuning := session.tuning:
        found |= {"tune/base_step_ms": tuning.base_step_ms, "tune/techniques": float(len(tuning.recipe.choices))}
        if tuning.total:
            found |= {"tune/ratio": tuning.total.ratio, "tune/low": tuning.total.low, "tune/high": tuning.total.high}
    return {name: float(value) for name, value in found.items() if value is not None}


def facts(session: Session) -> dict[str, str]:
    """Returns the script, the machine and the software with which the numbers were measured."""
    environment = session.environment
    told = {
        "command": session.command,
        "script": script_of(session),
        "created": session.created,
        "commit": str(session.revision or ""),
        "cpu": environment.cpu,
        "gpus": ", ".join(gpu.name for gpu in environment.gpus),
        "torch": environment.torch.version if environment.torch else "",
        "python": environment.python,
        "slipstream": environment.slipstream,
        "recipe": str(session.tuning.recipe) if session.tuning else "",
        "verdict": verdict(session),
    }
    return {name: value for name, value in told.items() if value}
