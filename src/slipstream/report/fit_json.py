"""The part of the exported document that a fit adds."""

from __future__ import annotations

from slipstream.records import Fitting, Recipe, Setting, Trial
from slipstream.report.document import FittingPart, TrialPart


def fitting_of(fitting: Fitting) -> FittingPart:
    return FittingPart(
        fitting.limit_bytes,
        fitting.limit_source,
        fitting.device,
        fitting.own_batch,
        fitting.own_fits,
        fitting.largest,
        fitting.too_large,
        fitting.fastest,
        _settings(fitting.recipe),
        fitting.parameter_bytes,
        [_trial(trial) for trial in fitting.trials],
        fitting.seconds_spent,
        fitting.notes,
    )


def _trial(trial: Trial) -> TrialPart:
    rate = trial.rate
    return TrialPart(
        trial.batch_size,
        _settings(trial.recipe),
        trial.is_held,
        trial.outcome,
        trial.reason,
        trial.peak_bytes,
        trial.step_ms,
        trial.samples_per_s,
        rate.ratio if rate else None,
        rate.low if rate else None,
        rate.high if rate else None,
    )


def _settings(recipe: Recipe) -> dict[str, Setting]:
    return {choice.technique: choice.setting for choice in recipe.choices}
