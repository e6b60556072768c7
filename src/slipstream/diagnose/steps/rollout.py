"""Finds rollouts: the time between updates in which a reinforcement learner lets the model act in an environment.

Nothing is trained during a rollout. A rollout belongs to no single step, because many updates follow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from slipstream.diagnose.hotspots import hottest_line, watched_stacks
from slipstream.diagnose.source_hints import place
from slipstream.diagnose.stack_facts import is_logging
from slipstream.diagnose.statistics import median
from slipstream.diagnose.steps.selection import blocks_of
from slipstream.numbers import in_percent, in_seconds, plural
from slipstream.records import Event, Session

LEAST_SHARE = 0.15  # Share of the time. A smaller share is not reported.
# Ratio of the samples in a training call to the samples in a call that acts. A model acts on the states of a few
# environments and learns from larger batches of past states. Validation uses batches as large as those of the training.
SMALLER = 2.0
# Calls of the model before one backward pass. Other scripts call a model less often, for example once for each of two
# inputs, or for generator and discriminator.
FEWEST_WITH_GRADIENTS = 8
FEWEST_CALLS = 16  # Calls in the only observed rollout. A model summary, or a test of shapes, makes fewer calls.
BESIDE = ("loss", "update", "saving")  # Stages of stack samples that belong to the updates


class Rollouts(msgspec.Struct, frozen=True):
    share: float  # Share of the time from the first rollout to the last
    seconds: float  # Mean length of a rollout
    num_calls: float  # Mean number of calls of models in a rollout
    updates: float  # Mean number of updates from one rollout to the next


class _Stretch(msgspec.Struct):
    start_ns: int
    end_ns: int
    num_calls: int


def rollouts(session: Session) -> Rollouts | None:
    """The rollouts of a script without a loader, measured over whole cycles of acting and learning.

    None if fewer than two rollouts were observed.
    """
    events, stretches = _seen(session)
    if len(stretches) < 2:
        return None
    first_ns, last_ns, whole = stretches[0].start_ns, stretches[-1].start_ns, stretches[:-1]
    updates = [e for e in events if e.kind == "optimizer" and first_ns <= e.start_ns < last_ns]
    acting_ns = sum(one.end_ns - one.start_ns for one in whole)
    return Rollouts(
        share=acting_ns / (last_ns - first_ns),
        seconds=acting_ns / len(whole) / 1e9,
        num_calls=sum(one.num_calls for one in whole) / len(whole),
        updates=len(updates) / len(whole),
    )


def _seen(session: Session) -> tuple[list[Event], list[_Stretch]]:
    events = _observed(session)
    has_loader = any(event.kind == "input" for event in session.events)
    return events, [] if has_loader else _stretches(events, _acting(session, events))


def _observed(session: Session) -> list[Event]:
    """The calls of models, backward passes and updates before the first profiled step, which takes longer."""
    end_ns = min((block.start_ns for block in blocks_of(session, ("dissect",))), default=None)
    kinds = ("forward", "backward", "optimizer")
    return [e for e in session.events if e.kind in kinds and (end_ns is None or e.start_ns < end_ns)]


def _acting(session: Session, events: Sequence[Event]) -> set[int]:
    """The ids of the events in which a model acts: it is called without gradients, on fewer samples than in training.

    A copy of a trained model may act too, as the old policy of PPO does. A copy is recognised by class and size.
    """
    kinds = {model.ident: (model.class_name, model.num_parameters) for model in session.models}
    learning: dict[object, list[int]] = {}
    for event in events:
        if event.kind == "forward" and event.grad and event.samples:
            learning.setdefault(kinds.get(event.ident, event.ident), []).append(event.samples)
    usual = {kind: median(samples) for kind, samples in learning.items()}
    return {
        id(event)
        for event in events
        if event.kind == "forward"
        and not event.grad
        and SMALLER * event.samples <= usual.get(kinds.get(event.ident, event.ident), 0.0)
    }


def _stretches(events: Sequence[Event], acting: set[int]) -> list[_Stretch]:
    """The stretches of time in which models act.

    A stretch lasts from the end of the training before it to the first training call after it.
    """
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
    """A sentence if rollouts take a large part of the time, or if the first rollout did; else ""."""
    seen = rollouts(session)
    if seen is None:
        return _first_note(session)
    if seen.share < LEAST_SHARE:
        return ""
    stacks = watched_stacks(session, "main", ("other", "evaluation"))
    hot = hottest_line(session, [one for one in stacks if one.stage not in BESIDE and not is_logging(one)])
    where = f" Most samples there are at {place(hot.site)}." if hot else ""
    return (
        f"{in_percent(seen.share)} of the time are rollouts, in which the model acts and nothing is trained: "
        f"{in_seconds(seen.seconds)} with {plural(round(seen.num_calls), 'call')} of the model before every "
        f"{plural(max(1, round(seen.updates)), 'update')}. The usual step does not contain that time.{where}"
    )


class ActingWithGradients(msgspec.Struct, frozen=True):
    """A reinforcement learner whose model acts with gradients, as in REINFORCE and actor-critic methods.

    The graphs of the calls in which it acts belong to its next backward pass.
    """

    num_calls: float  # Median number of calls of the model before one backward pass
    share: float  # Share of the time that passes between these calls, outside the model


def acting_with_gradients(session: Session) -> ActingWithGradients | None:
    """Returns None unless the script acts with gradients.

    A script with a loader does not act. Neither does a script that calls its model only a few times before a backward
    pass, or spends little time between these calls.
    """
    if any(event.kind == "input" for event in session.events):
        return None
    calls: list[Event] = []
    groups: list[list[Event]] = []
    ends_ns: list[int] = []  # Ends of the backward passes
    for event in _observed(session):
        if event.kind == "forward" and event.grad:
            calls.append(event)
        elif event.kind == "backward" and calls:
            groups.append(calls)
            ends_ns.append(event.end_ns)
            calls = []
    if len(groups) < 2 or ends_ns[-1] <= ends_ns[0]:
        return None
    between_ns = sum(after.start_ns - before.end_ns for group in groups[1:] for before, after in pairwise(group))
    found = ActingWithGradients(
        num_calls=median([float(len(group)) for group in groups[1:]]),
        share=between_ns / (ends_ns[-1] - ends_ns[0]),
    )
    return found if found.num_calls >= FEWEST_WITH_GRADIENTS and found.share >= LEAST_SHARE else None


def acting_note(session: Session) -> str:
    """A sentence about a learner that acts with gradients; else ""."""
    seen = acting_with_gradients(session)
    if seen is None:
        return ""
    return (
        f"Before each backward pass the model is called {plural(round(seen.num_calls), 'time')}, with gradients. "
        f"{in_percent(seen.share)} of the time passes between these calls, outside the model: in an environment in "
        "which the model acts, or in parts of the loss."
    )


def _first_note(session: Session) -> str:
    """A sentence if only one rollout was observed, so it is unknown whether and when the next one comes; else ""."""
    events, stretches = _seen(session)
    if len(stretches) != 1 or stretches[0].num_calls < FEWEST_CALLS:
        return ""
    acting_ns = stretches[0].end_ns - stretches[0].start_ns
    if acting_ns < LEAST_SHARE * (events[-1].end_ns - stretches[0].start_ns):
        return ""
    updates = sum(event.kind == "optimizer" and event.start_ns >= stretches[0].end_ns for event in events)
    return (
        f"In its first {in_seconds(acting_ns / 1e9)} the model acted in {plural(stretches[0].num_calls, 'call')} and "
        f"nothing was trained; then {plural(updates, 'update')} followed until the end of the observation. If such "
        "rollouts come again, their time is missing here. Give the script more time with --seconds."
    )
