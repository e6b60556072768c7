"""Validation runs with gradients enabled. It builds an autograd graph that is never used, and keeps its memory."""

from __future__ import annotations

from slipstream.diagnose.gain import gain_without
from slipstream.diagnose.source_hints import statement_on
from slipstream.diagnose.steps.validation import validation_cost
from slipstream.numbers import in_ms, in_percent
from slipstream.records import Finding, Session, Site, Summary

SAVED = 0.25  # Share saved of the forward pass: building the graph, and storing what the backward pass would need


def find(session: Session, summary: Summary) -> list[Finding]:
    seen = [evaluation for evaluation in session.evaluations if evaluation.grad and evaluation.after_step >= 0]
    cost = validation_cost(session, summary.step_ms, summary.phases)
    if not seen or cost is None or not cost.is_measured or summary.is_inference:
        return []
    share = cost.share(summary.step_ms)
    total_ms = sum((one.end_ns - one.start_ns) / 1e6 for one in seen)
    forward = min(1.0, sum(one.forward_ms for one in seen) / total_ms) if total_ms > 0 else 0.0
    site = next((one.site for one in seen if one.site), None)
    return [
        Finding(
            cause="grad_in_evaluation",
            title="Validation keeps gradients on",
            evidence=f"{len(seen)} of {len(session.evaluations)} evaluations ran with gradients on; one takes "
            f"{in_ms(cost.ms)}, {in_percent(share)} of the time, and holds every activation in memory.",
            predicted_gain=gain_without(1.0, share * forward, SAVED),
            change=_change(session, site),
            site=site,
            advice="Check again afterwards: validation is a large part of the epoch." if share > 0.15 else "",
        )
    ]


def _change(session: Session, site: Site | None) -> str:
    """The change. It decorates the whole function only if nothing in the function trains.

    The change uses `no_grad` because tensors of `inference_mode` cannot take part in a later computation with
    gradients.
    """
    statement = statement_on(session, site)
    if statement is not None and statement.only_evaluates:
        return f"@torch.no_grad() above def {statement.function}"
    if statement is not None and statement.function:
        return f"by hand, around the evaluation only ({statement.function} may also train): with torch.no_grad(): ..."
    return "by hand, around the evaluation only: with torch.no_grad(): ..."
