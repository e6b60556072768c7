"""Shares of the profiled step, by kind of operator. The step's milliseconds include the profiler's overhead."""

from __future__ import annotations

from slipstream.diagnose.summary import COMPUTE_PHASES
from slipstream.records import Operator, Session, Summary


def self_ms(operator: Operator) -> float:
    """The operator's own time on the device if it ran there, else on the host."""
    return operator.self_device_ms or operator.self_cpu_ms


def operators_ms(session: Session) -> float:
    anatomy = session.anatomy
    return sum(self_ms(operator) for operator in anatomy.operators) if anatomy else 0.0


def share_named(session: Session, *parts: str) -> float:
    """The share of the operators' time that is spent in operators whose name contains one of these parts."""
    whole = operators_ms(session)
    if session.anatomy is None or whole <= 0:
        return 0.0
    chosen = [one for one in session.anatomy.operators if any(part in one.name for part in parts)]
    return sum(self_ms(operator) for operator in chosen) / whole


def share_of_class(session: Session, name: str) -> float:
    anatomy = session.anatomy
    whole = sum(anatomy.classes_ms.values()) if anatomy else 0.0
    return anatomy.classes_ms.get(name, 0.0) / whole if anatomy and whole > 0 else 0.0


def compute_phases_ms(summary: Summary) -> float:
    """The time of forward, backward and optimizer in a step, which faster operators can reduce."""
    phases = summary.device_phases or summary.phases
    return sum(phases.get(phase, 0.0) for phase in COMPUTE_PHASES if phase != "transfer")


def is_compute_bound(summary: Summary) -> bool:
    return compute_phases_ms(summary) >= 0.5 * summary.step_ms
