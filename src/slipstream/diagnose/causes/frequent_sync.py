"""The host waits for the device in every step (.item(), .cpu(), printing a tensor), and the device then waits for the
host. On the CPU nothing waits, but reading values out of tensors one by one takes time in Python.
"""

from __future__ import annotations

from slipstream.diagnose.gain import LEAST_GAIN, gain_of, gain_without
from slipstream.diagnose.hotspots import FEWEST_SAMPLES, hottest_line, phase_ms_of, total
from slipstream.diagnose.source_hints import joined, more_rarely, warning_of
from slipstream.diagnose.stack_facts import reads_values
from slipstream.diagnose.statistics import fmean
from slipstream.diagnose.steps.selection import (
    blocks_of,
    is_on_accelerator,
    most_frequent_site,
    watched_kinds,
    watched_steps,
)
from slipstream.diagnose.steps.undisturbed import counted_steps
from slipstream.numbers import in_ms, in_percent, part_of_ms
from slipstream.records import Event, Finding, Session, Summary

LEAST_SHARE = 0.05  # Share of a step on the CPU
WHOLE = "one call over the whole tensor in place of single values: hits += (preds == labels).sum()"
OF_GRADIENTS = "one call for all of them, read at once: torch.stack(torch._foreach_norm(gradients)).tolist()"
SAVED = 0.9  # Share saved by calls over whole tensors, or by reading values only in every tenth step


def find(session: Session, summary: Summary) -> list[Finding]:
    return _find_waits(session, summary) if is_on_accelerator(session) else _find_reads(session, summary)


def _find_reads(session: Session, summary: Summary) -> list[Finding]:
    """The finding for reads of single values on the CPU."""
    reading_ms, stacks = phase_ms_of(session, {"other": summary.phases.get("other", 0.0)}, reads_values)
    hot = hottest_line(session, stacks)
    if hot is None or total(stacks) < FEWEST_SAMPLES or reading_ms < LEAST_SHARE * summary.step_ms:
        return []
    return [
        Finding(
            cause="frequent_sync",
            title="Every step reads values out of tensors",
            evidence=f"{part_of_ms(reading_ms, summary.step_ms)} a step ({in_percent(reading_ms / summary.step_ms)}) "
            "go into reading values out of tensors (.item(), .tolist(), .numpy()) and computing with them.",
            predicted_gain=gain_without(summary.step_ms, reading_ms, SAVED),
            change=OF_GRADIENTS if "grad" in hot.site.text else WHOLE,
            site=hot.site,
            advice="For values that are only displayed, every fiftieth step is enough.",
        )
    ]


def _find_waits(session: Session, summary: Summary) -> list[Finding]:
    steps, device = watched_steps(session), summary.device_phases
    if not steps or not device:
        return []
    events = _syncs(session)
    per_step = len(events) / len(steps)
    sync_ms = fmean([step.sync_ms for step in counted_steps(session)])
    if per_step < 0.5 or sync_ms < 0.02 * summary.step_ms:
        return []
    # Without the wait the host runs ahead of the device, and the step takes as long as the busier one of host and
    # device.
    idle_ms = _idle_ms(summary, device)
    then_ms = max(summary.step_ms - idle_ms, summary.step_ms - sync_ms)
    gain = gain_of(summary.step_ms, then_ms)
    if gain < LEAST_GAIN:  # The host waits, but the device hardly waits.
        return []
    site = most_frequent_site(session, events)
    return [
        Finding(
            cause="frequent_sync",
            title="The host waits for the device in every step",
            evidence=f"{per_step:.1f} waits a step, {part_of_ms(sync_ms, summary.step_ms)}; "
            f"the device is idle for at most {in_ms(idle_ms)} of a step.",
            predicted_gain=gain,
            change=f"every 50 steps, not each: {more_rarely(session, site, 50, 'loss.item()')}",
            site=site,
            advice=joined("Keep running sums on the device and read them when you print.", warning_of(session, site)),
        )
    ]


def _idle_ms(summary: Summary, device: dict[str, float]) -> float:
    """The longest time that the device may wait for the host in a step, not counting the wait for data."""
    if summary.device_idle is not None:
        return sum(ms for phase, ms in summary.device_idle.items() if phase != "input")
    return summary.step_ms - sum(ms for phase, ms in device.items() if phase not in ("input", "other"))


def _syncs(session: Session) -> list[Event]:
    spans = [(block.start_ns, block.end_ns) for block in blocks_of(session, watched_kinds(session))]
    return [
        event
        for event in session.events
        if event.kind == "sync" and any(start <= event.start_ns < end for start, end in spans)
    ]
