"""Loss curves with the recipe and without it, and how far the means of their windows may differ."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slipstream.numbers import as_count, plural
from slipstream.records import Numerics, TrialRecord, Tuning
from slipstream.report.html.chart import Chart, Key, plain_table
from slipstream.report.html.svg import Frame, Point, Scale, axes, dots, line, picture, ribbon, stretched, thinned
from slipstream.report.text.numerics import describe_numerics
from slipstream.verify.numerics import Controls, loss_windows
from slipstream.verify.trajectory import Curve, LossWindow, common_steps, curves_of, pairs_of

IDENT = "losses"
TITLE = "Losses with the recipe and without"
HEIGHT = 220.0
MOST_DOTS = 600
MOST_CURVES = 2  # a GAN has two losses; the many losses of gradient accumulation are alike


def loss_charts(tuning: Tuning) -> list[Chart]:
    """Returns one chart for each loss of a step, at most MOST_CURVES. Without a kept recipe or a loss curve there is no
    chart."""
    if not tuning.recipe.choices:
        return []
    tuned = [trial for trial in tuning.trials if trial.spec.recipe == tuning.recipe]
    pair = _pair([trial for trial in tuning.trials if trial.spec.role == "base"], tuned)
    if pair is None:
        return []
    base, candidate = (record.fingerprint for record in pair)
    numerics = _numerics(tuning)
    controls = Controls(
        rounding=[
            trial.fingerprint
            for trial in tuning.trials
            if trial.spec.role == "rounding" and numerics is not None and trial.spec.precision == numerics.precision
        ],
        seeds=[trial.fingerprint for trial in tuning.trials if trial.spec.role == "seed"],
    )
    found = []
    pairs = {key: pair for key, pair in pairs_of(base, candidate).items() if len(common_steps(*pair)) > 1}
    for number, (key, curves) in enumerate(list(pairs.items())[:MOST_CURVES]):
        windows = loss_windows(base, candidate, controls, numerics or Numerics("redrawn", None), key)
        found.append(_chart(tuning, number, curves, curves_of(controls.rounding, key)[:1], windows))
    return found


def _pair(bases: Sequence[TrialRecord], tuned: Sequence[TrialRecord]) -> tuple[TrialRecord, TrialRecord] | None:
    """Returns the base trial and the tuned trial whose shorter loss curve is longest, or None. The base and the recipe
    may have several trials each."""
    pairs = [(base, other) for base in bases for other in tuned if base.fingerprint.losses and other.fingerprint.losses]
    return max(
        pairs, key=lambda pair: min(len(pair[0].fingerprint.losses), len(pair[1].fingerprint.losses)), default=None
    )


def _chart(
    tuning: Tuning, number: int, pair: tuple[Curve, Curve], noise: Sequence[Curve], windows: Sequence[LossWindow]
) -> Chart:
    ident = f"{IDENT}-{number}" if number else IDENT
    title = f"{TITLE}, loss {number + 1} of a step" if number else TITLE
    ours, theirs = pair
    steps = common_steps(ours, theirs)
    before, after = (_points(curve, steps) for curve in (ours, theirs))
    judged = [window for window in windows if math.isfinite(window.limit)]
    frame = Frame(Scale(steps[0], steps[-1]), _reach([*before, *after], judged), HEIGHT)
    horizon = _horizon(tuning, steps)
    layer = stretched(
        frame,
        *(ribbon(frame, _flat(w, w.ours - w.limit), _flat(w, w.ours + w.limit), "ribbon") for w in judged),
        *(dots(frame, thinned(_points(curve, steps), MOST_DOTS), "dots-noise") for curve in noise),
        dots(frame, thinned(before, MOST_DOTS), "dots-base"),
        dots(frame, thinned(after, MOST_DOTS), "dots-kept"),
        *(line(frame, _flat(window, window.ours), "line-base wide") for window in windows),
        *(line(frame, _flat(window, window.theirs), "line-kept") for window in windows),
        *(line(frame, [(at, frame.y.low), (at, frame.y.high)], "line-horizon") for at in horizon),
    )
    sentence = f"{plural(len(steps), 'step')} of both trials; {_numerics_sentence(tuning)}."
    height = frame.full_height
    grid = axes(frame, as_count, _as_loss)
    keys = [Key("mark-base", "as it is"), Key("mark-kept", str(tuning.recipe)), Key("ribbon", "may differ by")]
    keys += [Key("mark-noise", "as it is, with rounding noise")] if noise else []
    beyond = " After the vertical line, the horizon, rounding dominates the training." if horizon else ""
    return Chart(
        ident,
        title,
        f"{sentence} Points are steps, lines are means of windows, and the band is how far the means may differ."
        f"{beyond}",
        sentence,
        picture(ident, title, sentence, height, grid, layer, style="with-axis"),
        keys,
        plain_table(title, ("steps", "as it is", "with the recipe", "may differ by"), "lrrr", _rows(windows)),
    )


def _numerics(tuning: Tuning) -> Numerics | None:
    """Returns the last numerics that were judged for the whole recipe, or None."""
    wholes = [v.numerics for v in tuning.verdicts if v.numerics and set(v.recipe.choices) == set(tuning.recipe.choices)]
    return wholes[-1] if wholes else None


def _horizon(tuning: Tuning, steps: Sequence[int]) -> list[float]:
    numerics = _numerics(tuning)
    at = numerics.horizon_steps if numerics is not None else None
    return [float(at)] if at is not None and steps[0] <= at <= steps[-1] else []


def _numerics_sentence(tuning: Tuning) -> str:
    numerics = _numerics(tuning)
    return describe_numerics(numerics) if numerics is not None else f"with {tuning.recipe}"


def _points(curve: Curve, steps: Sequence[int]) -> list[Point]:
    """Returns the finite losses at these steps. A control may have run fewer steps than the two trials."""
    return [(float(step), curve[step]) for step in steps if step in curve and math.isfinite(curve[step])]


def _reach(points: Sequence[Point], windows: Sequence[LossWindow]) -> Scale:
    """Returns the range of the axis. It includes the band, and all values but the most extreme 1% on either side."""
    values = sorted(value for _, value in points)
    cut = len(values) // 100
    ends = [window.ours + side * window.limit for window in windows for side in (-1.0, 1.0)]
    low, high = min([values[cut], *ends]), max([values[-1 - cut], *ends])
    margin = 0.05 * (high - low) or max(abs(high), 1.0) * 0.05
    return Scale(low - margin, high + margin)


def _flat(window: LossWindow, value: float) -> list[Point]:
    """Returns a level line over the whole window, because only means of windows are compared."""
    return [(float(window.first), value), (float(window.last), value)]


def _as_loss(value: float) -> str:
    return f"{value:.3g}"


def _rows(windows: Sequence[LossWindow]) -> list[list[str]]:
    return [
        [
            f"{w.first:,}–{w.last:,}",
            f"{w.ours:.5g}",
            f"{w.theirs:.5g}",
            f"{w.limit:.3g}" if math.isfinite(w.limit) else "not judged",
        ]
        for w in windows
    ]
