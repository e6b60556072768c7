"""The search for what fits, on a backend with simulated memory and speed. No process is started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from slipstream.diagnose import diagnose
from slipstream.fit.attempts import judge
from slipstream.fit.options import FitError, FitOptions
from slipstream.fit.search import fastest_of, fit, ladder
from slipstream.records import (
    BlockTiming,
    Failure,
    Fingerprint,
    FitAttempt,
    Fitting,
    Footprint,
    Session,
    TechniqueNote,
    TrialRecord,
    TrialSpec,
)
from slipstream.records.race import Speed
from slipstream.techniques._core.card import no
from slipstream.testing.made_sessions import made_session
from slipstream.testing.made_techniques import RecordingListener, made_technique

OUT = Failure("RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory")
OWN, START, EACH = 16, 1000, 10  # samples; bytes


class MemoryBackend:
    """A simulated backend. A trial needs START bytes, and EACH bytes more for every sample of the batch.

    `saving` maps techniques to the factor of the bytes for a sample, `prices` to the factor of the time.
    """

    def __init__(self, saving: dict[str, float] | None = None, prices: dict[str, float] | None = None) -> None:
        self.saving, self.prices = saving or {}, prices or {}
        self.best_batch = 64  # with larger or smaller batches, a sample takes longer
        self.slowness = 1.0
        self.raises: Failure | None = None  # the error with any other batch size than the script's own
        self.raises_held_only = False
        self.wrong_losses: set[str] = set()
        self.declined: dict[str, str] = {}
        self.num_entered = 0
        self._specs: dict[int, TrialSpec] = {}
        self._limits: dict[int, int] = {}
        self._timings: dict[int, list[BlockTiming]] = {}
        self._now_s = 0.0

    def bound(self, trial: int, limit_bytes: int) -> None:
        self._limits[trial] = limit_bytes

    def _batch(self, trial: int) -> int:
        return int(self._specs[trial].recipe.setting_of("resize") or OWN)

    def _named(self, trial: int) -> list[str]:
        return [str(choice) for choice in self._specs[trial].recipe.choices]

    def _held(self, trial: int) -> int:
        share = 1.0
        for name in self._named(trial):
            share *= self.saving.get(name, 1.0)
        return int(START + EACH * self._batch(trial) * share)

    def enter(self, spec: TrialSpec) -> Failure | None:
        self.num_entered += 1
        self._now_s += 3.0
        self._specs[spec.ident], self._timings[spec.ident] = spec, []
        assert spec.role == "fit"
        is_other = self._batch(spec.ident) != OWN
        if self.raises_held_only:
            is_other = self._batch(spec.ident) > OWN and spec.ident in self._limits
        if self.raises and is_other:
            return self.raises
        return OUT if self._held(spec.ident) > self._limits.get(spec.ident, 1 << 60) else None

    def run_block(self, trial: int, round: int, num_steps: int, lead_in: int) -> BlockTiming:
        batch = self._batch(trial)
        each_s = (0.02 + abs(batch - self.best_batch) / 1000) / 10
        for name in self._named(trial):
            each_s *= self.prices.get(name, 1.0)
        seconds = self.slowness * num_steps * batch * each_s
        self._now_s += seconds
        timing = BlockTiming(trial, round, 0, num_steps, seconds, 0, num_samples=num_steps * batch)
        self._timings[trial].append(timing)
        return timing

    def record(self, trial: int) -> TrialRecord:
        losses = [(step, 2.0 + (0.5 if self.wrong_losses & set(self._named(trial)) else 0.0)) for step in range(3)]
        names = [choice.technique for choice in self._specs[trial].recipe.choices]
        changes = [TechniqueNote(name, "done") for name in names if name not in self.declined]
        return TrialRecord(
            self._specs[trial],
            timings=self._timings[trial],
            fingerprint=Fingerprint(losses=losses),
            start_bytes=START,
            held_bytes=self._held(trial),
            changes=changes,
            declined=[TechniqueNote(name, self.declined[name]) for name in names if name in self.declined],
        )

    def leave(self, trial: int) -> TrialRecord:
        return self.record(trial)

    def expect(self, spec: TrialSpec) -> None:
        pass

    def capacity(self) -> int:
        return 4

    def now_s(self) -> float:
        return self._now_s


@pytest.fixture
def seen() -> Session:
    """Returns a session that observed the script's own batch size and half of this size."""
    session = diagnose(made_session())

    def footprint(size: int) -> Footprint:
        peak = 400 + EACH * size
        phases = {"forward": {"activations": peak}}
        return Footprint("cpu", size, size, peak, 0.0, "forward", "mm", None, 1.0, {"parameters": 300}, phases)

    loaders = [msgspec.structs.replace(one, batch_size=OWN, num_samples=5000) for one in session.loaders]
    return msgspec.structs.replace(session, loaders=loaders, footprints=[footprint(OWN), footprint(OWN // 2)])


@pytest.fixture
def known() -> dict[str, Any]:
    return {
        "resize": made_technique("different", (32,), claims=("loader.batch_size",), purpose="fit"),
        "again": made_technique(settings=("all", "half"), claims=("recomputation",), purpose="memory"),
        "pieces": made_technique("reordered", (2, 4, 8), claims=("recomputation",), purpose="memory"),
        "smaller_state": made_technique("different", (True,), purpose="memory"),
        "unasked": made_technique(settings=(True,), purpose="memory", is_opt_in=True),
        "quick": made_technique(),
    }


@pytest.fixture
def go(seen: Session, known: dict[str, Any]) -> Callable[..., Fitting]:
    def run(backend: MemoryBackend, limit_bytes: int, session: Session = seen, **order: Any) -> Fitting:
        return fit(session, backend, FitOptions(limit_bytes, **order), RecordingListener(), known)

    return run


def test_the_largest_and_the_fastest_differ(go: Callable[..., Fitting]) -> None:
    backend = MemoryBackend()
    fitting = go(backend, START + 205 * EACH)
    assert fitting.own_fits and fitting.largest == 204 and fitting.too_large in (206, 207)
    assert fitting.fastest == 64 and not fitting.recipe.choices  # another batch size is not kept unless allowed
    sizes = [attempt.batch_size for attempt in fitting.attempts if attempt.is_held and attempt.outcome == "ran"]
    assert sizes.count(204) >= 2  # the answer ran, and ran again to confirm it
    timed = {attempt.batch_size: attempt.rate for attempt in fitting.attempts if attempt.rate is not None}
    assert timed[64] is not None and timed[64].ratio > 1.5 and timed[64].low > 1.0
    assert backend.num_entered < 16


def test_with_allow_different_the_fastest_batch_is_kept(go: Callable[..., Fitting]) -> None:
    fitting = go(MemoryBackend(), START + 205 * EACH, allow="different")
    assert str(fitting.recipe) == "resize=64"


def test_a_batch_that_fits_needs_nothing(go: Callable[..., Fitting]) -> None:
    fitting = go(MemoryBackend(), START + 50 * EACH, finds_batch=False)
    assert fitting.own_fits and fitting.largest is None and not fitting.recipe.choices
    assert len(fitting.attempts) == 2


def test_the_cheapest_technique_that_makes_the_batch_fit_is_kept(go: Callable[..., Fitting]) -> None:
    saving = {"again=all": 0.2, "again=half": 0.6, "pieces=2": 0.7, "pieces=4": 0.4, "pieces=8": 0.3}
    prices = {"again=all": 1.4, "again=half": 1.2, "pieces=2": 1.3, "pieces=4": 1.35, "pieces=8": 1.5}
    backend = MemoryBackend(saving, prices)
    fitting = go(backend, START + EACH * 8, finds_batch=False)
    outcomes = {str(attempt.recipe): attempt.outcome for attempt in fitting.attempts if attempt.is_held}
    assert outcomes["as it is"] == outcomes["again=half"] == outcomes["pieces=2"] == "ran_out"
    assert outcomes["again=all"] == outcomes["pieces=4"] == "ran" and "pieces=8" not in outcomes
    assert str(fitting.recipe) == "pieces=4"
    rate = next(attempt.rate for attempt in fitting.attempts if str(attempt.recipe) == "pieces=4")
    assert rate is not None and rate.ratio == pytest.approx(1 / 1.35, rel=1e-3)
    assert any("smaller_state" in note and "--allow different" in note for note in fitting.notes)
    assert not any("unasked" in str(attempt.recipe) for attempt in fitting.attempts)


@pytest.mark.parametrize(
    ("room", "settings", "kept"),
    [
        (4, ["all"], ""),
        (5, ["all", "half", "most"], "all"),
        (9, ["all", "half", "most"], "most"),
        (10, ["all", "half", "quarter"], "half"),
        (14, ["all", "half", "quarter"], "quarter"),
    ],
)
def test_a_ladder_gives_the_weakest_setting_that_is_enough(
    go: Callable[..., Fitting], known: dict[str, Any], room: int, settings: list[str], kept: str
) -> None:
    """The strongest setting runs first. If it is not enough, no weaker setting is tried."""
    saving = {"again=all": 0.3, "again=most": 0.5, "again=half": 0.6, "again=quarter": 0.8}
    prices = {"again=all": 1.4, "again=most": 1.3, "again=half": 1.2, "again=quarter": 1.1}
    known["again"].LADDER = ("quarter", "half", "most", "all")
    fitting = go(MemoryBackend(saving, prices), START + EACH * room, finds_batch=False, only=("again",))
    assert [
        str(one.recipe).partition("=")[2] for one in fitting.attempts if one.is_held and one.recipe.choices
    ] == settings
    assert str(fitting.recipe) == (f"again={kept}" if kept else "as it is")


def test_with_long_steps_there_is_time_for_every_candidate(go: Callable[..., Fitting]) -> None:
    backend = MemoryBackend(
        {"again=all": 0.2, "again=half": 0.3, "pieces=2": 0.3}, {"again=all": 1.5, "again=half": 1.2}
    )
    backend.slowness = 80.0  # a step takes 9 s, so six rounds of one candidate would take half of the budget
    fitting = go(backend, START + EACH * 8, finds_batch=False)
    ran = {str(one.recipe): one.rate for one in fitting.attempts if one.is_held and one.outcome == "ran"}
    assert set(ran) == {"again=all", "again=half", "pieces=2"} and all(ran.values())
    assert str(fitting.recipe) == "pieces=2"


def test_a_pair_is_tried_if_no_single_technique_is_enough(go: Callable[..., Fitting]) -> None:
    saving = {"again=all": 0.5, "again=half": 0.8, "smaller_state": 0.5}
    fitting = go(MemoryBackend(saving), START + EACH * 5, finds_batch=False, allow="different", without=("pieces",))
    assert {choice.technique for choice in fitting.recipe.choices} == {"again", "smaller_state"}


def test_a_technique_without_effect_is_not_tried_again(go: Callable[..., Fitting]) -> None:
    """A technique that changes nothing runs out of memory. The reason is noted, and it is not tried in pairs."""
    backend = MemoryBackend({"again=all": 0.9, "smaller_state": 0.9})
    backend.declined = {"pieces": "batch norm"}
    fitting = go(backend, START + EACH * 2, finds_batch=False, allow="different")
    tried = [str(one.recipe) for one in fitting.attempts if "pieces" in str(one.recipe)]
    assert tried == ["pieces=2"] and "pieces had no effect: batch norm" in fitting.notes


def test_if_nothing_is_enough_each_technique_is_measured_without_the_limit(go: Callable[..., Fitting]) -> None:
    fitting = go(MemoryBackend({"again=all": 0.5, "pieces=8": 0.4}), START + EACH * 5, finds_batch=False)
    assert not fitting.recipe.choices and not any(one.is_held and one.outcome == "ran" for one in fitting.attempts)
    measured = {str(one.recipe): one.peak_bytes for one in fitting.attempts if not one.is_held and one.recipe.choices}
    assert measured == {"again=all": START + EACH * 8, "pieces=8": START + EACH * OWN * 4 // 10}


def test_a_technique_with_other_losses_is_not_kept(go: Callable[..., Fitting]) -> None:
    backend = MemoryBackend({"again=all": 0.2, "pieces=8": 0.2})
    backend.wrong_losses = {"again=all"}
    fitting = go(backend, START + EACH * 5, finds_batch=False)
    assert str(fitting.recipe) == "pieces=8"
    assert any(attempt.outcome == "failed" and "losses" in attempt.reason for attempt in fitting.attempts)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (200, "parameters alone take 300 B"),
        (START - 100, "the process already holds"),
        (START + EACH - 1, "not even a batch of one runs"),
    ],
)
def test_a_limit_that_is_too_small_says_what_is_needed(go: Callable[..., Fitting], limit: int, words: str) -> None:
    with pytest.raises(FitError, match=words) as raised:
        go(MemoryBackend(), limit)
    assert "batch of one" in str(raised.value)


def test_without_a_loader_the_error_says_what_to_do(go: Callable[..., Fitting], known: dict[str, Any]) -> None:
    known["resize"].applies = lambda observation: no("the script makes its batches without a DataLoader")
    with pytest.raises(FitError, match=r"without a DataLoader.*slipstream memory"):
        go(MemoryBackend(), 10_000)
    assert go(MemoryBackend(), 10_000, finds_batch=False).own_fits


def test_a_script_that_fails_with_other_batch_sizes_is_an_error(go: Callable[..., Fitting]) -> None:
    backend = MemoryBackend()
    backend.raises = Failure("RuntimeError: shape '[16, -1]' is invalid for input of size 40")
    with pytest.raises(FitError, match=r"does not train with batches of .*shape"):
        go(backend, START + 205 * EACH)


def test_a_failure_only_under_the_limit_counts_as_out_of_memory(go: Callable[..., Fitting]) -> None:
    backend = MemoryBackend()
    backend.raises, backend.raises_held_only = Failure("RuntimeError: a library's own words"), True
    assert go(backend, START + 205 * EACH).largest in (OWN - 1, OWN)


def test_the_budget_ends_the_search(go: Callable[..., Fitting]) -> None:
    fitting = go(MemoryBackend(), START + 205 * EACH, budget_s=10.0)
    assert fitting.largest is not None and any("no time" in note for note in fitting.notes)


def test_sizes_worth_racing() -> None:
    assert ladder(32, 410) == [410, 256, 128, 64, 16]
    assert ladder(32, 20) == [20, 10] and ladder(1, 1) == []


def test_among_equally_fast_sizes_the_own_one_wins_then_a_power_of_two() -> None:
    def attempt(size: int, ratio: float) -> FitAttempt:
        return FitAttempt(size, rate=Speed(ratio, ratio, ratio))

    assert fastest_of([attempt(100, 1.005), attempt(128, 1.004)], 32) == 32
    assert fastest_of([attempt(100, 1.5), attempt(128, 1.495), attempt(64, 1.2)], 32) == 128
    assert fastest_of([], 0) is None


def test_judge_tells_how_a_trial_ended() -> None:
    crash = Failure("ended by SIGSEGV", signal="SIGSEGV")
    assert judge(None, True) == ("ran", "")
    assert judge(OUT, False)[0] == "ran_out" and judge(crash, True)[0] == "ran_out"
    assert judge(crash, False)[0] == "failed" and judge(Failure("ended by SIGSEGV"), True)[0] == "failed"
    assert judge(Failure("the script ended after 3 steps", "ended", 3), True)[0] == "ran"
    assert judge(Failure("the script ended after 1 step", "ended", 1), True)[0] == "ended"
    assert judge(Failure("the script ended before its first step", "ended"), True)[0] == "ended"
    assert judge(Failure("the script ended after 3 steps"), True)[0] == "failed", "the words do not count"
    assert judge(Failure("ValueError: no"), True) == ("failed", "ValueError: no")
