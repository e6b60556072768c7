"""Trials that took turns in a race: their block timings, their fingerprints, and the verdicts."""

from __future__ import annotations

from typing import Literal

import msgspec

from slipstream.records.recipe import Choice, Edit, NumericsClass, Recipe, Setting

# base: the unchanged script. twin: the A/A control, which runs the unchanged script again (technique `nothing`).
# candidate: the script with a recipe. proof: a candidate that draws the same random numbers as the base and is not
# timed. rounding: the control that adds the rounding of a precision to the base, as noise. seed: the control with
# another seed. fit: a trial whose memory is measured, possibly under a limit; slipstream itself uses no memory in this
# trial. coarse: only in older sessions.
Role = Literal["base", "twin", "candidate", "proof", "rounding", "coarse", "seed", "fit"]
Precision = Literal["fp32", "tf32", "fp16", "bf16"]
# The roundoff of each precision: the relative size of rounding errors, and of the noise that a rounding control adds.
ROUNDOFF: dict[Precision, float] = {"bf16": 2**-9, "fp16": 2**-12, "tf32": 2**-12, "fp32": 2**-24}
# Rounding controls that add random noise have the draws 0 to 2. For precisions below fp32 there is one more control. It
# rounds to the format itself, and its draw is 3.
RANDOM_DRAWS = 3
Decision = Literal["kept", "rejected", "unsure", "failed", "not_applicable"]
# failed: the trial raised, crashed, hung or could not start. ended: the script ended too early. too_slow: only in older
# sessions.
FailureKind = Literal["failed", "too_slow", "ended"]
FARTHEST = 100.0  # the bounds of an interval without evidence are this ratio and its inverse
Tick = Literal["optimizer", "backward", "forward", "input"]  # the event that trials count as a step


class TrialSpec(msgspec.Struct, frozen=True):
    """Describes a trial to be started."""

    ident: int
    role: Role
    recipe: Recipe = Recipe()
    precision: Precision = "fp32"  # rounding: the precision whose rounding is added
    draw: int = 0  # rounding, seed: controls that differ only in this field draw different random numbers
    is_cold: bool = False  # whether the trial needs a new process; if not, it may be forked


class Failure(msgspec.Struct, frozen=True):
    """The reason why a trial cannot continue."""

    detail: str  # the reason, in one line
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
    starts_s: float = 0.0  # the part of `seconds` that starts of epochs took
    epoch_start_s: float = 0.0  # the time that one start of an epoch takes in this trial
    is_disturbed: bool = False  # the block does not count, because something was recompiled or the trial was held
    foreign_cores: float | None = None  # how many of the usable cores other programs used during the block
    is_last: bool = False  # whether the script has ended
    failure: Failure | None = None

    @property
    def step_s(self) -> float:
        return self.seconds / self.num_steps if self.num_steps else 0.0


class Sketch(msgspec.Struct, frozen=True, array_like=True):
    """The few numbers to which a fixed random linear map projects a tensor. The difference of two sketches is the
    sketch of the difference of the tensors. So the norm of this difference can be estimated from the sketches of two
    processes."""

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
    weights: list[Sketch] = []  # before the update; the difference to the weights of the next snapshot is the update


class Fingerprint(msgspec.Struct, frozen=True):
    """The numeric results of a trial, for the numerics check."""

    losses: list[tuple[int, float]] = []  # (step, value) of every tensor on which backward was called, in order
    snapshots: list[Snapshot] = []  # snapshots of the first steps
    digests: list[tuple[int, str]] = []  # (step, hash of all parameters and buffers) at the end of each block
    metrics: list[tuple[int, str, float]] = []  # (step, name, value) of evaluation results that the script printed
    own_precision: Precision = "fp32"  # rounding controls: the coarsest precision in which the script itself computes


class TrialRecord(msgspec.Struct, frozen=True, rename={"spec": "entrant", "timings": "laps", "fingerprint": "witness"}):
    spec: TrialSpec
    timings: list[BlockTiming] = []
    fingerprint: Fingerprint = Fingerprint()
    startup_s: float = 0.0  # time from the launch to the end of the first step
    peak_bytes: int = 0  # maximum host memory of the process and its children
    device_peak_bytes: int = 0
    start_bytes: int = 0  # fit: memory in use when the training began, counted in the same way as a limit
    held_bytes: int = 0  # fit: maximum of the memory in use, counted like start_bytes; 0: not measured
    changes: list[TechniqueNote] = []  # what the techniques of the recipe changed
    declined: list[TechniqueNote] = []  # why techniques of the recipe declined
    complaints: list[str] = []  # faults of slipstream itself; each fault disabled a seam
    edits: list[Edit] = []
    failure: Failure | None = None
    limit_fault: str = ""  # fit: why the memory limit could not be enforced
    num_launches: int = 1  # how often the trial was started: trials that do not fit in memory together are restarted


class Speed(msgspec.Struct, frozen=True):
    """The base's step time divided by the candidate's. More than 1 is faster."""

    ratio: float
    low: float  # 95% interval, which stays valid however often it is evaluated
    high: float
    num_rounds: int = 0

    @property
    def is_bounded(self) -> bool:
        """Whether there is enough evidence for an interval. If not, the bounds are FARTHEST and its inverse."""
        return self.low > 1.01 / FARTHEST and self.high < 0.99 * FARTHEST


