"""The host waits for the device in every step (.item(), .cpu(), printing a tensor), so that the device then waits
for the host. Nothing to say where the training runs on the CPU."""

from __future__ import annotations

from slipstream.diagnose.gain import gain_of
from slipstream.diagnose.statistics import fmean
from slipstream.diagnose.training import blocks_of, is_on_accelerator, most_frequent_site, watched_kinds, watched_steps
from slipstream.diagnose.wording import ms
from slipstream.records import Event, Finding, Session, Site, Summary


def find(session: Session, summary: Summary) -> list[Finding]:
    steps, device = watched_steps(session), summary.device_phases
    if not is_on_accelerator(session) or not steps or not device:
        return []
    events = _syncs(session)
    per_step = len(events) / len(steps)
    sync_ms = fmean([step.sync_ms for step in steps])
    if per_step < 0.5 or sync_ms < 0.02 * summary.step_ms:
        return []
    # Without the wait the host runs ahead, and the step is as long as the busier of the two.
    device_ms = sum(ms for phase, ms in device.items() if phase not in ("input", "other"))
    then_ms = max(device_ms, summary.step_ms - sync_ms)
    site = most_frequent_site(session, events)
    return [
        Finding(
            cause="frequent_sync",
            title="The host waits for the device in every step",
            evidence=f"{per_step:.1f} waits a step, {ms(sync_ms)} of {ms(summary.step_ms)} ms; "
            f"the device computes for {ms(device_ms)} ms of it.",
            predicted_gain=gain_of(summary.step_ms, then_ms),
            change=f"if step % 50 == 0: {_text(site)}",
            site=site,
            advice="Keep running sums on the device and read them when you print.",
        )
    ]


def _syncs(session: Session) -> list[Event]:
    spans = [(block.start_ns, block.end_ns) for block in blocks_of(session, watched_kinds(session))]
    return [
        event
        for event in session.events
        if event.kind == "sync" and any(start <= event.start_ns < end for start, end in spans)
    ]


def _text(site: Site | None) -> str:
    return site.text if site and site.text else "loss.item()"
