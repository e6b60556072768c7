"""A layer has a dimension that the tensor cores must pad. This is known to matter on accelerators only."""

from __future__ import annotations

from slipstream.diagnose.gain import gain_without
from slipstream.diagnose.operator_shares import compute_phases_ms, is_compute_bound, share_of_class
from slipstream.diagnose.steps.selection import is_on_accelerator, main_model
from slipstream.numbers import in_percent
from slipstream.records import Finding, Session, Summary

LEAST_SHARE = 0.1
SAVED = 0.3


def find(session: Session, summary: Summary) -> list[Finding]:
    facts, anatomy, model = session.environment.torch, session.anatomy, main_model(session)
    if not is_on_accelerator(session) or facts is None or anatomy is None or not is_compute_bound(summary):
        return []
    if not (facts.has_fast_bf16 or facts.has_fast_fp16 or facts.has_tf32) or not anatomy.misalignments:
        return []
    share = min(1.0, sum(one.share for one in anatomy.misalignments))
    worst = max(anatomy.misalignments, key=lambda one: one.share)
    contracting_ms = compute_phases_ms(summary) * share_of_class(session, "contraction")
    if share < LEAST_SHARE:
        return []
    return [
        Finding(
            cause="misaligned_shapes",
            title="A dimension does not fit the tensor cores",
            evidence=f"{worst.class_name} {worst.path} has {worst.dimension}={worst.size}; together such layers are "
            f"{in_percent(share)} of the time in tensor contractions.",
            predicted_gain=gain_without(summary.step_ms, contracting_ms * share, SAVED),
            change=f"{worst.dimension}={worst.wanted}",
            site=model.site if model else None,
            advice="This changes the model: pad the vocabulary or the classes with unused entries.",
        )
    ]
