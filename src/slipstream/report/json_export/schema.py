"""What `--json` writes, as structs: few names, fixed units, a version. docs/json.md is written from them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from slipstream.records import Environment, Setting

# Raised when a name is removed or changes its meaning; a new name does not raise it.
JSON_SCHEMA = 1


class EndingPart(msgspec.Struct, frozen=True):
    reason: Annotated[str, Meta(description="`stopped` by slipstream, `finished`, `raised`, `interrupted` or `killed`")]
    exit_code: Annotated[int, Meta(description="of the script; 0 when slipstream stopped it")]
    seconds: Annotated[float, Meta(description="from start to end")]
    message: Annotated[str, Meta(description="of the script's exception, if it raised")]


class CeilingsPart(msgspec.Struct, frozen=True):
    compute_ms: Annotated[float | None, Meta(description="the step if data were free")]
    input_ms: Annotated[float | None, Meta(description="the step if compute were free")]
    shared_ms: Annotated[float | None, Meta(description="CPU time of input and compute over the usable cores")]
    notes: Annotated[list[str], Meta(description="why a ceiling is null, and what to beware of")]


class FindingPart(msgspec.Struct, frozen=True):
    cause: Annotated[str, Meta(description="an id from [findings](findings.md)")]
    title: Annotated[str, Meta(description="one short line")]
    where: Annotated[str, Meta(description="`file:line`; relative to `cwd` when inside it; empty without a line")]
    source: Annotated[str, Meta(description="the text of that line")]
    predicted_gain: Annotated[float, Meta(description="step now over step then, at most; 1.0 is nothing")]
    evidence: Annotated[str, Meta(description="a sentence with numbers from this run")]
    change: Annotated[str, Meta(description="the line to write")]
    advice: Annotated[str, Meta(description="a sentence more, where the change needs one")]
    techniques: Annotated[list[str], Meta(description="ids of the techniques that answer the cause")]


class StagePart(msgspec.Struct, frozen=True):
    phase: Annotated[str, Meta(description="`input` or `other`")]
    stage: Annotated[str, Meta(description="`read`, `decode`, `transform`, `collate`, `handover`, ...")]
    ms: Annotated[float, Meta(description="a step, of the process that does it")]
    share: Annotated[float, Meta(description="of that process's time in the phase, 0 to 1")]
    in_worker: Annotated[bool, Meta(description="in a loader worker, which may overlap with the step")]
    where: Annotated[str, Meta(description="the hottest line of the script in this stage, `file:line`, or empty")]
    expression: Annotated[str, Meta(description="what was evaluated there")]
    line_ms: Annotated[float, Meta(description="the part of `ms` spent on that line")]


class EvaluationPart(msgspec.Struct, frozen=True):
    seconds: Annotated[float, Meta(description="of validation, test or prediction seen, kept apart from the steps")]
    num_batches: Annotated[int, Meta(description="in them")]
    share: Annotated[float | None, Meta(description="of an epoch, 0 to 1, where it can be known")]
    grad: Annotated[bool, Meta(description="whether gradients were on in any")]
    sentence: Annotated[str, Meta(description="the same as the terminal says it")]


class OutlookPart(msgspec.Struct, frozen=True):
    num_epochs: Annotated[int | None, Meta(description="of the whole training, as the script says")]
    num_steps: Annotated[int | None, Meta(description="of the whole training, as the script says")]
    seconds: Annotated[float | None, Meta(description="the whole training at this rate")]
    seconds_best: Annotated[float | None, Meta(description="the same if input were free")]
    sentence: Annotated[str, Meta(description="the same as the terminal says it")]


class OperatorPart(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(description="as torch names it")]
    operator_class: Annotated[str, Meta(description="`contraction`, `normalisation`, `elementwise` or `other`")]
    count: Annotated[int, Meta(description="calls in the observed step")]
    self_cpu_ms: Annotated[float, Meta(description="without the operators it calls")]
    total_cpu_ms: Annotated[float, Meta(description="with them")]
    self_device_ms: Annotated[float, Meta(description="0 on the CPU")]
    total_device_ms: Annotated[float, Meta(description="0 on the CPU")]
    flops: Annotated[int, Meta(description="where they can be counted")]


class ModulePart(msgspec.Struct, frozen=True):
    path: Annotated[str, Meta(description="inside the outermost module")]
    class_name: Annotated[str, Meta(description="of the module")]
    forward_ms: Annotated[float, Meta(description="without the modules inside it")]
    backward_ms: Annotated[float, Meta(description="without the modules inside it")]
    flops: Annotated[int, Meta(description="of its forward")]
    classes_ms: Annotated[dict[str, float], Meta(description="class of operator to ms, forward")]


class AttentionPart(msgspec.Struct, frozen=True):
    path: Annotated[str, Meta(description="of the module that does softmax(q k^T) v by hand")]
    where: Annotated[str, Meta(description="`file:line`, or empty")]
    share: Annotated[float, Meta(description="of the forward pass, 0 to 1")]


class AnatomyPart(msgspec.Struct, frozen=True):
    """Times are from one step under a profiler: only their shares mean anything."""

    classes_ms: Annotated[dict[str, float], Meta(description="class of operator to ms")]
    flops: Annotated[int, Meta(description="floating-point operations of one step")]
    num_operators: Annotated[int, Meta(description="calls of operators in one step")]
    padding_share: Annotated[float | None, Meta(description="tokens that are padding, 0 to 1, where recognised")]
    operators: Annotated[list[OperatorPart], Meta(description="most expensive first")]
    modules: Annotated[list[ModulePart], Meta(description="modules that ran operators of their own")]
    attentions: Annotated[list[AttentionPart], Meta(description="attention written by hand")]


class VerdictPart(msgspec.Struct, frozen=True):
    technique: Annotated[str, Meta(description="an id from [techniques](techniques.md)")]
    setting: Annotated[Setting, Meta(description="`true` where it has no variants")]
    decision: Annotated[str, Meta(description="`kept`, `rejected`, `unsure`, `failed` or `not_applicable`")]
    ratio: Annotated[float | None, Meta(description="base step over this step: more than 1 is faster")]
    low: Annotated[float | None, Meta(description="lower end of its 95% interval")]
    high: Annotated[float | None, Meta(description="upper end of its 95% interval")]
    numerics: Annotated[str | None, Meta(description="`identical`, `reordered`, `redrawn`, `approximate`, `different`")]
    reason: Annotated[str, Meta(description="one line")]
    kind: Annotated[
        str,
        Meta(
            description="`single`: raced alone. In `combinations`: `cumulative`, the winners so far; `left_out`, what"
            " the technique is worth among the others; `total`, all that was kept"
        ),
    ]
    recipe: Annotated[dict[str, Setting], Meta(description="all that was on: technique to setting")]
    is_sound: Annotated[bool | None, Meta(description="whether the numerics held; null: not seen or not raced")]
    proof: Annotated[str, Meta(description="what the judgement of the numerics rests on")]
    step_ms: Annotated[float | None, Meta(description="average step")]
    samples_per_s: Annotated[float | None, Meta(description="at that step")]
    batch_size: Annotated[int | None, Meta(description="samples in a step")]
    peak_bytes: Annotated[int | None, Meta(description="memory of the process and its children at the most")]
    one_off_s: Annotated[float, Meta(description="start-up beyond the base's: compilation, worker start")]
    payback_steps: Annotated[int | None, Meta(description="steps after which it has paid; null: no cost, or never")]


class SpeedPart(msgspec.Struct, frozen=True):
    ratio: Annotated[float | None, Meta(description="base step over step: more than 1 is faster; null: not measured")]
    low: Annotated[float | None, Meta(description="lower end of its 95% interval")]
    high: Annotated[float | None, Meta(description="upper end of its 95% interval")]


class TuningPart(msgspec.Struct, frozen=True):
    """What the verdicts rest on."""

    recipe: Annotated[dict[str, Setting], Meta(description="what was kept: technique to setting")]
    noise: Annotated[SpeedPart, Meta(description="two equal riders against each other: the machine's noise floor")]
    noise_note: Annotated[str, Meta(description="if the machine was too noisy to tell; usually empty")]
    base_step_ms: Annotated[float, Meta(description="the script as it is, average over its blocks")]
    base_samples_per_s: Annotated[float, Meta(description="the script as it is")]
    base_peak_bytes: Annotated[int | None, Meta(description="memory of the script as it is, at the most")]
    ceiling_ms: Annotated[float | None, Meta(description="the step if input and compute never waited for each other")]
    seconds_before: Annotated[float | None, Meta(description="the whole training as it is; null: length unknown")]
    seconds_after: Annotated[float | None, Meta(description="the whole training with the recipe")]
    seconds_spent: Annotated[float, Meta(description="on the races")]
    is_complete: Annotated[bool, Meta(description="false: interrupted, or the budget was used up first")]
    notes: Annotated[list[str], Meta(description="how it went, where that matters")]


class HolderPart(msgspec.Struct, frozen=True):
    path: Annotated[str, Meta(description="inside the outermost module")]
    class_name: Annotated[str, Meta(description="of the module")]
    num_bytes: Annotated[int, Meta(description="alive at the peak, without the modules inside it")]
    kinds: Annotated[dict[str, int], Meta(description="kind to bytes")]


class LinePart(msgspec.Struct, frozen=True):
    where: Annotated[str, Meta(description="`file:line`; what backward makes counts for the forward's line")]
    source: Annotated[str, Meta(description="the text of that line")]
    num_bytes: Annotated[int, Meta(description="that it made and that are alive at the peak")]
    kinds: Annotated[dict[str, int], Meta(description="kind to bytes")]


class MomentPart(msgspec.Struct, frozen=True):
    at_ms: Annotated[float, Meta(description="since the start of the observed step, under observation")]
    phase: Annotated[str, Meta(description="of the step")]
    kinds: Annotated[dict[str, int], Meta(description="kind to bytes alive")]


class RemedyPart(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(description="such as `checkpointing`")]
    what: Annotated[str, Meta(description="one short line")]
    freed_bytes: Annotated[int, Meta(description="of the peak, about; reckoned, not measured")]
    numerics: Annotated[str, Meta(description="`identical`, `reordered`, `approximate` or `different`")]
    price: Annotated[str, Meta(description="what it costs")]


class BatchPart(msgspec.Struct, frozen=True):
    batch_size: Annotated[int, Meta(description="samples")]
    peak_bytes: Annotated[int, Meta(description="by the rule: a fixed part and a part for every sample, by phase")]
    observed_bytes: Annotated[int | None, Meta(description="where a step of this size was observed")]


class GrowthPart(msgspec.Struct, frozen=True):
    num_bytes: Annotated[int, Meta(description="that a step leaves behind and the next one does not let go of")]
    where: Annotated[str, Meta(description="`file:line` that made most of it, or empty")]


class MemoryPart(msgspec.Struct, frozen=True):
    """Kinds are those of `records.KINDS`; `parameters` hold the buffers too."""

    device: Annotated[str, Meta(description="that holds the model; memory elsewhere is not counted")]
    batch_size: Annotated[int, Meta(description="samples in the largest batch of the observed step; 0: not known")]
    peak_bytes: Annotated[int, Meta(description="most bytes of tensors alive at once")]
    peak_phase: Annotated[str, Meta(description="of the step, when it was reached")]
    peak_operator: Annotated[str, Meta(description="that allocated then")]
    where: Annotated[str, Meta(description="the line that called it, `file:line`, or empty")]
    kinds: Annotated[dict[str, int], Meta(description="kind to bytes at the peak; adds up to it")]
    phases: Annotated[dict[str, dict[str, int]], Meta(description="phase to kinds at its own peak")]
    modules: Annotated[list[HolderPart], Meta(description="most first")]
    lines: Annotated[list[LinePart], Meta(description="most first")]
    moments: Annotated[list[MomentPart], Meta(description="over the step: the highest of each stretch")]
    remedies: Annotated[list[RemedyPart], Meta(description="most first")]
    batches: Annotated[list[BatchPart], Meta(description="peak by batch size; empty: batches could not be cut")]
    capacity_bytes: Annotated[int | None, Meta(description="what tensors can have on this device")]
    largest_batch: Annotated[int | None, Meta(description="that fits in it, by the rule")]
    growth: Annotated[GrowthPart | None, Meta(description="null: nothing is left behind")]
    reserved_bytes: Annotated[int, Meta(description="held by the device's caching allocator; 0 on the CPU")]
    split_bytes: Annotated[int, Meta(description="of those, free but in split blocks; 0 on the CPU")]


class TrialPart(msgspec.Struct, frozen=True):
    batch_size: Annotated[int, Meta(description="samples; 0: not known")]
    recipe: Annotated[dict[str, Setting], Meta(description="techniques that were on, with their settings")]
    is_held: Annotated[
        bool, Meta(description="to the limit; false: the script as it is, which others are raced against")
    ]
    outcome: Annotated[str, Meta(description="`ran`, `ran_out` of memory, `ended` too early to tell, or `failed`")]
    reason: Annotated[str, Meta(description="why it did not run")]
    peak_bytes: Annotated[
        int | None, Meta(description="held at the most, as the limit counts; null: did not come so far")
    ]
    step_ms: Annotated[float | None, Meta(description="a step; null: not timed")]
    samples_per_s: Annotated[float | None, Meta(description="the rate; null: not timed")]
    ratio: Annotated[float | None, Meta(description="samples per second over those of the script as it is, unlimited")]
    low: Annotated[float | None, Meta(description="lower end of its 95% interval")]
    high: Annotated[float | None, Meta(description="upper end of its 95% interval")]


class FittingPart(msgspec.Struct, frozen=True):
    limit_bytes: Annotated[int, Meta(description="CPU: of the process as a whole; else what torch reserves there")]
    limit_source: Annotated[str, Meta(description="where the limit comes from")]
    device: Annotated[str, Meta(description="whose memory is limited")]
    own_batch: Annotated[int, Meta(description="the script's")]
    own_fits: Annotated[bool, Meta(description="whether that runs within the limit")]
    largest: Annotated[int | None, Meta(description="batch that runs; null: not looked for")]
    too_large: Annotated[int | None, Meta(description="the smallest batch that ran out; null: none did")]
    fastest: Annotated[int | None, Meta(description="batch, by samples per second; null: not raced")]
    recipe: Annotated[dict[str, Setting], Meta(description="what is kept")]
    parameter_bytes: Annotated[int, Meta(description="of the models; 0: not known")]
    trials: Annotated[list[TrialPart], Meta(description="every ride, in order")]
    seconds_spent: Annotated[float, Meta(description="on the rides")]
    notes: Annotated[list[str], Meta(description="how it went, where that matters")]


class Export(msgspec.Struct, frozen=True, rename={"training_time": "outlook"}):
    """The top level."""

    schema: Annotated[int, Meta(description="version of this document's schema")]
    slipstream: Annotated[str, Meta(description="version of slipstream that rode along")]
    command: Annotated[str, Meta(description="`check`, `tune`, `watch` or `memory`")]
    script: Annotated[list[str], Meta(description="as typed: path or `-m module`, then its arguments")]
    cwd: Annotated[str, Meta(description="where the command was started")]
    created: Annotated[str, Meta(description="ISO 8601")]
    ending: Annotated[EndingPart, Meta(description="how the script ended")]
    verdict: Annotated[str, Meta(description="one sentence")]
    warning: Annotated[str, Meta(description="such as a model on the CPU although there is a GPU; usually empty")]
    num_steps: Annotated[int, Meta(description="watched steps that the numbers rest on")]
    is_inference: Annotated[bool, Meta(description="no backward pass was seen")]
    step_ms: Annotated[float | None, Meta(description="median of the watched steps; null without steps")]
    step_low_ms: Annotated[float | None, Meta(description="lower end of its 95% interval")]
    step_high_ms: Annotated[float | None, Meta(description="upper end of its 95% interval")]
    samples_per_s: Annotated[float | None, Meta(description="from the batches themselves")]
    phases: Annotated[dict[str, float], Meta(description="phase to ms on the host; adds up to `step_ms`")]
    device_phases: Annotated[dict[str, float] | None, Meta(description="the same on the device's clock; null on a CPU")]
    ceilings: Annotated[CeilingsPart, Meta(description="step times if one resource were free; null: not measured")]
    bound: Annotated[str, Meta(description="`input`, `compute`, `cores`, `other` or `unknown`")]
    findings: Annotated[
        list[FindingPart], Meta(description="best first; empty: nothing to gain that the run could see")
    ]
    stages: Annotated[list[StagePart], Meta(description="where input and other time goes, from stack samples")]
    evaluation: Annotated[EvaluationPart | None, Meta(description="validation and the like; null: none seen")]
    training_time: Annotated[
        OutlookPart | None, Meta(description="how long the training takes; null: its length is unknown")
    ]
    anatomy: Annotated[AnatomyPart | None, Meta(description="the operators of one step; null: not observed")]
    environment: Annotated[Environment, Meta(description="the machine, Python, torch; see below")]
    notes: Annotated[list[str], Meta(description="what could not be seen, what was switched off")]
    passed_through: Annotated[list[str], Meta(description="caches in which what the script wrote is real")]
    written: Annotated[list[str], Meta(description="files that the script wrote during the ride")]
    verdicts: Annotated[
        list[VerdictPart], Meta(description="of a tuning: one for each technique and setting; empty otherwise")
    ]
    combinations: Annotated[list[VerdictPart], Meta(description="of a tuning: winners raced together; empty otherwise")]
    total: Annotated[SpeedPart | None, Meta(description="what was kept, together, against the base; null: no tuning")]
    tuning: Annotated[TuningPart | None, Meta(description="the tuning as a whole; null: no tuning")]
    memory: Annotated[MemoryPart | None, Meta(description="of `memory`: the live bytes of one step; null otherwise")]
    fitting: Annotated[
        FittingPart | None, Meta(description="of `tune --fit` and `--memory-limit`: what fits; null otherwise")
    ]
