"""The numbers at the top of the page."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from slipstream.diagnose.steps.undisturbed import has_headline
from slipstream.memory.remedies import list_remedies
from slipstream.numbers import (
    as_count,
    as_gain,
    as_ratio,
    between_ratios,
    in_bytes,
    in_ms,
    in_percent,
    in_seconds,
    plural,
)
from slipstream.records import Footprint, Session, Summary, Tuning
from slipstream.report.text.memory import MEMORY, largest_batch, largest_kind
from slipstream.report.text.step import LONGEST, step_figure
from slipstream.report.text.tune import step_with


class Figure(msgspec.Struct, frozen=True):
    name: str
    value: str
    note: str = ""
    is_main: bool = False


def figures(session: Session) -> list[Figure]:
    if session.tuning is not None:
        return list(_of_tuning(session.tuning))
    if session.command == MEMORY and session.footprints:
        return list(_of_memory(session, session.footprints[0]))
    if session.summary is not None and session.summary.num_steps > 0:
        return list(_of_check(session, session.summary))
    return []


def _of_check(session: Session, summary: Summary) -> Iterator[Figure]:
    figure, basis = step_figure(summary)
    is_known = has_headline(summary)
    yield Figure("a step", figure, f"95%: {basis}" if is_known else basis, is_main=True)
    if summary.samples_per_s > 0 and is_known:
        yield Figure("samples a second", as_count(summary.samples_per_s))
    if best_ms := summary.ceilings.best_ms():
        yield Figure(LONGEST, in_ms(best_ms), "a step in which input and compute overlap perfectly")
    if session.findings:
        most = max(finding.predicted_gain for finding in session.findings)
        yield Figure("largest finding", as_gain(most), plural(len(session.findings), "finding"))
    if summary.seconds_left is not None and is_known:
        is_turn = session.length is not None and session.length.around is not None
        what = "one iteration of the outer loop" if is_turn else "the whole training"
        yield Figure(what, in_seconds(summary.seconds_left), "at this rate")


def _of_memory(session: Session, footprint: Footprint) -> Iterator[Figure]:
    batch = f"with a batch of {footprint.batch_size:,}" if footprint.batch_size else ""
    yield Figure("at the peak", in_bytes(footprint.peak_bytes), batch, is_main=True)
    kind, share = largest_kind(footprint)
    yield Figure(f"of it {kind}", in_percent(share), in_bytes(share * footprint.peak_bytes))
    if remedies := list_remedies(footprint):
        left = footprint.peak_bytes - remedies[0].freed_bytes
        yield Figure("could be", in_bytes(left), f"with {remedies[0].name}: {remedies[0].price}")
    if largest := largest_batch(session):
        yield Figure("largest batch", f"{largest:,}", f"that fits in {in_bytes(footprint.capacity_bytes)}")


def _of_tuning(tuning: Tuning) -> Iterator[Figure]:
    is_kept = bool(tuning.recipe.choices) and tuning.total is not None
    if is_kept and tuning.total is not None:
        interval = between_ratios(tuning.total.low, tuning.total.high)
        yield Figure("as fast", as_ratio(tuning.total.ratio), f"95%: {interval}", is_main=True)
        yield Figure("a step", in_ms(step_with(tuning, tuning.total)), f"was {in_ms(tuning.base_step_ms)}")
    else:
        yield Figure("a step", in_ms(tuning.base_step_ms), "unchanged", is_main=True)
    if tuning.base_samples_per_s:
        ratio = tuning.total.ratio if is_kept and tuning.total else 1.0
        note = f"was {as_count(tuning.base_samples_per_s)}" if is_kept else ""
        yield Figure("samples a second", as_count(tuning.base_samples_per_s * ratio), note)
    if is_kept and tuning.seconds_before is not None and tuning.seconds_after is not None:
        yield Figure("the whole training", in_seconds(tuning.seconds_after), f"was {in_seconds(tuning.seconds_before)}")
    if tuning.noise is not None:
        noise = tuning.noise
        interval = f"95%: {between_ratios(noise.low, noise.high)}, " if noise.is_bounded else ""
        yield Figure("nothing (A/A)", as_ratio(noise.ratio), f"{interval}the machine's noise")
