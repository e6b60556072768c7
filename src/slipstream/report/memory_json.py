"""The part of the exported document that an observed step adds."""

from __future__ import annotations

from slipstream.diagnose.growth import has_stopped
from slipstream.memory.forecast import forecast
from slipstream.memory.remedies import list_remedies
from slipstream.records import KINDS, Footprint, Session
from slipstream.report.document import (
    BatchPart,
    GrowthPart,
    HolderPart,
    LinePart,
    MemoryPart,
    MomentPart,
    RemedyPart,
)
from slipstream.report.memory_words import batch_sizes, largest_batch
from slipstream.report.place import where


def memory_of(session: Session) -> MemoryPart | None:
    if not session.footprints:
        return None
    footprint = session.footprints[0]
    return MemoryPart(
        device=footprint.device,
        batch_size=footprint.batch_size,
        peak_bytes=footprint.peak_bytes,
        peak_phase=footprint.peak_phase,
        peak_operator=footprint.peak_operator,
        where=where(footprint.peak_site, session.cwd),
        kinds=footprint.kinds,
        phases=footprint.phases,
        modules=[HolderPart(m.path, m.class_name, sum(m.kinds.values()), m.kinds) for m in footprint.modules],
        lines=[
            LinePart(where(line.site, session.cwd), line.site.text, sum(line.kinds.values()), line.kinds)
            for line in footprint.lines
        ],
        moments=[
            MomentPart(moment.at_ms, moment.phase, dict(zip(KINDS, moment.num_bytes, strict=True)))
            for moment in footprint.moments
        ],
        remedies=[RemedyPart(r.name, r.what, r.freed_bytes, r.numerics, r.price) for r in list_remedies(footprint)],
        batches=_batches(session.footprints),
        capacity_bytes=footprint.capacity_bytes or None,
        largest_batch=largest_batch(session) or None,
        growth=_growth(footprint, session) if has_stopped(session.memory) is None else None,
        reserved_bytes=footprint.reserved_bytes,
        split_bytes=footprint.split_bytes,
    )


def _batches(footprints: list[Footprint]) -> list[BatchPart]:
    made = forecast(footprints)
    if made is None:
        return []
    return [BatchPart(size, made.peak_bytes(size), made.observed.get(size)) for size in batch_sizes(made)]


def _growth(footprint: Footprint, session: Session) -> GrowthPart | None:
    if footprint.growth is None:
        return None
    return GrowthPart(footprint.growth.num_bytes, where(footprint.growth.site, session.cwd))
