"""Trials that took turns in a race: their block timings, their fingerprints, and the verdicts."""

from __future__ import annotations

from typing import Literal

import msgspec

from slipstream.records.recipe import Choice, Edit, NumericsClass, Recipe, Setting

# base: the unchanged script. twin: the A/A control, the unchanged script again (technique `nothing`). candidate: the
# script with a recipe. proof: a candidate that draws the same random numbers as the base; it is not timed. rounding: a
# control, the base with weights perturbed by one ulp. coarse: a control, the base with weights rounded to bfloat16 once
# before the first step; it shows how much lower precision may change gradients. seed: a control with another seed.
# fit: a trial whose memory is measured, possibly under a limit; slipstream does nothing in it that needs memory.
Role = Literal["base", "twin", "candidate", "proof", "rounding", "coarse", "seed", "fit"]
Decision = Literal["kept", "rejected", "unsure", "failed", "not_applicable"]
# failed: raised, crashed, hung or could not start. too_slow: ended in its warm-up, because its steps took several times
# as long as the base's. ended: the script came to its end too early.
FailureKind = Literal["failed", "too_slow", "ended"]
FARTHEST = 100.0  # times as fast, or as slow: the value of a bound of an interval as long as there is no evidence
Tick = Literal["optimizer", "backward", "forward", "input"]  # the event that trials count as a step


class TrialSpec(msgspec.Struct, frozen=True):
    """Describes a trial that is to be started."""

    ident: int
    role: Role
    recipe: Recipe = Recipe()


class Failure(msgspec.Struct, frozen=True):
    """Why a trial cannot continue."""

    detail: str  # in one line
    kind: FailureKind = "failed"
    num_steps: int | None = None  # ended: the steps that the script ran, if they were counted
    signal: str = ""  # the signal that ended the process: "SIGKILL"

    def __str__(self) -> str:
        return self.detail


class TechniqueNote(msgspec.Struct, frozen=True):
    """What one technique of a recipe changed, or why it declined."""

    technique: str
    text: str

    def __str__(self) -> str:
        return f"{self.technique}: {self.text}"


class BlockTiming(msgspec.Struct, frozen=True, rename={"trial": "rider"}):
    """The timing of one block, measured in the trial itself. The steps before the timed part are not included."""

    trial: int  # TrialSpec.ident
    round: int
    first_step: int
    num_steps: int
    seconds: float
    time_ns: int  # start, on the host's monotonic clock
    num_samples: int = 0
    starts_s: float = 0.0  # of these seconds, the time that starts of epochs took
    epoch_start_s: float = 0.0  # the time that one start of an epoch takes in this trial
    is_disturbed: bool = False  # something was recompiled: the block does not count
    is_last: bool = False  # the script has ended
    failure: Failure | None = None

    @property
    def step_s(self) -> float:
        return self.seconds / self.num_steps if self.num_steps else 0.0


class Sketch(msgspec.Struct, frozen=True, array_like=True):
    """A tensor projected to a few numbers by a fixed random linear map. The difference of two sketches is the sketch of
    the difference. So norms of differences can be estimated from the sketches of two processes alone."""

    name: str
    numel: int
    norm: float
    values: list[float]
    num_bad: int = 0  # elements that are not finite


class Snapshot(msgspec.Struct, frozen=True):
    """The gradients and buffers after the backward passes of a step, just before its update."""

    step: int
    gradients: list[Sketch]
    buffers: list[Sketch] = []


class Fingerprint(msgspec.Struct, frozen=True):
    """The numeric results of a trial, for the numerics check."""

    losses: list[tuple[int, float]] = []  # (step, value) of everything that backward was called on, in order
    snapshots: list[Snapshot] = []  # of the first steps
    digests: list[tuple[int, str]] = []  # (step, hash of every parameter and buffer), at the end of each block


class TrialRecord(msgspec.Struct, frozen=True, rename={"spec": "entrant", "timings": "laps", "fingerprint": "witness"}):
    spec: TrialSpec
    timings: list[BlockTiming] = []
    fingerprint: Fingerprint = Fingerprint()
    startup_s: float = 0.0  # from launch to the first step's end
    peak_bytes: int = 0  # maximum of host memory, of the process and its children
    device_peak_bytes: int = 0
    start_bytes: int = 0  # fit: in use when the training began, counted as a limit counts
    held_bytes: int = 0  # fit: maximum in use, counted as a limit counts; 0: the trial did not get that far
    changes: list[TechniqueNote] = []  # what its techniques changed
    declined: list[TechniqueNote] = []  # what they could not do
    complaints: list[str] = []  # faults of slipstream itself, each of which switched off a seam
    edits: list[Edit] = []
    failure: Failure | None = None
    limit_fault: str = ""  # fit: why the memory limit could not be enforced
    num_launches: int = 1  # more: the trials did not fit in memory together and took turns by being started again


class Speed(msgspec.Struct, frozen=True):
    """The base's step time divided by the candidate's. More than 1 is faster."""

    ratio: float
    low: float  # 95% interval, valid however often it is evaluated
    high: float
    num_rounds: int = 0

    @property
    def is_bounded(self) -> bool:
        """Whether there is enough evidence for bounds. If not, the bounds have the value FARTHEST."""
        return self.low > 1.01 / FARTHEST and self.high < 0.99 * FARTHEST


class Numerics(msgspec.Struct, frozen=True):
    claimed: NumericsClass
    is_sound: bool | None  # None: could not be checked
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
    one_off_s: float = 0.0  # start-up in addition to the base's: compilation, start of workers
    payback_steps: int | None = None  # steps until the start-up is paid back; None: costs nothing, or never pays back
    recipe: Recipe = Recipe()  # the technique alone, or (cumulative, left_out) with others
    kind: Literal["single", "cumulative", "left_out", "total", "noise"] = "single"
    is_provisional: bool = False  # kept for now: not yet proved as part of the recipe

    @property
    def choice(self) -> Choice:
        return Choice(self.technique, self.setting)


class Tuning(msgspec.Struct, frozen=True, rename={"trials": "riders"}):
    """The result of `tune`."""

    base_step_ms: float
    base_samples_per_s: float
    verdicts: list[Verdict] = []  # single, in the order tried; then cumulative, left_out
    total: Speed | None = None  # the kept recipe relative to the base
    recipe: Recipe = Recipe()
    noise: Speed | None = None  # the A/A control relative to the base
    noise_note: str = ""
    base_batch_size: int | None = None
    base_peak_bytes: int | None = None
    ceiling_ms: float | None = None
    seconds_before: float | None = None  # for the whole training, if its length is known
    seconds_after: float | None = None
    seconds_spent: float = 0.0
    is_complete: bool = True
    was_interrupted: bool = False  # by Ctrl-C; the journal contains what was decided
    trials: list[TrialRecord] = []  # block timings and losses for the report, without sketches
    edits: list[Edit] = []
    notes: list[str] = []  # sentences about what was not tried, was resumed, or is less exact than usual
