"""Batches are copied to CUDA devices from pageable memory. Such copies are slow and cannot overlap with computation."""

from __future__ import annotations

from slipstream.diagnose.gain import gain_without
from slipstream.diagnose.source_hints import joined, with_loader_argument
from slipstream.diagnose.speedtest_context import about_copying
from slipstream.diagnose.steps.selection import device_of, is_on_cuda, most_frequent_site, training_loader, transfers
from slipstream.numbers import in_bytes, part_of_ms
from slipstream.records import Finding, Session, Summary

LEAST_SHARE = 0.03
SAVED = 0.7  # Copies from pinned memory are two to three times as fast, and they overlap with computation.


def find(session: Session, summary: Summary) -> list[Finding]:
    events, loader = transfers(session), training_loader(session)
    num_bytes = sum(event.num_bytes for event in events)
    pageable = sum(event.num_bytes for event in events if not event.pinned)
    transfer_ms = summary.phases.get("transfer", 0.0)
    if not is_on_cuda(session) or num_bytes == 0 or transfer_ms < LEAST_SHARE * summary.step_ms:
        return []
    if pageable < 0.5 * num_bytes:
        return []
    site = most_frequent_site(session, [event for event in events if not event.pinned])
    is_loaders = loader is not None and not loader.pin_memory
    return [
        Finding(
            cause="pageable_transfer",
            title="Batches are copied from memory that is not pinned",
            evidence=f"Copies to the device take {part_of_ms(transfer_ms, summary.step_ms)} a step; "
            f"{in_bytes(pageable)} of {in_bytes(num_bytes)} came from pageable memory.",
            predicted_gain=gain_without(summary.step_ms, transfer_ms * pageable / num_bytes, SAVED),
            change=with_loader_argument(session, loader, "pin_memory", "True")
            if loader and is_loaders
            else "x.pin_memory()",
            site=loader.site if loader and is_loaders else site,
            settings={"pin_memory": "True"} if is_loaders else {},
            techniques=["pinned_memory", "device_prefetch"],
            advice=joined("And copy with .to(device, non_blocking=True).", about_copying(session, device_of(session))),
        )
    ]
