"""Convolutions use the default memory layout, although channels_last was faster on a copy of the model."""

from __future__ import annotations

from slipstream.diagnose.gain import rehearsal_of, rehearsed_gain, rehearsed_words
from slipstream.diagnose.operator_shares import compute_phases_ms, is_compute_bound, share_named
from slipstream.diagnose.source_hints import each_weight_turned
from slipstream.diagnose.steps.selection import main_model, usual_batches
from slipstream.numbers import in_ms, in_percent
from slipstream.records import Finding, Session, Summary


def find(session: Session, summary: Summary) -> list[Finding]:
    model, rehearsal = main_model(session), rehearsal_of(session, "channels_last")
    if model is None or rehearsal is None or not is_compute_bound(summary):
        # channels_last makes some models faster and others slower, so it is reported only after a rehearsal.
        return []
    name = model.name or "model"
    takes_images = not model.inputs or any(len(tensor.shape) == 4 for tensor in model.inputs)
    share = share_named(session, "convolution", "conv2d", "conv3d")
    computing_ms = compute_phases_ms(summary) - summary.phases.get("optimizer", 0.0)
    num_convolutions = sum(one.num_convolutions for one in session.models)
    return [
        Finding(
            cause="slow_layout",
            title="Convolutions in the default layout",
            evidence=f"{num_convolutions} convolutions are {in_percent(share)} of the {in_ms(computing_ms)} of "
            f"forward and backward; in channels_last, {rehearsed_words(rehearsal)}.",
            predicted_gain=rehearsed_gain(summary, rehearsal, computing_ms, usual_batches(session)),
            change=f"{name} = {name}.to(memory_format=torch.channels_last)"
            if model.moves_alone
            else each_weight_turned(name),
            site=model.site,
            techniques=["channels_last"],
            # Other inputs, such as the noise of a generator, have no such layout.
            advice="The batch as well: x = x.to(memory_format=torch.channels_last)." if takes_images else "",
        )
    ]
