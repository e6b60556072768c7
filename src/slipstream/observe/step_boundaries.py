"""Decides which events end an iteration of the script's training loop, and which events belong to evaluation. The
decision uses all events of the trial, because two optimizers with different rates, or a loader that fetches ahead,
cannot be recognised in a single step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from slipstream.records import Event

_TRAINING_MARKS = ("backward", "optimizer")


def top_level(events: Sequence[Event], kind: str) -> list[Event]:
    """Returns the events of a kind that are not nested in another event of the same kind."""
    found: list[Event] = []
    for event in events:
        if event.kind == kind and not (found and event.start_ns < found[-1].end_ns):
            found.append(event)
    return found


def closing_events(events: Sequence[Event]) -> list[Event]:
    """Returns the event that closes each iteration: an update by the optimizer that steps most rarely. Without an
    optimizer it is the backward pass, and without a backward pass the forward pass."""
    updates = top_level(events, "optimizer")
    if updates:
        pace = pace_setters(events, updates)
        return [event for event in updates if event.ident in pace]
    return top_level(events, "backward") or _inference_closers(events)


def _inference_closers(events: Sequence[Event]) -> list[Event]:
    """Returns the last forward pass after each batch if there is a loader. Without a loader, returns every forward
    pass."""
    forwards = top_level(events, "forward")
    inputs = [event for event in events if event.kind == "input"]
    if not inputs or not forwards:
        return forwards
    closers: list[Event] = []
    for forward in forwards:
        arrived = any(closers[-1].end_ns <= e.start_ns < forward.start_ns for e in inputs) if closers else True
        if arrived:
            closers.append(forward)
        else:
            closers[-1] = forward
    return closers


def pace_setters(events: Sequence[Event], updates: Sequence[Event]) -> set[int]:
    """Returns one optimizer per group of optimizers that are in use at the same time: the one that steps most rarely.
    If several step equally rarely, the one after which most batches are requested is returned. Without a loader, the
    one whose first update came last is returned."""
    groups = _simultaneous(updates)
    chosen = set()
    for group in groups:
        counts = Counter(event.ident for event in updates if event.ident in group)
        fewest = min(counts.values())
        rarest = [ident for ident in counts if counts[ident] <= max(fewest + 1, fewest * 1.02)]
        chosen.add(rarest[0] if len(rarest) == 1 else _last_of_cycle(events, updates, rarest))
    return chosen


def _simultaneous(updates: Sequence[Event]) -> list[set[int]]:
    spans: dict[int, tuple[int, int]] = {}
    for event in updates:
        first, _ = spans.get(event.ident, (event.start_ns, 0))
        spans[event.ident] = (first, event.end_ns)
    groups: list[tuple[set[int], int]] = []
    for ident, (first, last) in sorted(spans.items(), key=lambda item: item[1]):
        if groups and first < groups[-1][1]:
            members, end = groups[-1]
            groups[-1] = (members | {ident}, max(end, last))
        else:
            groups.append(({ident}, last))
    return [members for members, _ in groups]


def _last_of_cycle(events: Sequence[Event], updates: Sequence[Event], candidates: Sequence[int]) -> int:
    followed: Counter[int] = Counter()
    last = -1
    for event in events:
        if event.kind == "optimizer" and event.ident in candidates:
            last = event.ident
        elif event.kind == "input" and last >= 0:
            followed[last] += 1
            last = -1
    if followed:
        return followed.most_common(1)[0][0]
    order = list(dict.fromkeys(event.ident for event in updates if event.ident in candidates))
    return order[-1]


def training_loaders(events: Sequence[Event]) -> set[int]:
    """Returns the loaders whose batches are trained on: a backward pass follows at least half of the batches. A batch
    that a model only evaluated is dropped when the next batch is requested. If it were not, the last batch of a
    validation would count as trained on."""
    asked: Counter[int] = Counter()
    learnt: Counter[int] = Counter()
    mode_switchers = _mode_switchers(events)
    trained_calls = _trained_in_evaluation_mode(events, mode_switchers)
    since: list[int] = []
    is_spent = False
    for event in events:
        if event.kind == "input":
            asked[event.ident] += 1
            if is_spent or event.ident in since:
                since = []
            since.append(event.ident)
            is_spent = False
        elif event.kind == "forward" and event.ident in mode_switchers:
            is_spent = not event.training and id(event) not in trained_calls
        elif event.kind == "backward" and since:
            for ident in set(since):
                learnt[ident] += since.count(ident)
            since = []
    if not learnt:
        return set(asked)
    return {ident for ident in asked if learnt[ident] >= 0.5 * asked[ident]} or {learnt.most_common(1)[0][0]}


def evaluation_spans(events: Sequence[Event]) -> list[tuple[int, int, list[Event]]]:
    """Returns the intervals in which the script evaluates: start, end and the events inside."""
    if not any(event.kind == "backward" or event.kind == "optimizer" for event in events):
        return []
    trains = training_loaders(events)
    trained_models = _trained_models(events)
    untrained_calls, mode_switchers = _untrained_calls(events), _mode_switchers(events)
    trained_calls = _trained_in_evaluation_mode(events, mode_switchers)
    evaluated = _evaluated_batches(events, trains, mode_switchers, trained_calls)
    spans: list[tuple[int, int, list[Event]]] = []
    inside: list[Event] = []
    start = last_end = 0
    for event in events:
        if id(event) in trained_calls:
            verdict = "training"
        elif id(event) in evaluated:
            verdict = "evaluation"
        else:
            verdict = (
                "neither" if id(event) in untrained_calls else _classify(event, trains, trained_models, bool(inside))
            )
        if verdict == "evaluation":
            if not inside:
                start = event.start_ns if event.kind != "forward" else max(last_end, 0) or event.start_ns
            inside.append(event)
        elif verdict == "training" and inside:
            spans.append((start, event.start_ns, inside))
            inside = []
        last_end = max(last_end, event.end_ns)
    if inside:
        spans.append((start, max(event.end_ns for event in inside), inside))
    return spans


def _trained_models(events: Sequence[Event]) -> set[int]:
    return {event.ident for event in events if event.kind == "forward" and event.training and event.grad}


def _mode_switchers(events: Sequence[Event]) -> set[int]:
    """Returns the models that are called both in training mode and in evaluation mode. A loss module (nn.MSELoss) is
    never put into evaluation mode, so its calls do not show the mode of the script."""
    return _trained_models(events) & {event.ident for event in events if event.kind == "forward" and not event.training}


def _untrained_calls(events: Sequence[Event]) -> set[int]:
    """Returns the calls, by identity, of modules that do not switch modes and after which the next batch follows
    instead of a backward pass. Example: the loss of a validation that runs with gradients enabled is not training."""
    mode_switchers = _mode_switchers(events)
    found: set[int] = set()
    is_training_ahead = True
    for event in reversed(events):
        if event.kind in _TRAINING_MARKS:
            is_training_ahead = True
        elif event.kind in ("input", "iterator"):
            is_training_ahead = False
        elif event.kind == "forward" and event.ident in mode_switchers:
            is_training_ahead = event.training
        elif event.kind == "forward" and not is_training_ahead:
            found.add(id(event))
    return found


def _trained_in_evaluation_mode(events: Sequence[Event], mode_switchers: set[int]) -> set[int]:
    """Returns the calls of a model in evaluation mode, by identity, that are trained on nevertheless: a script may
    validate and not call train() afterwards. A call that is trained on is followed by a backward pass, with neither
    another batch nor a call in training mode in between. A backward pass after another batch or call belongs to that
    batch or call. Calls of loss modules are ignored, because they do not show the mode."""
    trained_calls: set[int] = set()
    pending: list[Event] = []
    for event in events:
        if event.kind == "backward":
            trained_calls.update(id(call) for call in pending)
        if event.kind in ("input", "iterator", *_TRAINING_MARKS):
            pending = []
        elif event.kind == "forward" and event.ident in mode_switchers:
            pending = [*pending, event] if event.grad and not event.training else []
    return trained_calls


def _evaluated_batches(
    events: Sequence[Event], trains: set[int], mode_switchers: set[int], trained_calls: set[int]
) -> set[int]:
    """Returns the batches of a training loader, by identity, that are only evaluated. Example: `test(train_loader)`
    computes the training accuracy. A batch is only evaluated if no training on it takes place before the next batch is
    requested or the trial ends."""
    evaluated: set[int] = set()
    asked: list[Event] = []  # the last batch of a training loader, preceded by its iterator if that is new
    is_evaluated = False
    for event in events:
        if event.kind in ("input", "iterator"):
            evaluated.update(id(one) for one in asked if is_evaluated)
            is_new = len(asked) == 1 and asked[0].kind == "iterator" and not is_evaluated
            asked = [*(asked if is_new else ()), event] if event.ident in trains else []
            is_evaluated = False
        elif (
            event.kind == "forward"
            and event.ident in mode_switchers
            and not event.training
            and id(event) not in trained_calls
        ):
            is_evaluated = bool(asked)
        elif event.kind in _TRAINING_MARKS or (event.kind == "forward" and event.ident in mode_switchers):
            asked, is_evaluated = [], False
    evaluated.update(id(one) for one in asked if is_evaluated)
    return evaluated


def _classify(event: Event, trains: set[int], trained_models: set[int], is_inside: bool) -> str:
    if event.kind in ("input", "iterator"):
        return "training" if event.ident in trains else "evaluation"
    if event.kind in _TRAINING_MARKS:
        return "training"
    if event.kind == "forward":
        if event.ident in trained_models and not event.training:
            return "evaluation"
        return "evaluation" if is_inside and not (event.grad and event.training) else "training"
    return "neither"
