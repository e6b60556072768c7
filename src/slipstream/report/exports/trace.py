"""A session as a Chrome trace, for ui.perfetto.dev or chrome://tracing.

The trace contains blocks, steps, phases, workers, the device, stages and memory, and below them torch's own profile.
Its size is bounded. With very many steps only the first steps of every block are kept, and the trace says how many
steps were left out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from slipstream.observe.intervals import PHASE_OF_KIND, Interval, lay_out
from slipstream.records import Event, Session, Step
from slipstream.report.exports.torch_profile import Reader, profile_slices, profile_titles, read_profile
from slipstream.report.text.check import script_of
from slipstream.report.text.stages import input_stages

MOST_EVENTS: Final = 100_000  # about 12 MB, compressed about 1 MB
_SCRIPT, _WORKERS, _DEVICE, _STAGES = 1, 2, 3, 4  # processes of the trace
_BLOCKS, _STEPS, _PHASES, _ASIDE = 1, 2, 3, 4  # threads of the script
_NAMES: Final = {_SCRIPT: "script", _WORKERS: "loader workers", _DEVICE: "device", _STAGES: "input, by stage"}
_THREADS: Final = {
    _BLOCKS: "blocks",
    _STEPS: "steps",
    _PHASES: "phases",
    _ASIDE: "saving, waits, evaluation",
}

Slice = dict[str, Any]


def to_trace(session: Session, most_events: int = MOST_EVENTS, read: Reader = read_profile) -> bytes:
    origin_ns = _origin(session)
    steps, num_left_out = _chosen(session, most_events)
    slices = [*_blocks(session), *_steps(session, steps), *_stages(session, steps), *_memory(session)]
    room = max(0, most_events - len(slices))
    slices += _thinned([*_workers(session, steps), *_device(session, steps), *_aside(session, steps)], room)
    profile = session.torch_profile
    below = profile_slices(profile, read(profile)) if profile is not None else []
    for one in (*slices, *below):
        one["ts"] = round((one["ts"] - origin_ns) / 1000, 3)
        if "dur" in one:
            one["dur"] = round(max(0.0, one["dur"]) / 1000, 3)
    document = {
        "traceEvents": [*_titles(slices), *profile_titles(below), *slices, *below],
        "displayTimeUnit": "ms",
        "otherData": {
            "slipstream": session.environment.slipstream,
            "script": script_of(session),
            "created": session.created,
            "left out": f"{num_left_out} of {len(session.steps)} steps",
        },
    }
    return msgspec.json.encode(document)


def _origin(session: Session) -> int:
    starts = [*(block.start_ns for block in session.blocks), *(step.start_ns for step in session.steps[:1])]
    return min(starts, default=0)


def _slice(name: str, process: int, thread: int, start_ns: float, end_ns: float, **facts: Any) -> Slice:
    one: Slice = {"name": name, "ph": "X", "pid": process, "tid": thread, "ts": start_ns, "dur": end_ns - start_ns}
    return {**one, "args": facts} if facts else one


def _titles(slices: Sequence[Slice]) -> Iterator[Slice]:
    used = {(one["pid"], one["tid"]) for one in slices if one["ph"] == "X"}
    for process in sorted({process for process, _ in used}):
        yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": _NAMES[process]}}
        yield {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": process}}
    for process, thread in sorted(used):
        title = {_SCRIPT: _THREADS.get(thread, ""), _WORKERS: f"loader {thread // 1000} worker {thread % 1000}"}
        yield {
            "ph": "M",
            "name": "thread_name",
            "pid": process,
            "tid": thread,
            "args": {"name": title.get(process, _NAMES[process])},
        }


def _chosen(session: Session, most_events: int) -> tuple[list[Step], int]:
    """Returns all steps or the first steps of every block, and the number of steps that are left out. A step makes
    about ten events, including the events of the workers."""
    most = max(1, most_events // 10)
    if len(session.steps) <= most:
        return session.steps, 0
    by_block: dict[int, list[Step]] = defaultdict(list)
    for step in session.steps:
        by_block[step.block].append(step)
    share = most / len(session.steps)
    kept = [step for block in by_block.values() for step in block[: max(1, int(len(block) * share))]]
    return kept, len(session.steps) - len(kept)


def _thinned(slices: list[Slice], most: int) -> list[Slice]:
    return sorted(slices, key=lambda one: one["ts"])[:most] if len(slices) > most else slices


def _blocks(session: Session) -> Iterator[Slice]:
    for block in session.blocks:
        yield _slice(block.kind, _SCRIPT, _BLOCKS, block.start_ns, block.end_ns, block=block.index)


def _steps(session: Session, steps: Sequence[Step]) -> Iterator[Slice]:
    events = [event for event in session.events if event.kind in PHASE_OF_KIND and not event.kept]
    starts = [event.start_ns for event in events]
    for step in steps:
        facts = {"samples": step.samples, "updates": step.num_updates, "ms": round(step.step_ms, 3)}
        yield _slice(f"step {step.index}", _SCRIPT, _STEPS, step.start_ns, step.end_ns, **facts)
        within = events[bisect_left(starts, step.start_ns) : bisect_left(starts, step.end_ns)]
        intervals = [Interval(event.start_ns, event.end_ns, PHASE_OF_KIND[event.kind]) for event in within]
        for piece in lay_out(intervals, step.start_ns, step.end_ns, "other"):
            yield _slice(piece.label, _SCRIPT, _PHASES, piece.start, piece.end)


def _spans(steps: Sequence[Step]) -> list[tuple[int, int]]:
    return [(step.start_ns, step.end_ns) for step in steps]


def _is_within(start_ns: int, starts: list[int], spans: list[tuple[int, int]]) -> bool:
    at = bisect_left(starts, start_ns + 1) - 1
    return at >= 0 and start_ns < spans[at][1]


def _seen_events(session: Session, steps: Sequence[Step]) -> Iterator[Event]:
    spans = sorted(_spans(steps))
    starts = [start for start, _ in spans]
    return (event for event in session.events if _is_within(event.start_ns, starts, spans))


def _aside(session: Session, steps: Sequence[Step]) -> Iterator[Slice]:
    for event in _seen_events(session, steps):
        if event.kind in ("saving", "sync", "iterator"):
            yield _slice(event.kind, _SCRIPT, _ASIDE, event.start_ns, event.end_ns)
    for one in session.evaluations:
        facts = {"batches": one.num_batches, "gradients": one.grad}
        yield _slice("evaluation", _SCRIPT, _ASIDE, one.start_ns, one.end_ns, **facts)


def _workers(session: Session, steps: Sequence[Step]) -> Iterator[Slice]:
    """Yields the fetches of loaders with workers. Without workers, the script's own input phase shows the fetch."""
    if not steps:
        return
    first_ns, last_ns = steps[0].start_ns, steps[-1].end_ns
    with_workers = {loader.ident for loader in session.loaders if loader.num_workers}
    for fetch in session.fetches:
        end_ns = fetch.start_ns + fetch.wall_ns
        if fetch.loader in with_workers and end_ns > first_ns and fetch.start_ns < last_ns:
            thread = fetch.loader * 1000 + fetch.worker
            facts = {"samples": fetch.num_samples, "cpu_ms": round(fetch.cpu_ns / 1e6, 3)}
            yield _slice("batch", _WORKERS, thread, fetch.start_ns, end_ns, **facts)


