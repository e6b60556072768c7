"""cuDNN uses its default algorithm for every convolution although shapes never change. cuDNN exists on CUDA only."""

from __future__ import annotations

from slipstream.diagnose.gain import gain_without
from slipstream.diagnose.operator_shares import compute_phases_ms, is_compute_bound, share_named
from slipstream.diagnose.steps.selection import is_on_cuda, main_model, watched_steps
from slipstream.numbers import in_percent
from slipstream.records import Finding, Session, Summary

LEAST_SHARE = 0.3
SAVED = 0.15


def find(session: Session, summary: Summary) -> list[Finding]:
    facts, model = session.environment.torch, main_model(session)
    if not is_on_cuda(session) or facts is None or facts.cudnn_benchmark or facts.deterministic:
        return []
    share = share_named(session, "conv")
    if share < LEAST_SHARE or not is_compute_bound(summary) or not _has_fixed_shapes(session):
        return []
    return [
        Finding(
            cause="no_autotune",
            title="cuDNN's autotuner is off",
            evidence=f"Convolutions are {in_percent(share)} of the step's compute, the batch keeps its size, "
            "and cudnn.benchmark is off.",
            predicted_gain=gain_without(summary.step_ms, compute_phases_ms(summary) * share, SAVED),
            change="torch.backends.cudnn.benchmark = True",
            site=model.site if model else None,
            techniques=["cudnn_benchmark"],
        )
    ]


def _has_fixed_shapes(session: Session) -> bool:
    """Whether nearly all steps have the same number of samples. The last batch of an epoch may be smaller."""
    samples = [step.samples for step in watched_steps(session)]
    return bool(samples) and samples.count(max(set(samples), key=samples.count)) >= 0.9 * len(samples)