# What was compared. bits: losses and digests, which are all equal. tensors: gradients, updates, buffers and losses.
# curve: only the level of the losses, because other random numbers were drawn. finite: only whether losses are finite.
# The other values say why nothing was decided: no loss, no common step or no gradient was seen in both trials, there
# was no rounding or seed control, too few gradients are evidence, or the trial of role `proof` reached no step.
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
    "no_time",
]
# What differs. not_finite_loss, loss, passes, weights: found by comparing bits. not_finite, missing, extra, size: a
# tensor that cannot be compared. error, norm: one tensor, or all tensors together if `name` is empty. losses: losses
# step by step in a window. level: the mean loss of a window. metric: a printed evaluation result.
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
    name: str = ""  # name of the tensor or the metric
    step: int = 0
    last_step: int = 0  # last step of a window
    seen: float = 0.0
    allowed: float = 0.0  # the largest allowed error; if bits are compared, the base's value


class Numerics(msgspec.Struct, frozen=True):
    """Whether a candidate trains like the base, and the evidence for it."""

    claimed: NumericsClass
    is_sound: bool | None  # None: could not be checked
    reason: str = ""  # the sentence, only in older sessions; now report/text/numerics.py words it
    worst_gradient: float | None = None  # largest relative error of a gradient that is evidence
    worst_loss: float | None = None
    basis: NumericsBasis = "tensors"
    precision: Precision = "fp32"  # the precision whose rounding is allowed
    num_steps: int = 0  # steps whose losses were seen in both trials
    num_tensors: int = 0  # gradients that were seen in both trials
    num_evidence: int = 0  # the part of num_tensors whose gradients rounding changes little
    horizon_steps: int | None = None  # losses can be compared step by step up to here; None: in all steps
    is_repeatable: bool = True  # whether the script repeats itself bit for bit
    fault: NumericsFault | None = None


# The cause of a verdict. report/text/verdicts.py words it. Causes for a single technique. no_gain: it is not faster by
# more than the margin. outpaced: other techniques gained more in the same pass. gains: it is part of the recipe.
# conflict: it gained less than a technique that excludes it. not_together: it is faster alone, but not beside `other`.
# not_again: it was faster, but not in new processes. superfluous: the recipe is as fast without it. unsound: the
# numerics check failed. unchecked: the numerics check could not decide. never_pays: its one-off cost exceeds its
# saving. opt_in: it is kept only if it is named. failed: its trial failed. declined: it could not be applied.
# no_effect: it changed nothing. untimed: no block counted. not_raced: no time was left. not_applicable: it was not
# tried. Causes for a whole recipe. proved, refuted: the interval lies above or below the margin. not_proved: the
# interval contains the margin. measured: there are too few pairs for an interval. not_checked: faster, but there was no
# time for the controls of the numerics check. other_load: other programs disturbed one of the two trials far more
# often.
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
    "not_checked",
    "other_load",
]


class Verdict(msgspec.Struct, frozen=True):
    technique: str
    setting: Setting
    decision: Decision
    reason: str = ""  # what a technique or a trial reported; in sessions of older versions the whole sentence
    speed: Speed | None = None
    numerics: Numerics | None = None
    step_ms: float | None = None
    samples_per_s: float | None = None
    batch_size: int | None = None
    peak_bytes: int | None = None
    one_off_s: float = 0.0  # start-up beyond the base's start-up: compilation, start of workers
    payback_steps: int | None = None  # steps until the start-up is paid back; None: no start-up, or never
    recipe: Recipe = Recipe()  # the technique alone, or (cumulative, left_out) with others
    # single: a technique in the selection. left_out: the recipe without the technique. total: the proof of the recipe.
    # writable: the proof of the best recipe that can be written into the source. noise: the A/A control. cumulative:
    # only in older sessions.
    kind: Literal["single", "cumulative", "left_out", "total", "writable", "noise"] = "single"
    is_provisional: bool = False  # only in older sessions
    cause: VerdictCause | None = None  # None: only in older sessions
    own_ratio: float | None = None  # speed relative to the recipe that the technique was raced on top of
    other: str = ""  # conflict: the conflict in words. not_together: the other choice. declined: the other technique
    num_training_steps: int | None = None  # never_pays: steps of the whole training

    @property
    def choice(self) -> Choice:
        return Choice(self.technique, self.setting)


class Tuning(msgspec.Struct, frozen=True, rename={"trials": "riders"}):
    """The result of `tune`."""

    base_step_ms: float
    base_samples_per_s: float
    verdicts: list[Verdict] = []  # verdicts of kind `single` in the order of the races, then all others
    total: Speed | None = None  # the kept recipe relative to the base
    recipe: Recipe = Recipe()
    noise: Speed | None = None  # the A/A control relative to the base
    noise_note: str = ""
    base_batch_size: int | None = None
    base_peak_bytes: int | None = None
    ceiling_ms: float | None = None
    seconds_before: float | None = None  # duration of the whole training, if its length is known
    seconds_after: float | None = None
    seconds_spent: float = 0.0
    is_complete: bool = True
    was_interrupted: bool = False  # whether Ctrl-C ended the tuning; the journal contains what was decided
    trials: list[TrialRecord] = []  # block timings and losses for the report, without sketches
    edits: list[Edit] = []
    candidate: Recipe = Recipe()  # the best recipe that was not proved, if nothing was kept
    candidate_speed: Speed | None = None
    candidate_edits: list[Edit] = []
    writable: Recipe = Recipe()  # the best recipe that can be written into the source, if the kept recipe cannot
    writable_speed: Speed | None = None
    writable_edits: list[Edit] = []
    num_rounds: int = 0
    num_discarded: int = 0  # rounds out of num_rounds that did not count because other programs used the cores
    foreign_cores: float = 0.0  # how many cores other programs used in discarded rounds, on average
    waited_s: float = 0.0  # time spent waiting for other programs
    notes: list[str] = []  # sentences about what was not tried, what was resumed, and what is less exact than usual
