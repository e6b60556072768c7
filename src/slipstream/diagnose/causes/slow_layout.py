"""Convolutions in the default memory layout, where channels_last saves the conversions around each of them."""

from __future__ import annotations

from slipstream.diagnose.anatomy import compute_phases_ms, is_compute_bound, share_named
from slipstream.diagnose.gain import gain_without
from slipstream.diagnose.training import is_on_cpu, is_on_cuda, main_model
from slipstream.diagnose.wording import ms, percent
from slipstream.records import Finding, Session, Summary

LEAST_SHARE = 0.4  # of the operators' time in convolutions
SAVED = 0.2  # of that; less than the usual on GPUs with tensor cores, about the usual with oneDNN


def find(session: Session, summary: Summary) -> list[Finding]:
    model, facts = main_model(session), session.environment.torch
    if model is None or facts is None or model.num_convolutions < 2 or model.is_channels_last or model.is_compiled:
        return []
    # On a GPU the layout pays with half precision, whose kernels want it; in fp32 it often costs.
    if not is_on_cpu(session) and not (is_on_cuda(session) and facts.autocast_seen):
        return []
    share = share_named(session, "convolution", "conv2d", "conv3d")
    if share < LEAST_SHARE or not is_compute_bound(summary):
        return []
    computing_ms = compute_phases_ms(summary)
    return [
        Finding(
            cause="slow_layout",
            title="Convolutions in the default layout",
            evidence=f"{model.num_convolutions} convolutions are {percent(share)} of the {ms(computing_ms)} ms that a "
            "step computes, and none of their weights is in channels_last.",
            predicted_gain=gain_without(summary.step_ms, computing_ms * share, SAVED),
            change="model = model.to(memory_format=torch.channels_last)",
            site=model.site,
            techniques=["channels_last"],
            advice="The batch as well: x = x.to(memory_format=torch.channels_last). Race it: it does not always win.",
        )
    ]
