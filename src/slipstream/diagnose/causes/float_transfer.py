"""Floats are copied to an accelerator although the bytes that they were made from would be enough."""

from __future__ import annotations

from slipstream.diagnose.gain import gain_without
from slipstream.diagnose.steps.selection import is_on_accelerator, most_frequent_site, training_loader, transfers
from slipstream.numbers import in_bytes, part_of_ms
from slipstream.records import Finding, Session, Summary

LEAST_SHARE = 0.03
SAVED = 0.75  # Share saved by copying one byte instead of four


def find(session: Session, summary: Summary) -> list[Finding]:
    loader, transfer_ms = training_loader(session), summary.phases.get("transfer", 0.0)
    if loader is None or not is_on_accelerator(session) or transfer_ms < LEAST_SHARE * summary.step_ms:
        return []
    floats = sum(facts.num_bytes for facts in loader.tensor_facts if facts.was_bytes and facts.dtype == "float32")
    num_bytes = sum(facts.num_bytes for facts in loader.tensor_facts)
    if floats == 0:
        return []
    return [
        Finding(
            cause="float_transfer",
            title="Floats are moved where bytes would do",
            evidence=f"{in_bytes(floats)} of each batch of {in_bytes(num_bytes)} are floats with at most 256 different "
            f"values; copies to the device take {part_of_ms(transfer_ms, summary.step_ms)} a step.",
            predicted_gain=gain_without(summary.step_ms, transfer_ms * floats / num_bytes, SAVED),
            change="images.to(device, non_blocking=True).float().div_(255), with the dataset returning uint8",
            site=most_frequent_site(session, transfers(session)) or loader.site,
            techniques=["byte_transfer"],
        )
    ]
