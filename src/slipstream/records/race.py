"""Trials that took turns in a race: their block timings, their fingerprints, and the verdicts."""

from __future__ import annotations

from typing import Literal

import msgspec

from slipstream.records.recipe import Choice, Edit, NumericsClass, Recipe, Setting

# base: the unchanged script. twin: the A/A control, the unchanged script again (technique `nothing`). candidate: the
# script with a recipe. proof: a candidate that draws the same random numbers as the base; it is not timed. rounding:
# a control, the base with the rounding of a precision added as noise. seed: a control with another seed. fit: a trial
# whose memory is measured, possibly under a limit; slipstream does nothing in it that needs memory. coarse: in older
# sessions.
Role = Literal["base", "twin", "candidate", "proof", "rounding", "coarse", "seed", "fit"]
Precision = Literal["fp32", "tf32", "fp16", "bf16"]
# The relative error of rounding a number, on average over the numbers between two powers of two the largest possible.
ROUNDOFF: dict[Precision, float] = {"bf16": 2**-9, "fp16": 2**-12, "tf32": 2**-12, "fp32": 2**-24}
RANDOM_DRAWS = 3  # of a rounding control; below fp32 one more draw rounds to the format, so that its number is this one
Decision = Literal["kept", "rejected", "unsure", "failed", "not_applicable"]
# failed: raised, crashed, hung or could not start. ended: the script came to its end too early. too_slow: in older
# sessions.
FailureKind = Literal["failed", "too_slow", "ended"]
FARTHEST = 100.0  # times as fast, or as slow: the value of a bound of an interval as long as there is no evidence
Tick = Literal["optimizer", "backward", "forward", "input"]  # the event that trials count as a step


class TrialSpec(msgspec.Struct, frozen=True):
    """Describes a trial that is to be started."""

    ident: int
    role: Role
    recipe: Recipe = Recipe()
    precision: Precision = "fp32"  # rounding: the precision whose rounding is added
    draw: int = 0  # rounding, seed: controls that differ only in this draw other random numbers
    is_cold: bool = False  # started in a new process that shares nothing by chance with other trials: never forked


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
    is_disturbed: bool = False  # something was recompiled, or the trial was held: the block does not count
    foreign_cores: float | None = None  # cores that other programs used meanwhile, of those that we may use
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
    num_zero: int = 0


class Snapshot(msgspec.Struct, frozen=True):
    """Gradients, buffers and weights after the backward passes of a step, just before its update."""

    step: int
    gradients: list[Sketch]
    buffers: list[Sketch] = []
    weights: list[Sketch] = []  # before the update; the difference to the next snapshot's is the update


class Fingerprint(msgspec.Struct, frozen=True):
    """The numeric results of a trial, for the numerics check."""

    losses: list[tuple[int, float]] = []  # (step, value) of everything that backward was called on, in order
    snapshots: list[Snapshot] = []  # of the first steps
    digests: list[tuple[int, str]] = []  # (step, hash of every parameter and buffer), at the end of each block
    metrics: list[tuple[int, str, float]] = []  # (step, name, value) of evaluation results that the script printed
    own_precision: Precision = "fp32"  # of a rounding control: the coarsest that the script itself computes in


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


# bits: every loss and digest is equal. tensors: gradients, updates, buffers and losses. curve: only the loss curve,
# because other random numbers were drawn. finite: only that losses are finite. The others say why nothing was decided:
# no loss, no step or no gradient in both trials, no rounding or seed control, too few gradients that are evidence, or
# no trial that proves it.
NumericsBasis = Literal[
    "bits",
    "tensors",
    "curve",
    "finite",
    "no_loss",
    "no_common_step",
    "no_gradient",
    "no_control",
    "no_seeds",
    "little_evidence",
    "no_proof",
]
# not_finite_loss, loss, passes, weights: a difference of single bits. not_finite, missing, extra, size: a tensor
# without a comparable value. error, norm: of one tensor, or of all together if `name` is empty. losses: step by step in
# a window. level: the mean of a window. metric: a printed evaluation result.
FaultKind = Literal[
    "not_finite_loss",
    "loss",
    "passes",
    "weights",
    "not_finite",
    "missing",
    "extra",
    "size",
    "error",
    "norm",
    "losses",
    "level",
    "metric",
]
TensorKind = Literal["gradient", "buffer", "update"]


