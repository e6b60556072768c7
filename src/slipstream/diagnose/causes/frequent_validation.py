"""Validation takes a large part of each epoch."""

from __future__ import annotations

import math
from collections import Counter

from slipstream.diagnose.gain import gain_of
from slipstream.diagnose.source_hints import joined, more_rarely, statement_on, trainers_own, warning_of
from slipstream.diagnose.statistics import fmean
from slipstream.diagnose.steps.selection import epoch_steps
from slipstream.diagnose.steps.undisturbed import counted_steps
from slipstream.diagnose.steps.validation import ValidationCost, validation_cost
from slipstream.numbers import in_ms, in_percent, plural
from slipstream.records import Evaluation, Finding, Session, Site, Summary

LEAST_SHARE = 0.15
WANTED_SHARE = 0.05
READ_BY = ("evaluate", "_maybe_log_save_evaluate")  # Methods of the Hugging Face Trainer that follow eval_steps
SAME_LENGTH = 0.05  # Tolerance in epochs. A script may or may not count a smaller last step.


def find(session: Session, summary: Summary) -> list[Finding]:
    steps = counted_steps(session)
    cost = validation_cost(session, summary.step_ms, summary.phases)
    if cost is None or not cost.is_measured or not steps or summary.is_inference:
        return []
    if any(evaluation.grad for evaluation in session.evaluations if evaluation.after_step >= 0):
        return []  # Evaluation with gradients takes too long. The finding grad_in_evaluation reports this.
    step_ms = max(summary.step_ms, fmean([step.step_ms for step in steps]))
    share = cost.share(step_ms)
    if share < LEAST_SHARE:
        return []
    # The factor by which validation must become rarer to take a twentieth of the time of training.
    rarer = max(2, math.ceil(share / (1 - share) / WANTED_SHARE)) if share < 1 else 2
    seen = [evaluation for evaluation in session.evaluations if evaluation.after_step >= 0]
    sites = Counter(site for one in seen if (site := _who_validates(session, one)))
    site = sites.most_common(1)[0][0] if sites else None
    return [
        Finding(
            cause="frequent_validation",
            title="Much of the epoch is validation",
            # The evidence shows the training time between evaluations. The mean step itself would differ from the
            # median in the headline.
            evidence=f"Validation takes {in_ms(cost.ms)}{_how_often(cost)}, beside {in_ms(cost.every_steps * step_ms)} "
            f"of training: {in_percent(share)} of the time{' at the most' if cost.is_once else ''}.",
            predicted_gain=gain_of(1.0, (1 - share) + share / rarer),
            change=_change(session, site, cost, rarer),
            site=site,
            settings={"eval_steps": f"{rarer * cost.every_steps:.0f}"},
            techniques=["workers"] if _waits(session) else [],
            advice=joined(
                "Or validate on a fixed part of the data, and on all of it at the end.", warning_of(session, site)
            ),
        )
    ]


def _who_validates(session: Session, evaluation: Evaluation) -> Site | None:
    """The line of the loop that calls the validation; with a trainer, the line that starts the trainer."""
    is_trainers = bool(trainers_own(session, evaluation.site, "its own", "its own"))
    return evaluation.site if is_trainers else evaluation.caller or evaluation.site


def _how_often(cost: ValidationCost) -> str:
    steps = plural(cost.every_steps, "step")
    return f", seen once in {steps}" if cost.is_once else f" after every {steps}"


def _change(session: Session, site: Site | None, cost: ValidationCost, rarer: int) -> str:
    """The change. It counts epochs if validation runs once an epoch, and then its line is in the loop over epochs."""
    steps = f"{rarer * cost.every_steps:.0f}"
    evaluations = [statement_on(session, one.site) for one in session.evaluations if one.after_step >= 0]
    is_alone = all(one is not None and one.only_evaluates for one in evaluations)
    line = more_rarely(session, site, rarer, "validate(...)", does_nothing_else=is_alone)
    transformers = f'TrainingArguments(..., eval_strategy="steps", eval_steps={steps})'
    epoch = epoch_steps(session)
    if epoch is not None and not cost.is_once and abs(cost.every_steps - epoch) < SAME_LENGTH * epoch:
        own = trainers_own(session, site, f"Trainer(..., check_val_every_n_epoch={rarer})", transformers, *READ_BY)
        return f"after every {rarer} epochs, not each: " + (own or line)
    lightning = f"Trainer(..., val_check_interval={steps}, check_val_every_n_epoch=None)"
    often = "" if cost.is_once else f" in place of {cost.every_steps:.0f}"
    own = trainers_own(session, site, lightning, transformers, *READ_BY)
    return f"every {steps} steps{often}: " + (own or line)


def _waits(session: Session) -> bool:
    """Whether the evaluations wait for their loader longer than their forward passes take."""
    seen = [one for one in session.evaluations if one.after_step >= 0]
    return sum(one.input_ms for one in seen) > sum(one.forward_ms for one in seen)
