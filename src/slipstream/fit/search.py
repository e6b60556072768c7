"""Finds what fits within a memory limit.

The search finds whether the script's own batch fits and, if not, which techniques make the batch fit. With --fit it
also finds the largest and the fastest batch. Every result ran under the limit. A recipe with another batch size is kept
only if the user allowed another batch size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from slipstream.fit.attempts import FitAttempts, FitBackend, FitRun
from slipstream.fit.batch_bisection import BatchBisection, Held, held_by, num_twos
from slipstream.fit.memory_techniques import MemoryGap, make_room
from slipstream.fit.options import FitError, FitOptions
from slipstream.memory.forecast import forecast
from slipstream.numbers import in_binary
from slipstream.records import Choice, FitAttempt, Fitting, Recipe, Session
from slipstream.report.text.fit import say_trial
from slipstream.techniques._core.catalogue import Technique, catalogue
from slipstream.techniques._core.observation import Observation
from slipstream.tuning.progress import ProgressListener

BATCH_CLAIM: Final = "loader.batch_size"  # the claim of the technique that sets the batch size
_EQUAL: Final = 0.99  # rates from this share of the best rate on count as equal; the difference does not matter
_MUCH: Final = 0.01  # the user is told if two starts with the same batch differ by more than this share of the limit
_MOST_RACED: Final = 5  # the most batch sizes that race, besides the script's own
_EDGE_SHARE: Final = 0.6  # the share of the time for finding the largest batch; the rest is for the fastest


def fit(
    session: Session,
    backend: FitBackend,
    order: FitOptions,
    tell: ProgressListener,
    techniques: Mapping[str, Technique] | None = None,
) -> Fitting:
    """Searches for what fits. `session` comes from a trial that observed the memory of a step.

    Raises FitError if there is no solution. If possible, the message of the error says what would fit.
    """
    return _Fit(session, backend, order, tell, catalogue() if techniques is None else techniques).result()


class _Fit:
    def __init__(
        self,
        session: Session,
        backend: FitBackend,
        order: FitOptions,
        tell: ProgressListener,
        known: Mapping[str, Technique],
    ) -> None:
        self._session, self._order, self._known, self._tell = session, order, known, tell
        self._observation = Observation(session)
        self._backend = backend
        self._start_s = backend.now_s()
        self._trials = FitAttempts(
            backend,
            tell,
            order.limit_bytes,
            self._start_s + order.budget_s,
            order.seed,
            lambda trial: say_trial(trial, order.limit_bytes),
        )
        footprints = session.footprints
        self._forecast = forecast(footprints)
        self._parameter_bytes = footprints[0].kinds.get("parameters", 0) if footprints else 0
        self._device = footprints[0].device if footprints else "cpu"
        loader = self._observation.loader
        self._own = (loader.batch_size if loader is not None else None) or (
            footprints[0].batch_size if footprints else 0
        )
        self._most = loader.num_samples if loader is not None else None
        self._sets_batch = next((ident for ident, one in known.items() if BATCH_CLAIM in one.CARD.claims), "")
        self._notes: list[str] = []
        self._edge: BatchBisection | None = None

    def result(self) -> Fitting:
        order = self._order
        self._refuse_too_little()
        if order.finds_batch:
            self._refuse_fixed_batch()
        try:
            base = self._try_unheld()
            own = self._trials.run(FitRun(self._own))
            if own.outcome not in ("ran", "ran_out"):
                raise FitError(f"the script cannot be tried within the limit: {own.reason}")
            largest = self._find_largest(own, base) if order.finds_batch else None
            room = MemoryGap() if own.outcome == "ran" else self._make_room()
            fastest = self._find_fastest(largest) if largest and order.races else None
        finally:
            self._trials.end()
        return Fitting(
            limit_bytes=order.limit_bytes,
            limit_source=order.limit_source,
            device=self._device,
            own_batch=self._own,
            own_fits=own.outcome == "ran",
            parameter_bytes=self._parameter_bytes,
            attempts=self._trials.made,
            largest=largest,
            too_large=self._edge.too_large if self._edge is not None and self._edge.is_bounded else None,
            fastest=fastest,
            recipe=self._choose(room, fastest),
            notes=[*self._notes, *room.notes],
            seconds_spent=self._backend.now_s() - self._start_s,
        )

    # --- errors -------------------------------------------------------------------------------------------------------

    def _refuse_too_little(self) -> None:
        limit, parameters = self._order.limit_bytes, self._parameter_bytes
        if limit < parameters:
            raise FitError(
                f"the parameters alone take {in_binary(parameters)}, but the limit is {in_binary(limit)}."
                f"{self._would_fit()}"
            )

    def _would_fit(self, base: FitAttempt | None = None) -> str:
        """Returns a sentence with an estimate of the limit in which a batch of one would run, or ""."""
        if self._forecast is None:
            return ""
        if base is not None and base.peak_bytes:
            return f" A batch of one needs about {in_binary(self._held(base)(1))} in total."
        return f" The tensors of a batch of one alone take about {in_binary(self._forecast.peak_bytes(1))}."

    def _held(self, base: FitAttempt) -> Held:
        assert self._forecast is not None and base.peak_bytes is not None
        return held_by(self._forecast, self._own, base.peak_bytes)

    def _refuse_fixed_batch(self) -> None:
        technique = self._known.get(self._sets_batch)
        answer = technique.applies(self._observation) if technique is not None else None
        if answer is None or not answer.is_yes:
            why = answer.reason if answer is not None else "no technique sets it"
            raise FitError(
                f"the batch cannot be changed from outside: {why}. `slipstream memory` shows what a batch needs."
                " `slipstream tune --memory-limit SIZE` without --fit finds what makes the script's own batch fit."
            )

    # --- the script as it is ------------------------------------------------------------------------------------------

    def _try_unheld(self) -> FitAttempt | None:
        """Runs the script as it is without a limit, as the reference for all other attempts. Returns None if it ran out
        of memory."""
        base = self._trials.anchor(FitRun(self._own, is_held=False))
        if base.outcome == "ran_out":
            self._notes.append("The script as it is ran out of memory even without the limit.")
            return None
        if base.outcome != "ran":
            raise FitError(f"the script as it is could not be tried: {base.reason}")
        if self._order.limit_bytes < base.start_bytes:
            raise FitError(
                f"the process already holds {in_binary(base.start_bytes)} before its first step (the parameters are"
                f" {in_binary(self._parameter_bytes)} of that), but the limit is {in_binary(self._order.limit_bytes)}."
                f"{self._would_fit(base)}"
            )
        return base

    # --- the largest --------------------------------------------------------------------------------------------------

    def _find_largest(self, own: FitAttempt, base: FitAttempt | None) -> int:
        foretold = self._held(base) if base is not None and base.peak_bytes and self._forecast is not None else None
        edge = self._edge = BatchBisection(self._order.limit_bytes, self._own, self._most, foretold)
        if base is not None and base.peak_bytes and own.outcome == "ran":
            edge.ran(self._own, base.peak_bytes)
        self._take(edge, own)
        while (size := edge.next_size()) is not None or not self._is_confirmed(edge):
            if edge.largest and self._backend.now_s() > self._start_s + _EDGE_SHARE * self._order.budget_s:
                self._notes.append(_out_of_time(edge, size))
                break
            self._take(edge, self._trials.run(self._fit_run(size or edge.answer())))
            if not edge.largest and edge.too_large <= 1:
                need = self._would_fit(base) or " Give a larger limit."
                limit = in_binary(self._order.limit_bytes)
                raise FitError(f"not even a batch of one runs within {limit}.{need}")
        if edge.spread_bytes > _MUCH * self._order.limit_bytes:
            self._notes.append(
                f"The memory of two starts with the same batch differed by {in_binary(edge.spread_bytes)}, so the"
                " largest batch is not known more exactly. The layout of the heap differs from start to start. To"
                " reduce the difference, set MALLOC_MMAP_THRESHOLD_=131072 in the environment, so that glibc maps every"
                " large block separately."
            )
        if not edge.is_bounded:
            self._notes.append(f"No batch was too large. A batch of {edge.largest} contains all of the data.")
        return edge.answer()

    def _is_confirmed(self, edge: BatchBisection) -> bool:
        """Whether the answer was tried twice, or needs no second try because memory does not set the limit. Close to
        the limit, a single success may be chance."""
        times = [one for one in self._trials.made if one.is_held and one.batch_size == edge.answer()]
        return len(times) > 1 or not edge.is_bounded

    def _take(self, edge: BatchBisection, trial: FitAttempt) -> None:
        if trial.outcome == "ran":
            edge.ran(trial.batch_size, trial.peak_bytes or 0)
        elif trial.outcome == "ran_out":
            edge.ran_out(trial.batch_size)
        elif trial.outcome == "ended":  # there are too few batches, so no larger size can be tried
            self._notes.append(
                f"With batches of {trial.batch_size}, the data has so few batches that the script ends at once."
            )
            edge.ran_out(trial.batch_size)
        elif self._runs_unheld(trial.batch_size):  # without memory, a library may fail with any message
            edge.ran_out(trial.batch_size)
        else:
            raise FitError(f"the script does not train with batches of {trial.batch_size}: {trial.reason}")
        self._refuse_unmoved(trial)

    def _runs_unheld(self, size: int) -> bool:
        return self._trials.run(msgspec.structs.replace(self._fit_run(size), is_held=False)).outcome == "ran"

    def _refuse_unmoved(self, trial: FitAttempt) -> None:
        """Raises FitError if the batch size was not set, because then the attempt shows nothing about the size."""
        refusals = [note.text for note in trial.declined if note.technique == self._sets_batch]
        is_set = any(change.technique == self._sets_batch for change in trial.changes)
        if trial.batch_size != self._own and refusals and not is_set:
            raise FitError(f"the batch cannot be changed from outside: {refusals[0]}.")

    def _fit_run(self, size: int) -> FitRun:
        return FitRun(size, sets_batch=self._sets_batch if size != self._own else "")

    # --- the fastest --------------------------------------------------------------------------------------------------

    def _find_fastest(self, largest: int) -> int | None:
        if not self._trials.has_anchor:
            self._notes.append("The fastest batch was not searched, because the script as it is does not run.")
            return None
        raced = []
        for size in ladder(self._own, largest):
            if not self._trials.has_time:
                self._notes.append("There was no time to race more batch sizes. A longer --budget races them.")
                break
            trial, _ = self._trials.race(self._fit_run(size))
            if trial.outcome == "ran" and trial.rate is not None:
                raced.append(trial)
        own = next((one for one in self._trials.made if one.batch_size == self._own and one.is_held), None)
        has_own = own is not None and own.outcome == "ran"
        return fastest_of(raced, self._own if has_own else 0)

    # --- what makes the batch fit -------------------------------------------------------------------------------------

    def _make_room(self) -> MemoryGap:
        self._tell.note("the script's batch does not fit: trying techniques that save memory")
        return make_room(self._trials, self._own, self._observation, self._known, self._order)

    def _choose(self, room: MemoryGap, fastest: int | None) -> Recipe:
        """Returns the cheapest recipe with the script's batch size. Without one, returns the fastest batch size, if the
        user allowed another batch size."""
        if room.cheapest is not None:
            return room.cheapest.recipe
        if self._order.allow == "different" and fastest is not None and fastest != self._own:
            return Recipe((Choice(self._sets_batch, fastest),))
        return Recipe()


def _out_of_time(edge: BatchBisection, size: int | None) -> str:
    if size is None or size < edge.largest:
        return (
            f"There was no time to run a batch of {edge.answer()} a second time. A longer --budget confirms the size."
        )
    between = f"between {edge.largest} and {edge.too_large - 1}"
    return f"There was no time to search further. The largest batch is {between}. A longer --budget finds it."


def ladder(own: int, largest: int) -> list[int]:
    """Returns the batch sizes to race, the largest first.

    These are the largest size, the script's own size doubled repeatedly, and half of the script's own size. If the
    largest size is smaller than the script's own size, half of the largest size takes the place of the last one.
    """
    sizes = {own * 2**power for power in range(1, 12) if own * 2**power < 0.9 * largest}
    sizes = set(sorted(sizes, reverse=True)[: _MOST_RACED - 2])
    if min(own, largest) > 1:
        sizes.add(min(own, largest) // 2)
    return [size for size in (largest, *sorted(sizes, reverse=True)) if size not in (own, 0)]


def fastest_of(raced: list[FitAttempt], own: int) -> int | None:
    """Returns the fastest batch size. `own` is the script's own size, whose rate is 1, or 0 if this size does not run.

    Of several sizes that are as fast as the best, the script's own size is preferred. The next preference is the size
    that is divisible by the highest power of two, because it suits the hardware, and then the smallest size.
    """
    rates = {trial.batch_size: trial.rate.ratio for trial in raced if trial.rate is not None}
    if own:
        rates[own] = 1.0
    if not rates:
        return None
    best = max(rates.values())
    equal = [size for size, rate in rates.items() if rate >= _EQUAL * best]
    return own if own in equal else min(equal, key=lambda size: (-num_twos(size), size))
