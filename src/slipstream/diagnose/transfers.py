"""Copies from the host to the device during the watched steps."""

from __future__ import annotations

from slipstream.diagnose.training import blocks_of, watched_kinds
from slipstream.records import Event, Session


def transfers(session: Session) -> list[Event]:
    spans = [(block.start_ns, block.end_ns) for block in blocks_of(session, watched_kinds(session))]
    return [
        event
        for event in session.events
        if event.kind == "transfer" and any(start <= event.start_ns < end for start, end in spans)
    ]
