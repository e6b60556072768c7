"""Rollouts: between its updates a reinforcement learner lets the model act in an environment.

Nothing is trained in that time, and it belongs to no single step: a rollout comes before many updates.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from slipstream.diagnose.hotspots import hottest_line, watched_stacks
from slipstream.diagnose.selection import blocks_of
from slipstream.diagnose.source_hints import place
from slipstream.diagnose.stack_facts import is_logging
from slipstream.diagnose.statistics import median
from slipstream.numbers import in_percent, in_seconds, plural
from slipstream.records import Event, Session

LEAST_SHARE = 0.15  # of the time; less does not deserve a sentence
# The model acts on the states of a few environments and learns from batches of past ones. A validation of a script
# without a loader takes batches as large as the training's.
SMALLER = 2.0
BESIDE = ("loss", "update", "saving")  # stages of stack samples that belong to the updates


class Rollouts(msgspec.Struct, frozen=True):
    share: float  # of the time from the first rollout to the last
    seconds: float  # of one rollout
    num_calls: float  # of models, in one rollout
    updates: float  # from one rollout to the next


class _Stretch(msgspec.Struct):
    start_ns: int
    end_ns: int
    num_calls: int


def rollouts(session: Session) -> Rollouts | None:
    """The rollouts of a script without a loader, from whole cycles of acting and learning; None if there are none."""
    if any(event.kind == "input" for event in session.events):
        return None
    events = _observed(session)
    stretches = _stretches(events, _acting(events))
    if len(stretches) < 2:
        return None  # a single one may be anything that happens before the training
    first_ns, last_ns, whole = stretches[0].start_ns, stretches[-1].start_ns, stretches[:-1]
    updates = [e for e in events if e.kind == "optimizer" and first_ns <= e.start_ns < last_ns]
    acting_ns = sum(one.end_ns - one.start_ns for one in whole)
    return Rollouts(
        share=acting_ns / (last_ns - first_ns),
        seconds=acting_ns / len(whole) / 1e9,
        num_calls=sum(one.num_calls for one in whole) / len(whole),
        updates=len(updates) / len(whole),
    )


def _observed(session: Session) -> list[Event]:
    """The events until the end of the undisturbed observation: a dissected step takes longer."""
    end_ns = min((block.start_ns for block in blocks_of(session, ("dissect",))), default=None)
    kinds = ("forward", "backward", "optimizer")
    return [e for e in session.events if e.kind in kinds and (end_ns is None or e.start_ns < end_ns)]


def _acting(events: Sequence[Event]) -> set[int]:
    """The calls, by identity, in which a model that also learns acts: without gradients, on fewer samples."""
    learning: dict[int, list[int]] = {}
    for event in events:
        if event.kind == "forward" and event.grad and event.samples:
            learning.setdefault(event.ident, []).append(event.samples)
    usual = {ident: median(samples) for ident, samples in learning.items()}
    return {
        id(event)
        for event in events
        if event.kind == "forward"
        and not event.grad
        and event.ident in usual
        and SMALLER * event.samples <= usual[event.ident]
    }


def _stretches(events: Sequence[Event], acting: set[int]) -> list[_Stretch]:
    """Each lasts from the end of the training before it to the first training call after it."""
    found: list[_Stretch] = []
    current: _Stretch | None = None
    trained_ns = -1
    for event in events:
        if id(event) in acting:
            if current is None:
                current = _Stretch(trained_ns if trained_ns >= 0 else event.start_ns, event.end_ns, 0)
            current.num_calls += 1
        elif event.kind != "forward" or event.grad:
            if current is not None:
                current.end_ns = event.start_ns
                found.append(current)
                current = None
            trained_ns = event.end_ns
    return found


def rollout_note(session: Session) -> str:
    """A sentence if rollouts take a large part of the time, else ""."""
    seen = rollouts(session)
    if seen is None or seen.share < LEAST_SHARE:
        return ""
    stacks = watched_stacks(session, "main", ("other", "evaluation"))
    hot = hottest_line(session, [one for one in stacks if one.stage not in BESIDE and not is_logging(one)])
    where = f" Most samples there are at {place(hot.site)}." if hot else ""
    return (
        f"{in_percent(seen.share)} of the time are rollouts, in which the model acts and nothing is trained: "
        f"{in_seconds(seen.seconds)} with {plural(round(seen.num_calls), 'call')} of the model before every "
        f"{plural(max(1, round(seen.updates)), 'update')}. The usual step does not contain that time.{where}"
    )