def _device(session: Session, steps: Sequence[Step]) -> Iterator[Slice]:
    """Yields the phases on the device. The first phase that both clocks have timed aligns the device's clock with the
    host's clock."""
    offset_ns: float | None = None
    for event in _seen_events(session, steps):
        if event.device_start_ms is None or event.device_end_ms is None or event.kind not in PHASE_OF_KIND:
            continue
        if offset_ns is None:
            offset_ns = event.start_ns - event.device_start_ms * 1e6
        start_ns = offset_ns + event.device_start_ms * 1e6
        end_ns = offset_ns + event.device_end_ms * 1e6
        yield _slice(PHASE_OF_KIND[event.kind], _DEVICE, 1, start_ns, end_ns)


def _stages(session: Session, steps: Sequence[Step]) -> Iterator[Slice]:
    """Yields the stages of one typical batch. Their lengths come from stack samples. Their order is not measured."""
    table = input_stages(session)
    if table is None or not steps:
        return
    now_ns = float(steps[0].start_ns)
    for share in table.stages:
        end_ns = now_ns + share.ms * 1e6
        line = f"{share.line.file}:{share.line.line}" if share.line else ""
        yield _slice(share.stage, _STAGES, 1, now_ns, end_ns, share=round(share.share, 3), hottest=line)
        now_ns = end_ns


def _memory(session: Session) -> Iterator[Slice]:
    readings = session.memory[:: max(1, len(session.memory) // 2000)]
    for one in readings:
        sizes = {"process": one.resident_bytes, **({"device": one.device_bytes} if one.device_bytes else {})}
        yield {"name": "memory", "ph": "C", "pid": _SCRIPT, "tid": 0, "ts": one.time_ns, "args": sizes}
