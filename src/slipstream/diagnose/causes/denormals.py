"""The CPU computes with denormal numbers. They are too small for the normal format, and arithmetic with them is many
times slower. GPUs are not affected.
"""

from __future__ import annotations

from slipstream.diagnose.gain import gain_without, rehearsal_of, rehearsed_gain, rehearsed_words
from slipstream.diagnose.steps.selection import is_on_cpu, main_model, usual_batches
from slipstream.numbers import in_percent, part_of_ms
from slipstream.records import Finding, Session, Summary

LEAST_SHARE = 1e-3
SLOWER = 40.0  # Slowdown of an operation on a vector that contains a denormal. It is 10 to 150, depending on the CPU.
VECTOR_WIDTH = 8  # Values in a vector. One denormal slows down the operation on all of them.
MOST_SAVED = 0.7  # Largest share of the compute time that is saved. Memory access does not become faster.
SCALED = "x = x * 2.0**40  # where the data are read: the same digits, none of them denormal"


def find(session: Session, summary: Summary) -> list[Finding]:
    anatomy, facts, model = session.anatomy, session.environment.torch, main_model(session)
    if anatomy is None or anatomy.denormal_share is None or facts is None or not is_on_cpu(session):
        return []
    share = anatomy.denormal_share
    if share < LEAST_SHARE or facts.flush_denormal:
        return []
    touched = min(1.0, VECTOR_WIDTH * share)
    saved = min(MOST_SAVED, touched * (SLOWER - 1) / (1 + touched * (SLOWER - 1)))
    computing_ms = sum(summary.phases.get(phase, 0.0) for phase in ("forward", "backward", "optimizer"))
    gain, proof = gain_without(summary.step_ms, computing_ms, saved), ""
    rehearsal = rehearsal_of(session, "flush_denormals")
    if rehearsal is not None:
        gain = rehearsed_gain(summary, rehearsal, computing_ms, usual_batches(session))
        proof = f"; flushed to zero, {rehearsed_words(rehearsal)}"
    needs_them = rehearsal is not None and rehearsal.breaks_values
    return [
        Finding(
            cause="denormals",
            title="The CPU computes with denormal numbers",
            evidence=f"{in_percent(share)} of the values in inputs, activations, gradients and parameters are "
            f"denormal; forward, backward and optimizer take {part_of_ms(computing_ms, summary.step_ms)}{proof}.",
            predicted_gain=gain,
            change=SCALED if needs_them else "torch.set_flush_denormal(True)",
            site=model.site if model else None,
            techniques=[] if needs_them else ["flush_denormals"],
            advice="Flushed to zero, the results are no longer finite, so the denormal values matter here. Scaled data "
            "train the same only if a later layer normalises them."
            if needs_them
            else "It acts on the calling thread only; scaling the data up works everywhere.",
        )
    ]
