"""Finds the steps and evaluations in the events of one process.

`find_steps` is a pure function of all events of the trial, because the loops of unusual scripts can only be recognised
from all events. A step lasts from the first event of one iteration of the training loop to the first event of the next
iteration. Evaluation inside a step is excluded from its time."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Sequence

from slipstream.observe.device_timeline import DeviceTimeline
from slipstream.observe.intervals import PHASE_OF_KIND, Interval, share_out
from slipstream.observe.step_boundaries import closing_events, evaluation_spans, top_level, training_loaders
from slipstream.records import Block, Evaluation, Event, Site, Step

_OPENING = ("iterator", "input", "transfer", "forward", "backward", "optimizer")


def find_steps(
    events: Sequence[Event], blocks: Sequence[Block], sites: Sequence[Site] = ()
) -> tuple[list[Step], list[Evaluation]]:
    """Returns the steps and evaluations of one process, in order."""
    events = sorted(events, key=lambda event: (event.start_ns, -event.end_ns))
    spans = evaluation_spans(events)
    training = _outside(events, spans)
    closers = closing_events(training)
    bounds = _step_bounds(training, closers)
    loaders = training_loaders(events)
    apart = _apart(events, blocks, spans)
    device = DeviceTimeline(events, spans, _usual_ms(bounds))
    steps = [
        _make_step(index, start, end, _between(training, start, end), apart, blocks, loaders, device)
        for index, (start, end) in enumerate(bounds)
    ]
    starts = [step.start_ns for step in steps]
    # The first step begins with the first event of the trial, which may be the transfer of the model, long before the
    # training.
    trained_ns = closers[0].end_ns if closers else 0
    after = [bisect.bisect_right(starts, start) - 1 if start >= trained_ns else -1 for start, _, _ in spans]
    return steps, [_make_evaluation(span, index) for span, index in zip(spans, after, strict=True)]


def _outside(events: Sequence[Event], spans: Sequence[tuple[int, int, list[Event]]]) -> list[Event]:
    evaluating = {id(event) for _, _, inside in spans for event in inside}
    return [event for event in events if id(event) not in evaluating]


def _step_bounds(events: Sequence[Event], closers: Sequence[Event]) -> list[tuple[int, int]]:
    """Returns the start and the end of each step. After its closing event a step lasts until the next iteration begins.
    So what the script does after the update (logging, saving, metrics) belongs to the step before."""
    openings = [event.start_ns for event in _outermost(events) if event.kind in _OPENING]
    if not closers or not openings:
        return []
    bounds = []
    start = openings[0]
    for closer in closers:
        position = bisect.bisect_left(openings, closer.end_ns)
        if position == len(openings):
            bounds.append((start, closer.end_ns))
            break
        end = openings[position]
        if end > start:
            bounds.append((start, end))
            start = end
    return bounds


def _usual_ms(bounds: Sequence[tuple[int, int]]) -> float:
    """Returns the mean time of a step on the host. The mean is used because the host may run ahead of the device for
    some steps and then wait for the device."""
    return (bounds[-1][1] - bounds[0][0]) / len(bounds) / 1e6 if bounds else 0.0


def _outermost(events: Sequence[Event]) -> list[Event]:
    found: list[Event] = []
    for event in events:
        if not (found and event.start_ns < found[-1].end_ns):
            found.append(event)
    return found


def _between(events: Sequence[Event], start: int, end: int) -> list[Event]:
    first = bisect.bisect_left(events, start, key=lambda event: event.start_ns)
    last = bisect.bisect_left(events, end, key=lambda event: event.start_ns)
    return list(events[first:last])


def _apart(
    events: Sequence[Event], blocks: Sequence[Block], spans: Sequence[tuple[int, int, list[Event]]]
) -> list[Interval]:
    """Returns the intervals that count for no step: evaluation, draining of the loader, copying of replayed batches,
    and this package's own observations."""
    apart = [Interval(start, end, "apart") for start, end, _ in spans]
    apart += [Interval(block.start_ns, block.end_ns, "apart") for block in blocks if block.kind == "drain"]
    ours = [event for event in events if event.kept or event.kind == "aside"]
    apart += [Interval(event.start_ns, event.end_ns, "apart") for event in ours]
    return sorted(apart)


