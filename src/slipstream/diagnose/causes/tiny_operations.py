"""So many small operators that launching them, from Python, takes longer than what they compute."""

from __future__ import annotations

from slipstream.diagnose.anatomy import compute_phases_ms, is_compute_bound
from slipstream.diagnose.gain import gain_without
from slipstream.diagnose.hotspots import hottest_line, watched_stacks
from slipstream.diagnose.training import main_model
from slipstream.diagnose.wording import ms, percent
from slipstream.records import Anatomy, Finding, Session, Site, Summary

FEWEST = 300  # operators in a step; small models are small and not ill
TINY_MS = 0.020  # mean time of an operator under the profiler
LAUNCH_MS = 0.008  # what one operator costs in Python, dispatcher and autograd before it computes anything
OTHER_KIND = 3.0  # times the step: so much longer it is not for an operator that is quicker than that
LEAST_SHARE = 0.4
SAVED = 0.6


def find(session: Session, summary: Summary) -> list[Finding]:
    anatomy, model = session.anatomy, main_model(session)
    if anatomy is None or not is_compute_bound(summary) or (model is not None and model.is_compiled):
        return []
    if anatomy.num_operators * LAUNCH_MS > OTHER_KIND * summary.step_ms:
        return []  # the step that was taken apart was one of the few long ones: it says nothing of the usual one
    mean_ms = _mean_ms(anatomy)
    computing_ms = summary.phases.get("forward", 0.0) + summary.phases.get("backward", 0.0)
    launching_ms = min(anatomy.num_operators * LAUNCH_MS, computing_ms)
    if anatomy.num_operators < FEWEST or mean_ms > TINY_MS or launching_ms < LEAST_SHARE * compute_phases_ms(summary):
        return []
    return [
        Finding(
            cause="tiny_operations",
            title="Thousands of tiny operations" if anatomy.num_operators >= 1000 else "Hundreds of tiny operations",
            evidence=f"A step runs {anatomy.num_operators} operators of {1000 * mean_ms:.0f} µs on average; launching "
            f"them takes about {percent(launching_ms / summary.step_ms)} of its {ms(summary.step_ms)} ms.",
            predicted_gain=gain_without(summary.step_ms, launching_ms, SAVED),
            change="one operator over the whole tensor in place of the loop, or model = torch.compile(model)",
            site=_site(session),
            techniques=["compile"],
        )
    ]


def _mean_ms(anatomy: Anatomy) -> float:
    count = sum(operator.count for operator in anatomy.operators)
    return sum(operator.self_cpu_ms for operator in anatomy.operators) / count if count else 0.0


def _site(session: Session) -> Site | None:
    """The user's line in the forward pass that most samples were on; else the line that called the model."""
    hot = hottest_line(session, watched_stacks(session, "main", ("forward",)))
    model = main_model(session)
    return hot.site if hot else model.site if model else None
