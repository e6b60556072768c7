"""Which ceiling binds the step. Says "unknown" rather than guess."""

from __future__ import annotations

from slipstream.records import Bound, Ceilings

COMPUTE_PHASES = ("transfer", "forward", "backward", "optimizer")


def find_bound(step_ms: float, phases: dict[str, float], ceilings: Ceilings, num_workers: int) -> Bound:
    if step_ms <= 0:
        return "unknown"
    wait_ms = phases.get("input", 0.0)
    busy_ms = sum(phases.get(phase, 0.0) for phase in COMPUTE_PHASES)
    other_ms = phases.get("other", 0.0)
    if other_ms > wait_ms and other_ms > busy_ms:
        return "other"
    if num_workers > 0 and _cores_bind(step_ms, ceilings):
        return "cores"
    if wait_ms > busy_ms + other_ms:
        return "input"
    # With workers a wait shows that input is the slower side, however short the wait itself is.
    slower = (
        ceilings.input_ms is not None
        and ceilings.compute_ms is not None
        and ceilings.input_ms > 1.05 * ceilings.compute_ms
    )
    if num_workers > 0 and slower and wait_ms > 0.1 * step_ms:
        return "input"
    return "compute"


def _cores_bind(step_ms: float, ceilings: Ceilings) -> bool:
    """Neither side alone explains the step, but both together on these cores do."""
    if ceilings.shared_ms is None or ceilings.compute_ms is None or ceilings.input_ms is None:
        return False
    alone_ms = max(ceilings.compute_ms, ceilings.input_ms)
    return ceilings.shared_ms > 1.05 * alone_ms and step_ms > 1.08 * alone_ms and step_ms > 0.75 * ceilings.shared_ms
