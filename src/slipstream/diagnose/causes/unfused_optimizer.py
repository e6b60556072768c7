"""The optimizer walks over its tensors one by one where one fused call could do it."""

from __future__ import annotations

import re

import msgspec

from slipstream.diagnose.gain import gain_without
from slipstream.diagnose.rehearsed import rehearsal_of, rehearsed_gain, rehearsed_words
from slipstream.diagnose.training import main_optimizer
from slipstream.diagnose.wording import ms, percent, with_argument
from slipstream.records import Finding, Optimizer, Session, Summary

LEAST_SHARE = 0.08  # of the step
LEAST_GAIN = 1.05  # nearly every script could fuse something: below this it is not worth a line
SMALL = 20_000  # values per tensor: below, calls cost more than arithmetic


def find(session: Session, summary: Summary) -> list[Finding]:
    optimizer, optimizer_ms = main_optimizer(session), summary.phases.get("optimizer", 0.0)
    if optimizer is None or optimizer.fused or not optimizer.can_fuse:
        return []
    if optimizer_ms < LEAST_SHARE * summary.step_ms:
        return []
    rehearsal = rehearsal_of(session, "fused_optimizer")
    if rehearsal is not None:
        gain = rehearsed_gain(summary, rehearsal, optimizer_ms)
        proof = f"fused, {rehearsed_words(rehearsal)}"
    else:
        gain = gain_without(summary.step_ms, optimizer_ms, _saved(optimizer))
        proof = f"this class has a fused implementation on {optimizer.device or 'this device'}"
    if gain < LEAST_GAIN:
        return []
    return [
        Finding(
            cause="unfused_optimizer",
            title=f"{optimizer.class_name} is not fused",
            evidence=f"The optimizer takes {ms(optimizer_ms)} of {ms(summary.step_ms)} ms a step "
            f"({percent(optimizer_ms / summary.step_ms)}) for {optimizer.num_tensors} tensors; {proof}.",
            predicted_gain=gain,
            change=_change(optimizer),
            site=optimizer.site,
            techniques=["fused_optimizer"],
        )
    ]


def _saved(optimizer: Optimizer) -> float:
    """The part of its time that fusing removes. Many small tensors: nearly all is overhead. Large ones: memory is
    passed over once instead of once per operation, of which Adam has a dozen and SGD two or three."""
    walks_one_by_one = not optimizer.foreach and (optimizer.foreach is False or optimizer.device.startswith("cpu"))
    is_small = optimizer.num_parameters < SMALL * max(1, optimizer.num_tensors)
    if walks_one_by_one and is_small:
        return 0.8
    if "SGD" in optimizer.class_name:
        return 0.25
    return 0.6 if walks_one_by_one else 0.35


def _change(optimizer: Optimizer) -> str:
    """torch refuses foreach and fused together, so an argument that asks for foreach makes room."""
    site = optimizer.site
    if site is None:
        return f"{optimizer.class_name}(..., fused=True)"
    text = re.sub(r",?\s*\bforeach\s*=\s*(True|False|None)", "", site.text)
    return with_argument(msgspec.structs.replace(site, text=text), optimizer.class_name, "fused", "True")
