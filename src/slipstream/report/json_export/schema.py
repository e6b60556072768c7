"""The document that `--json` writes, as structs. docs/json.md is generated from these structs.

Records that fit the document are part of it unchanged. For other records this module has a struct, in which locations
are `file:line`, recipes are objects, and speeds are three numbers.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from slipstream.memory.remedies import Remedy
from slipstream.records import Ending, Environment, Operator, Setting

# Increased when a name is removed or changes its meaning. A new name does not increase it.
JSON_SCHEMA = 1


class CeilingsPart(msgspec.Struct, frozen=True):
    compute_ms: Annotated[float | None, Meta(description="the step if data were free")]
    input_ms: Annotated[float | None, Meta(description="the step if compute were free")]
    shared_ms: Annotated[float | None, Meta(description="CPU time of input and compute divided by the usable cores")]
    notes: Annotated[list[str], Meta(description="why a ceiling is null, and other caveats")]


class FindingPart(msgspec.Struct, frozen=True):
    cause: Annotated[str, Meta(description="an id from [findings](findings.md)")]
    title: Annotated[str, Meta(description="one short line")]
    where: Annotated[str, Meta(description="`file:line`, relative to `cwd` if below it; empty without a line")]
    source: Annotated[str, Meta(description="the text of that line")]
    predicted_gain: Annotated[float, Meta(description="upper bound of old step divided by new step; 1.0 is no gain")]
    evidence: Annotated[str, Meta(description="a sentence with numbers from this run")]
    change: Annotated[str, Meta(description="the line to write")]
    advice: Annotated[str, Meta(description="a sentence about the change, or empty")]
    techniques: Annotated[list[str], Meta(description="ids of the techniques that address the cause")]
    measured: Annotated[str, Meta(description="what the races of `tune` measured for the finding, or empty")]


class StagePart(msgspec.Struct, frozen=True):
    phase: Annotated[str, Meta(description="`input` or `other`")]
    stage: Annotated[str, Meta(description="`read`, `decode`, `transform`, `collate`, `handover`, ...")]
    ms: Annotated[float, Meta(description="time per step in the process that does the work")]
    share: Annotated[float, Meta(description="share of that process's time in the phase, 0 to 1")]
    in_worker: Annotated[bool, Meta(description="whether a loader worker does the work, which may overlap the step")]
    where: Annotated[str, Meta(description="the hottest line of the script in this stage, `file:line`, or empty")]
    expression: Annotated[str, Meta(description="the expression on that line that was evaluated")]
    line_ms: Annotated[float, Meta(description="the part of `ms` that was spent on that line")]


class EvaluationPart(msgspec.Struct, frozen=True):
    seconds: Annotated[float, Meta(description="duration of the observed validation, test or prediction")]
    num_batches: Annotated[int, Meta(description="batches of the observed validation, test or prediction")]
    share: Annotated[float | None, Meta(description="share of an epoch, 0 to 1; null: not known")]
    grad: Annotated[bool, Meta(description="whether gradients were enabled in any of it")]
    sentence: Annotated[str, Meta(description="the sentence that the terminal shows")]


class OutlookPart(msgspec.Struct, frozen=True):
    num_epochs: Annotated[int | None, Meta(description="epochs of the whole training, as the script says")]
    num_steps: Annotated[int | None, Meta(description="steps of the whole training, as the script says")]
    seconds: Annotated[float | None, Meta(description="duration of the whole training at this rate")]
    seconds_best: Annotated[float | None, Meta(description="duration of the whole training if input were free")]
    sentence: Annotated[str, Meta(description="the sentence that the terminal shows")]


class ModulePart(msgspec.Struct, frozen=True):
    path: Annotated[str, Meta(description="path of the module inside the outermost module")]
    class_name: Annotated[str, Meta(description="class of the module")]
    forward_ms: Annotated[float, Meta(description="time in forward, without that of the module's children")]
    backward_ms: Annotated[float, Meta(description="time in backward, without that of the module's children")]
    flops: Annotated[int, Meta(description="floating-point operations of its forward")]
    classes_ms: Annotated[dict[str, float], Meta(description="class of operator to ms in forward")]


class AttentionPart(msgspec.Struct, frozen=True):
    path: Annotated[str, Meta(description="path of the module that computes softmax(q k^T) v by hand")]
    where: Annotated[str, Meta(description="`file:line`, or empty")]
    share: Annotated[float, Meta(description="share of the forward pass, 0 to 1")]


class AnatomyPart(msgspec.Struct, frozen=True):
    """Times are from one step under a profiler. Only their shares are meaningful."""

    classes_ms: Annotated[dict[str, float], Meta(description="class of operator to ms")]
    flops: Annotated[int, Meta(description="floating-point operations of one step")]
    num_operators: Annotated[int, Meta(description="calls of operators in one step")]
    padding_share: Annotated[float | None, Meta(description="share of tokens that are padding; null: not recognised")]
    operators: Annotated[list[Operator], Meta(description="most expensive first")]
    modules: Annotated[list[ModulePart], Meta(description="modules that ran their own operators")]
    attentions: Annotated[list[AttentionPart], Meta(description="attention written by hand")]


class VerdictPart(msgspec.Struct, frozen=True):
    technique: Annotated[str, Meta(description="an id from [techniques](techniques.md)")]
    setting: Annotated[Setting, Meta(description="the setting; `true` if the technique has no settings")]
    decision: Annotated[str, Meta(description="`kept`, `rejected`, `unsure`, `failed` or `not_applicable`")]
    ratio: Annotated[float | None, Meta(description="base step divided by this step; more than 1 is faster")]
    low: Annotated[float | None, Meta(description="lower end of its 95% interval; null: an estimate of the selection")]
    high: Annotated[float | None, Meta(description="upper end of its 95% interval")]
    own_ratio: Annotated[
        float | None,
        Meta(description="speed relative to the recipe that it was raced on top of; null: in older sessions"),
    ]
    cause: Annotated[
        str | None,
        Meta(description="why it was decided: `gains`, `no_gain`, `outpaced`, `proved`, ...; null: in older sessions"),
    ]
    numerics: Annotated[str | None, Meta(description="`identical`, `reordered`, `redrawn`, `approximate`, `different`")]
    reason: Annotated[str, Meta(description="one line")]
    kind: Annotated[
        str,
        Meta(
            description="`single`: raced in the selection. In `combinations`: `left_out`, the recipe without the"
            " technique; `total`, the proof of the whole recipe; `writable`, the best recipe that `patch` can write;"
            " `cumulative`, only in older sessions"
        ),
    ]
    recipe: Annotated[dict[str, Setting], Meta(description="all enabled techniques: technique to setting")]
    is_sound: Annotated[
        bool | None, Meta(description="whether the numerics check passed; null: not observed or not raced")
    ]
    proof: Annotated[str, Meta(description="what the numerics check saw")]
    step_ms: Annotated[float | None, Meta(description="average step")]
    samples_per_s: Annotated[float | None, Meta(description="rate of that step")]
    batch_size: Annotated[int | None, Meta(description="samples in a step")]
    peak_bytes: Annotated[int | None, Meta(description="peak memory of the process and its children")]
    one_off_s: Annotated[float, Meta(description="start-up in addition to the base's: compilation, worker start")]
    payback_steps: Annotated[
        int | None, Meta(description="steps until the technique has saved its start-up; null: no start-up, or never")
    ]


class SpeedPart(msgspec.Struct, frozen=True):
    ratio: Annotated[
        float | None, Meta(description="base step divided by step; more than 1 is faster; null: not measured")
    ]
    low: Annotated[float | None, Meta(description="lower end of its 95% interval; null: an estimate")]
    high: Annotated[float | None, Meta(description="upper end of its 95% interval; null: an estimate")]


class TuningPart(msgspec.Struct, frozen=True):
    """The tuning as a whole."""

    recipe: Annotated[dict[str, Setting], Meta(description="the kept techniques: technique to setting")]
    noise: Annotated[SpeedPart, Meta(description="two equal trials, raced against each other")]
    noise_note: Annotated[str, Meta(description="only in older sessions")]
    base_step_ms: Annotated[
        float, Meta(description="step of the unchanged script in the races; `step_ms` is from the check")
    ]
    base_samples_per_s: Annotated[float, Meta(description="rate of the unchanged script in the races")]
    base_peak_bytes: Annotated[int | None, Meta(description="peak memory of the unchanged script")]
    ceiling_ms: Annotated[float | None, Meta(description="the step if input and compute never waited for each other")]
    candidate: Annotated[dict[str, Setting], Meta(description="if nothing was kept: the best recipe, not proved")]
    candidate_speed: Annotated[SpeedPart, Meta(description="speed of the candidate")]
    writable: Annotated[
        dict[str, Setting], Meta(description="the best recipe that `patch` can write, if it cannot write the kept one")
    ]
    writable_speed: Annotated[SpeedPart, Meta(description="speed of the writable recipe")]
    num_rounds: Annotated[int, Meta(description="rounds of all races")]
    num_discarded: Annotated[int, Meta(description="rounds that do not count, because other programs used the cores")]
    foreign_cores: Annotated[float, Meta(description="cores that other programs used in discarded rounds")]
    waited_s: Annotated[float, Meta(description="time spent waiting for other programs")]
    seconds_before: Annotated[
        float | None, Meta(description="duration of the whole training, unchanged; null: length not known")
    ]
    seconds_after: Annotated[float | None, Meta(description="duration of the whole training with the recipe")]
    seconds_spent: Annotated[float, Meta(description="time spent on the races")]
    is_complete: Annotated[bool, Meta(description="false: interrupted or ended early; `--resume` continues the tuning")]
    notes: Annotated[list[str], Meta(description="remarks on how the tuning went")]


class HolderPart(msgspec.Struct, frozen=True):
    path: Annotated[str, Meta(description="path of the module inside the outermost module")]
    class_name: Annotated[str, Meta(description="class of the module")]
    num_bytes: Annotated[int, Meta(description="bytes alive at the peak, without those of the module's children")]
    kinds: Annotated[dict[str, int], Meta(description="kind to bytes")]


class LinePart(msgspec.Struct, frozen=True):
    where: Annotated[str, Meta(description="`file:line`; what backward allocates counts for the line of its forward")]
    source: Annotated[str, Meta(description="the text of that line")]
    num_bytes: Annotated[int, Meta(description="bytes that this line allocated and that are alive at the peak")]
    kinds: Annotated[dict[str, int], Meta(description="kind to bytes")]


class MomentPart(msgspec.Struct, frozen=True):
    at_ms: Annotated[float, Meta(description="time since the start of the step, which observation makes slower")]
    phase: Annotated[str, Meta(description="phase of the step")]
    kinds: Annotated[dict[str, int], Meta(description="kind to live bytes")]


class BatchPart(msgspec.Struct, frozen=True):
    batch_size: Annotated[int, Meta(description="samples of the batch")]
    peak_bytes: Annotated[int, Meta(description="estimated peak: a fixed part and a part per sample, for each phase")]
    observed_bytes: Annotated[int | None, Meta(description="observed peak; null: no step of this size was observed")]


class GrowthPart(msgspec.Struct, frozen=True):
    num_bytes: Annotated[int, Meta(description="bytes that a step leaves behind and the next step does not free")]
    where: Annotated[str, Meta(description="`file:line` that allocated most of these bytes, or empty")]


class MemoryPart(msgspec.Struct, frozen=True):
    """The live bytes of one step. Kinds are those of `records.KINDS`. The kind `parameters` includes the buffers."""

    device: Annotated[str, Meta(description="the device of the model; memory elsewhere is not counted")]
    batch_size: Annotated[int, Meta(description="samples in the largest batch of the observed step; 0: not known")]
    peak_bytes: Annotated[int, Meta(description="the most bytes of tensors that were alive at once")]
    peak_phase: Annotated[str, Meta(description="phase of the step in which the peak was reached")]
    peak_operator: Annotated[str, Meta(description="operator that reached the peak")]
    where: Annotated[str, Meta(description="the line that called this operator, `file:line`, or empty")]
    kinds: Annotated[dict[str, int], Meta(description="kind to bytes at the peak; the sum is `peak_bytes`")]
    phases: Annotated[dict[str, dict[str, int]], Meta(description="phase to its kinds at the peak of the phase")]
    modules: Annotated[list[HolderPart], Meta(description="modules by live bytes, largest first")]
    lines: Annotated[list[LinePart], Meta(description="lines by live bytes, largest first")]
    moments: Annotated[list[MomentPart], Meta(description="live bytes over the step: the peak of each interval")]
    remedies: Annotated[list[Remedy], Meta(description="remedies, those that free most first")]
    batches: Annotated[list[BatchPart], Meta(description="peak by batch size; empty: batches could not be split")]
    capacity_bytes: Annotated[int | None, Meta(description="memory of this device that is available to tensors")]
    largest_batch: Annotated[int | None, Meta(description="estimate of the largest batch that fits")]
    growth: Annotated[GrowthPart | None, Meta(description="what each step leaves behind; null: no growth")]
    reserved_bytes: Annotated[int, Meta(description="bytes held by the device's caching allocator; 0 on the CPU")]
    split_bytes: Annotated[int, Meta(description="the reserved bytes that are free in split blocks; 0 on the CPU")]


class TrialPart(msgspec.Struct, frozen=True):
    batch_size: Annotated[int, Meta(description="samples of the batch; 0: not known")]
    recipe: Annotated[dict[str, Setting], Meta(description="enabled techniques, with their settings")]
    is_held: Annotated[
        bool,
        Meta(description="whether the limit applied; false for the unchanged script that others are raced against"),
    ]
    outcome: Annotated[str, Meta(description="`ran`, `ran_out` of memory, `ended` too early to tell, or `failed`")]
    reason: Annotated[str, Meta(description="why the trial did not run")]
    peak_bytes: Annotated[int | None, Meta(description="peak memory, counted as the limit is; null: not reached")]
    step_ms: Annotated[float | None, Meta(description="duration of a step; null: not timed")]
    samples_per_s: Annotated[float | None, Meta(description="samples per second; null: not timed")]
    ratio: Annotated[
        float | None, Meta(description="`samples_per_s` divided by that of the unchanged script without a limit")
    ]
    low: Annotated[float | None, Meta(description="lower end of its 95% interval; null: not known")]
    high: Annotated[float | None, Meta(description="upper end of its 95% interval; null: not known")]


class FittingPart(msgspec.Struct, frozen=True):
    limit_bytes: Annotated[
        int, Meta(description="the limit: of the process on a CPU, else of what torch reserves on the device")
    ]
    limit_source: Annotated[str, Meta(description="where the limit comes from")]
    device: Annotated[str, Meta(description="the device whose memory is limited")]
    own_batch: Annotated[int, Meta(description="batch size of the script")]
    own_fits: Annotated[bool, Meta(description="whether the script's batch runs within the limit")]
    largest: Annotated[int | None, Meta(description="the largest batch that runs; null: not searched")]
    too_large: Annotated[int | None, Meta(description="the smallest batch that ran out of memory; null: none")]
    fastest: Annotated[int | None, Meta(description="the batch with the most samples per second; null: not raced")]
    recipe: Annotated[dict[str, Setting], Meta(description="the kept techniques: technique to setting")]
    parameter_bytes: Annotated[int, Meta(description="bytes of the models' parameters; 0: not known")]
    trials: Annotated[list[TrialPart], Meta(description="every trial, in order")]
    seconds_spent: Annotated[float, Meta(description="time spent in the trials")]
    notes: Annotated[list[str], Meta(description="remarks on how the search went")]


class Export(msgspec.Struct, frozen=True, rename={"training_time": "outlook"}):
    """The top level."""

    schema: Annotated[int, Meta(description="version of this document's schema")]
    slipstream: Annotated[str, Meta(description="the version of slipstream that measured")]
    command: Annotated[str, Meta(description="`check`, `tune`, `watch` or `memory`")]
    script: Annotated[list[str], Meta(description="the script as typed: path or `-m module`, then its arguments")]
    cwd: Annotated[str, Meta(description="the folder in which the command was started")]
    created: Annotated[str, Meta(description="the time of the measurement in ISO 8601")]
    ending: Annotated[Ending, Meta(description="how the script ended")]
    verdict: Annotated[str, Meta(description="the headline of the report")]
    warning: Annotated[str, Meta(description="such as a model on the CPU although there is a GPU; usually empty")]
    num_steps: Annotated[int, Meta(description="observed steps that the numbers are based on")]
    num_undisturbed: Annotated[
        int | None,
        Meta(description="those of `num_steps` without load of other programs; fewer than 8 are too few"),
    ]
    num_disturbed: Annotated[int, Meta(description="observed steps during which other programs used the cores")]
    foreign_cores: Annotated[float, Meta(description="cores that other programs used during the disturbed steps")]
    is_inference: Annotated[bool, Meta(description="whether no backward pass was seen")]
    step_ms: Annotated[float | None, Meta(description="median step in the check; null without steps")]
    step_low_ms: Annotated[float | None, Meta(description="lower end of its 95% interval")]
    step_high_ms: Annotated[float | None, Meta(description="upper end of its 95% interval")]
    samples_per_s: Annotated[float | None, Meta(description="rate, from the sizes of the batches")]
    phases: Annotated[dict[str, float], Meta(description="phase to ms on the host; adds up to `step_ms`")]
    device_phases: Annotated[
        dict[str, float] | None, Meta(description="phase to ms on the device's clock; null on a CPU")
    ]
    ceilings: Annotated[CeilingsPart, Meta(description="step times if one resource were free; null: not measured")]
    bound: Annotated[str, Meta(description="`input`, `compute`, `cores`, `other` or `unknown`")]
    findings: Annotated[list[FindingPart], Meta(description="best first; empty: the run found nothing to gain")]
    stages: Annotated[list[StagePart], Meta(description="stages of the phases `input` and `other`, from stack samples")]
    evaluation: Annotated[EvaluationPart | None, Meta(description="validation, test or prediction; null: none seen")]
    training_time: Annotated[
        OutlookPart | None, Meta(description="how long the training takes; null: its length is not known")
    ]
    anatomy: Annotated[AnatomyPart | None, Meta(description="the operators of one step; null: not observed")]
    environment: Annotated[Environment, Meta(description="the machine, Python, torch; see below")]
    notes: Annotated[list[str], Meta(description="what could not be observed, and what was disabled")]
    passed_through: Annotated[list[str], Meta(description="caches in which the script's writes are permanent")]
    written: Annotated[list[str], Meta(description="files that the script wrote during the run")]
    verdicts: Annotated[
        list[VerdictPart], Meta(description="one verdict for each technique and setting; empty: no tuning")
    ]
    combinations: Annotated[
        list[VerdictPart], Meta(description="verdicts on recipes of several techniques; empty: no tuning")
    ]
    total: Annotated[SpeedPart | None, Meta(description="speed of the kept recipe; null: no tuning")]
    tuning: Annotated[TuningPart | None, Meta(description="the tuning as a whole; null: no tuning")]
    memory: Annotated[MemoryPart | None, Meta(description="live bytes of one step; null: the command is not `memory`")]
    fitting: Annotated[
        FittingPart | None, Meta(description="what fits; null: neither `--fit` nor `--memory-limit` was given")
    ]
