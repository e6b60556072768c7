"""Riders that took turns: what was timed, what was witnessed, and what follows."""

from __future__ import annotations

from typing import Literal

import msgspec

from slipstream.records.recipe import Choice, Edit, NumericsClass, Recipe, Setting

# base: the script as it is. twin: the same with `nothing`. candidate: with a recipe. proof: a candidate that draws the
# base's random numbers, not timed. rounding: the base with weights moved by one ulp. coarse: the base with weights
# rounded to bfloat16 once, before the first step: what lower precision may do to gradients. seed: another seed.
# fit: looked at for its memory, perhaps held to a limit; nothing is done in it that would take memory.
Role = Literal["base", "twin", "candidate", "proof", "rounding", "coarse", "seed", "fit"]
Decision = Literal["kept", "rejected", "unsure", "failed", "not_applicable"]
FARTHEST = 100.0  # times as fast, or as slow: where a bound stands that nothing speaks for yet
Tick = Literal["optimizer", "backward", "forward", "input"]  # what the riders count as a step


class TrialSpec(msgspec.Struct, frozen=True):
    """Who is to ride."""

    ident: int
    role: Role
    recipe: Recipe = Recipe()


class BlockTiming(msgspec.Struct, frozen=True, rename={"trial": "rider"}):
    """One block as the rider timed it. The lead-in is not in it."""

    trial: int  # Entrant.ident
    round: int
    first_step: int
    num_steps: int
    seconds: float
    time_ns: int  # when it began, on the host's monotonic clock
    num_samples: int = 0
    starts_s: float = 0.0  # of these seconds, what epochs that began in it took to begin
    epoch_start_s: float = 0.0  # what the rider has found one such beginning to take
    is_disturbed: bool = False  # something was compiled anew: does not count
    is_last: bool = False  # the script came to its end
    failure: str = ""  # the rider is out: why, in one line

    @property
    def step_s(self) -> float:
        return self.seconds / self.num_steps if self.num_steps else 0.0


class Sketch(msgspec.Struct, frozen=True, array_like=True):
    """A tensor projected on a few numbers by a fixed random map: the difference of two sketches is the sketch of the
    difference, so norms of differences can be told from two processes' sketches alone."""

    name: str
    numel: int
    norm: float
    values: list[float]
    num_bad: int = 0  # elements that are not finite


class Snapshot(msgspec.Struct, frozen=True):
    """After the backward passes of a step, just before its update: gradients; and buffers as they are then."""

    step: int
    gradients: list[Sketch]
    buffers: list[Sketch] = []


class Fingerprint(msgspec.Struct, frozen=True):
    """What a rider's training did, apart from time."""

    losses: list[tuple[int, float]] = []  # (step, value) of everything that backward was called on, in order
    snapshots: list[Snapshot] = []  # of the first steps
    digests: list[tuple[int, str]] = []  # (step, hash of every parameter and buffer), at the end of each block


class TrialRecord(msgspec.Struct, frozen=True, rename={"spec": "entrant", "timings": "laps", "fingerprint": "witness"}):
    spec: TrialSpec
    timings: list[BlockTiming] = []
    fingerprint: Fingerprint = Fingerprint()
    startup_s: float = 0.0  # from launch to the first step's end
    peak_bytes: int = 0  # host memory, the process and its children at the most
    device_peak_bytes: int = 0
    start_bytes: int = 0  # fit: held when the training began, as a limit counts
    held_bytes: int = 0  # fit: at the most, as a limit counts; 0: it did not come so far
    changes: list[str] = []  # what its techniques really did, a sentence each
    declined: list[str] = []  # what they could not do
    edits: list[Edit] = []
    failure: str = ""
    num_launches: int = 1  # more: riders did not fit beside each other and took turns by being launched anew


class Speed(msgspec.Struct, frozen=True):
    """The base's step over the candidate's; more than 1 is faster."""

    ratio: float
    low: float  # 95%, valid however often it was looked at
    high: float
    num_rounds: int = 0

    @property
    def is_bounded(self) -> bool:
        """Whether enough was seen to bound it at all; else its bounds stand at FARTHEST."""
        return self.low > 1.01 / FARTHEST and self.high < 0.99 * FARTHEST


class Numerics(msgspec.Struct, frozen=True):
    claimed: NumericsClass
    is_sound: bool | None  # None: could not be seen
    reason: str  # "bit-equal in 60 steps", "gradients off by at most 1e-6"
    worst_gradient: float | None = None  # largest relative difference of a parameter's gradient
    worst_loss: float | None = None


class Verdict(msgspec.Struct, frozen=True):
    technique: str
    setting: Setting
    decision: Decision
    reason: str
    speed: Speed | None = None
    numerics: Numerics | None = None
    step_ms: float | None = None
    samples_per_s: float | None = None
    batch_size: int | None = None
    peak_bytes: int | None = None
    one_off_s: float = 0.0  # start-up beyond the base's: compilation, worker start
    payback_steps: int | None = None  # after so many steps it has paid; None: it costs nothing, or never pays
    recipe: Recipe = Recipe()  # what was on: the technique alone, or (cumulative, leave-one-out) with others
    kind: Literal["single", "cumulative", "left_out", "total", "noise"] = "single"
    is_provisional: bool = False  # kept for now: inside the recipe it has yet to be proved

    @property
    def choice(self) -> Choice:
        return Choice(self.technique, self.setting)


class Tuning(msgspec.Struct, frozen=True, rename={"trials": "riders"}):
    """What a tune concluded."""

    base_step_ms: float
    base_samples_per_s: float
    verdicts: list[Verdict] = []  # singly, in the order tried; then cumulative, left out
    total: Speed | None = None  # the kept recipe against the base
    recipe: Recipe = Recipe()
    noise: Speed | None = None  # the twin against the base
    noise_note: str = ""
    base_batch_size: int | None = None
    base_peak_bytes: int | None = None
    ceiling_ms: float | None = None
    seconds_before: float | None = None  # the whole training, where its length is known
    seconds_after: float | None = None
    seconds_spent: float = 0.0
    is_complete: bool = True
    was_interrupted: bool = False  # by Ctrl-C: the journal knows what was decided
    trials: list[TrialRecord] = []  # laps and losses for the report; sketches are dropped
    edits: list[Edit] = []
    notes: list[str] = []  # plain sentences: what was not tried, resumed, or less exact than usual
