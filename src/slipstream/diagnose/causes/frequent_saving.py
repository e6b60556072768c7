"""Checkpoints are saved so often that saving takes a noticeable part of the training."""

from __future__ import annotations

from slipstream.diagnose.gain import gain_of
from slipstream.diagnose.source_hints import more_rarely, trainers_own, warning_of
from slipstream.diagnose.statistics import fmean, median
from slipstream.diagnose.steps.selection import blocks_of, epoch_steps, most_frequent_site, steps_of
from slipstream.numbers import in_ms, in_percent
from slipstream.records import BlockKind, Event, Finding, Session, Site, Summary

KINDS: tuple[BlockKind, ...] = ("warmup", "watch", "kept")
SAVED = 0.9


def find(session: Session, summary: Summary) -> list[Finding]:
    events, steps = _savings(session), steps_of(session, KINDS)
    rate = _per_step(session, events, len(steps))
    if rate == 0:
        return []
    one_ms = fmean([(event.end_ns - event.start_ns) / 1e6 for event in events])
    # Few steps save, so the median of the steps may not contain the cost of saving. The cost is therefore computed from
    # the number of saves. The step without saving is a median, so a few steps that stall while the disk writes a
    # checkpoint do not make it longer.
    plain_ms = min(summary.step_ms, median([step.step_ms - step.saving_ms for step in steps]))
    now_ms = plain_ms + rate * one_ms
    site = most_frequent_site(session, events)
    every = "every step" if rate > 0.9 else f"every {1 / rate:.0f} steps"
    return [
        Finding(
            cause="frequent_saving",
            title="Checkpoints are written very often",
            evidence=f"Saving takes {in_ms(one_ms)} and happens {every}: "
            f"{in_percent(rate * one_ms / now_ms)} of the training time.",
            predicted_gain=gain_of(now_ms, plain_ms + (1 - SAVED) * rate * one_ms),
            change=_change(session, site, _interval(one_ms, plain_ms, rate), rate),
            site=site,
            settings={"save_steps": str(_interval(one_ms, plain_ms, rate))},
            advice=warning_of(session, site),
        )
    ]


def _savings(session: Session) -> list[Event]:
    spans = [(block.start_ns, block.end_ns) for block in blocks_of(session, KINDS)]
    return [
        event
        for event in session.events
        if event.kind == "saving" and any(start <= event.start_ns < end for start, end in spans)
    ]


def _per_step(session: Session, events: list[Event], num_steps: int) -> float:
    """Saves per step.

    If only one save was observed, the result is one save per epoch. The result is 0 if less than an epoch was observed,
    because the next save cannot be predicted then.
    """
    if not events or num_steps == 0:
        return 0.0
    if len(events) == 1:
        epoch = epoch_steps(session)
        return 1 / epoch if epoch and num_steps >= epoch else 0.0
    return len(events) / num_steps


def _interval(one_ms: float, plain_ms: float, rate: float) -> int:
    """A round number of steps between two saves, at most 10,000. If possible, saving costs at most one per cent."""
    wanted = max(one_ms / max(plain_ms, 1e-6) * 100, 10 / rate)
    return next((number for number in (10, 50, 100, 500, 1000, 5000) if number >= wanted), 10_000)


def _change(session: Session, site: Site | None, steps: int, rate: float) -> str:
    lightning = f"Trainer(..., callbacks=[ModelCheckpoint(every_n_train_steps={steps})])"
    transformers = f'TrainingArguments(..., save_strategy="steps", save_steps={steps})'
    own = trainers_own(session, site, lightning, transformers, "_save_checkpoint", "_maybe_log_save_evaluate")
    # Iterations of the loop around the line, which may be the loop over epochs
    iterations = max(2, round(steps * rate))
    return own or f"every {steps} steps: {more_rarely(session, site, iterations, 'torch.save(...)')}"