class NumericsFault(msgspec.Struct, frozen=True):
    """The first difference from the base that the numerics class does not allow."""

    kind: FaultKind
    tensor: TensorKind = "gradient"
    name: str = ""  # of the tensor or the metric
    step: int = 0
    last_step: int = 0  # of a window of steps
    seen: float = 0.0
    allowed: float = 0.0  # the largest error that is allowed; for losses without one, the base's value


class Numerics(msgspec.Struct, frozen=True):
    """Whether a candidate trains like the base, and on what evidence."""

    claimed: NumericsClass
    is_sound: bool | None  # None: could not be checked
    reason: str = ""  # only in sessions of versions that saved the words; report/text/numerics.py makes them
    worst_gradient: float | None = None  # largest relative error of a gradient that is evidence
    worst_loss: float | None = None
    basis: NumericsBasis = "tensors"
    precision: Precision = "fp32"  # the precision whose rounding is allowed
    num_steps: int = 0  # steps whose losses were seen in both trials
    num_tensors: int = 0  # gradients that were seen in both trials
    num_evidence: int = 0  # of them, those that rounding moves little
    horizon_steps: int | None = None  # losses can be compared step by step up to here; None: in all steps
    is_repeatable: bool = True  # whether the script repeats itself bit for bit
    fault: NumericsFault | None = None


# Why a verdict was reached; report/text/verdicts.py words it.
# A single technique: no_gain: not faster by more than the margin. outpaced: others gained more. gains: part of the
# recipe. conflict: gained less than `other`, which excludes it. not_together: faster alone, but not beside `other`.
# not_again: faster, but not in further processes. superfluous: the recipe is as fast without it. unsound, unchecked:
# its numerics. never_pays: its one-off cost exceeds its saving. opt_in: kept only if it is named. failed, declined,
# no_effect: what its trial told. untimed: no block of it counted. not_raced: no time. not_applicable: was not tried.
# The whole recipe: proved, refuted: the interval lies above or below the margin. not_proved: undecided. measured: too
# few pairs for an interval. other_load: other programs disturbed one of the two far more often.
VerdictCause = Literal[
    "no_gain",
    "outpaced",
    "gains",
    "conflict",
    "not_together",
    "not_again",
    "superfluous",
    "unsound",
    "unchecked",
    "never_pays",
    "opt_in",
    "failed",
    "declined",
    "no_effect",
    "untimed",
    "not_raced",
    "not_applicable",
    "proved",
    "refuted",
    "not_proved",
    "measured",
    "other_load",
]


class Verdict(msgspec.Struct, frozen=True):
    technique: str
    setting: Setting
    decision: Decision
    reason: str = ""  # what a technique or a trial told; in sessions of older versions the whole sentence
    speed: Speed | None = None
    numerics: Numerics | None = None
    step_ms: float | None = None
    samples_per_s: float | None = None
    batch_size: int | None = None
    peak_bytes: int | None = None
    one_off_s: float = 0.0  # start-up in addition to the base's: compilation, start of workers
    payback_steps: int | None = None  # steps until the start-up is paid back; None: costs nothing, or never pays back
    recipe: Recipe = Recipe()  # the technique alone, or (cumulative, left_out) with others
    # writable: the proof of the best recipe that can be written into the source. cumulative: in older sessions
    kind: Literal["single", "cumulative", "left_out", "total", "writable", "noise"] = "single"
    is_provisional: bool = False  # in older sessions
    cause: VerdictCause | None = None  # None: in older sessions
    own_ratio: float | None = None  # times as fast as what it was raced on top of, which `speed` is not relative to
    other: str = ""  # conflict, not_together: what excludes it
    num_training_steps: int | None = None  # never_pays: of the training

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
    candidate: Recipe = Recipe()  # if nothing was kept: the best recipe, not proved
    candidate_speed: Speed | None = None
    candidate_edits: list[Edit] = []
    writable: Recipe = Recipe()  # the best recipe that can be written into the source, if the kept one cannot
    writable_speed: Speed | None = None
    writable_edits: list[Edit] = []
    num_rounds: int = 0
    num_discarded: int = 0  # of them, rounds that did not count because other programs used the cores
    foreign_cores: float = 0.0  # the cores that other programs used in discarded rounds, on average
    waited_s: float = 0.0  # until other programs were done
    notes: list[str] = []  # sentences about what was not tried, was resumed, or is less exact than usual