def _closures(events: Sequence[Event]) -> list[Interval]:
    """Returns the intervals in which the script's own lines run inside an optimizer's step. They are the parts of a
    closure before its backward passes; Lightning runs the whole of training_step there. After a backward pass the
    optimizer itself runs again."""
    found: list[Interval] = []
    for update in top_level(events, "optimizer"):
        opened: int | None = update.start_ns
        for event in events:
            if not update.start_ns <= event.start_ns < event.end_ns <= update.end_ns:
                continue
            if event.kind == "forward" and opened is None:
                opened = event.start_ns
            elif event.kind == "backward" and opened is not None:
                found.append(Interval(opened, event.start_ns, "other"))
                opened = None
    return found


def _make_step(
    index: int,
    start: int,
    end: int,
    events: list[Event],
    apart: Sequence[Interval],
    blocks: Sequence[Block],
    loaders: set[int],
    device: DeviceTimeline,
) -> Step:
    near = [interval for interval in apart if interval.end > start and interval.start < end]
    intervals = [
        Interval(event.start_ns, event.end_ns, PHASE_OF_KIND[event.kind])
        for event in events
        if event.kind in PHASE_OF_KIND and not event.kept
    ]
    shares = share_out([*intervals, *_closures(events), *near], start, end, "other")
    apart_ns = shares.pop("apart", 0.0)
    host_phases = {phase: ns / 1e6 for phase, ns in shares.items()}
    on_device = device.step(events, end, near)
    phases = on_device.phases if on_device else host_phases
    return Step(
        index=index,
        block=_block_at(blocks, start),
        start_ns=start,
        end_ns=end,
        step_ms=sum(phases.values()),
        phases=phases,
        samples=_count_samples(events, loaders),
        num_batches=sum(event.kind == "input" and event.ident in loaders for event in events),
        num_forwards=len(top_level(events, "forward")),
        num_backwards=len(top_level(events, "backward")),
        num_updates=len(top_level(events, "optimizer")),
        device_phases=on_device.phases if on_device else None,
        host_phases=host_phases if on_device else None,
        device_idle=on_device.idle if on_device else None,
        is_first_of_epoch=any(event.kind == "iterator" for event in events),
        apart_ms=apart_ns / 1e6,
        saving_ms=sum(event.end_ns - event.start_ns for event in events if event.kind == "saving") / 1e6,
        sync_ms=sum(event.end_ns - event.start_ns for event in events if event.kind == "sync") / 1e6,
    )


def _block_at(blocks: Sequence[Block], moment: int) -> int:
    position = bisect.bisect_right(blocks, moment, key=lambda block: block.start_ns) - 1
    return blocks[position].index if position >= 0 else 0


def _count_samples(events: Sequence[Event], loaders: set[int]) -> int:
    """Returns the number of samples in the batches. If the batches show none, returns the samples of the first module
    whose input shows any."""
    by_loader: dict[int, int] = defaultdict(int)
    by_model: dict[int, int] = defaultdict(int)
    for event in events:
        if event.kind == "input" and event.ident in loaders:
            by_loader[event.ident] += event.samples
        elif event.kind == "forward":
            by_model[event.ident] += event.samples
    if any(by_loader.values()):
        return max(by_loader.values())
    return next((samples for samples in by_model.values() if samples), 0)


def _make_evaluation(span: tuple[int, int, list[Event]], after_step: int) -> Evaluation:
    start, end, events = span
    inputs = [event for event in events if event.kind == "input"]
    forwards = top_level(events, "forward")
    return Evaluation(
        start_ns=start,
        end_ns=end,
        num_batches=len(inputs) or len(forwards),
        samples=sum(event.samples for event in inputs) or sum(event.samples for event in forwards),
        forward_ms=sum(event.end_ns - event.start_ns for event in forwards) / 1e6,
        input_ms=sum(event.end_ns - event.start_ns for event in events if event.kind in ("input", "iterator")) / 1e6,
        grad=bool(forwards) and sum(event.grad for event in forwards) > len(forwards) / 2,
        after_step=after_step,
        loader=inputs[0].ident if inputs else -1,
    )
