"""What `--json` writes, as structs: few names, fixed units, a version. docs/json.md is generated from them.

Records whose names and meanings are those of the document are part of it as they are. The others have a struct here:
locations are `file:line`, recipes are objects, and speeds are three numbers.
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
    shared_ms: Annotated[float | None, Meta(description="CPU time of input and compute over the usable cores")]
    notes: Annotated[list[str], Meta(description="why a ceiling is null, and other caveats")]


class FindingPart(msgspec.Struct, frozen=True):
    cause: Annotated[str, Meta(description="an id from [findings](findings.md)")]
    title: Annotated[str, Meta(description="one short line")]
    where: Annotated[str, Meta(description="`file:line`; relative to `cwd` when inside it; empty without a line")]
    source: Annotated[str, Meta(description="the text of that line")]
    predicted_gain: Annotated[float, Meta(description="upper bound of old step over new step; 1.0 is no gain")]
    evidence: Annotated[str, Meta(description="a sentence with numbers from this run")]
    change: Annotated[str, Meta(description="the line to write")]
    advice: Annotated[str, Meta(description="an additional sentence, if the change needs one")]
    techniques: Annotated[list[str], Meta(description="ids of the techniques that address the cause")]
    measured: Annotated[str, Meta(description="what the races of `tune` measured for it; empty: nothing")]


class StagePart(msgspec.Struct, frozen=True):
    phase: Annotated[str, Meta(description="`input` or `other`")]
    stage: Annotated[str, Meta(description="`read`, `decode`, `transform`, `collate`, `handover`, ...")]
    ms: Annotated[float, Meta(description="per step, in the process that does the work")]
    share: Annotated[float, Meta(description="of that process's time in the phase, 0 to 1")]
    in_worker: Annotated[bool, Meta(description="in a loader worker, which may overlap with the step")]
    where: Annotated[str, Meta(description="the hottest line of the script in this stage, `file:line`, or empty")]
    expression: Annotated[str, Meta(description="what was evaluated there")]
    line_ms: Annotated[float, Meta(description="the part of `ms` spent on that line")]


class EvaluationPart(msgspec.Struct, frozen=True):
    seconds: Annotated[float, Meta(description="of observed validation, test or prediction, not part of the steps")]
    num_batches: Annotated[int, Meta(description="in them")]
    share: Annotated[float | None, Meta(description="of an epoch, 0 to 1; null: unknown")]
    grad: Annotated[bool, Meta(description="whether gradients were enabled in any of them")]
    sentence: Annotated[str, Meta(description="the same as the terminal shows it")]


class OutlookPart(msgspec.Struct, frozen=True):
    num_epochs: Annotated[int | None, Meta(description="of the whole training, as the script says")]
    num_steps: Annotated[int | None, Meta(description="of the whole training, as the script says")]
    seconds: Annotated[float | None, Meta(description="the whole training at this rate")]
    seconds_best: Annotated[float | None, Meta(description="the same if input were free")]
    sentence: Annotated[str, Meta(description="the same as the terminal shows it")]


class ModulePart(msgspec.Struct, frozen=True):
    path: Annotated[str, Meta(description="inside the outermost module")]
    class_name: Annotated[str, Meta(description="of the module")]
    forward_ms: Annotated[float, Meta(description="without the modules inside it")]
    backward_ms: Annotated[float, Meta(description="without the modules inside it")]
    flops: Annotated[int, Meta(description="of its forward")]
    classes_ms: Annotated[dict[str, float], Meta(description="class of operator to ms, forward")]


class AttentionPart(msgspec.Struct, frozen=True):
    path: Annotated[str, Meta(description="of the module that computes softmax(q k^T) v by hand")]
    where: Annotated[str, Meta(description="`file:line`, or empty")]
    share: Annotated[float, Meta(description="of the forward pass, 0 to 1")]


class AnatomyPart(msgspec.Struct, frozen=True):
    """Times are from one step under a profiler. Only their shares are meaningful."""

    classes_ms: Annotated[dict[str, float], Meta(description="class of operator to ms")]
    flops: Annotated[int, Meta(description="floating-point operations of one step")]
    num_operators: Annotated[int, Meta(description="calls of operators in one step")]
    padding_share: Annotated[float | None, Meta(description="tokens that are padding, 0 to 1; null: not recognised")]
    operators: Annotated[list[Operator], Meta(description="most expensive first")]
    modules: Annotated[list[ModulePart], Meta(description="modules that ran their own operators")]
    attentions: Annotated[list[AttentionPart], Meta(description="attention written by hand")]


class VerdictPart(msgspec.Struct, frozen=True):
    technique: Annotated[str, Meta(description="an id from [techniques](techniques.md)")]
    setting: Annotated[Setting, Meta(description="`true` if it has no variants")]
    decision: Annotated[str, Meta(description="`kept`, `rejected`, `unsure`, `failed` or `not_applicable`")]
    ratio: Annotated[float | None, Meta(description="base step over this step: more than 1 is faster")]
    low: Annotated[float | None, Meta(description="lower end of its 95% interval; null: an estimate of the selection")]
    high: Annotated[float | None, Meta(description="upper end of its 95% interval")]
    own_ratio: Annotated[float | None, Meta(description="times as fast as what it was raced on; null: older sessions")]
    cause: Annotated[
        str | None, Meta(description="why: `gains`, `no_gain`, `outpaced`, `proved`; null: older sessions")
    ]
    numerics: Annotated[str | None, Meta(description="`identical`, `reordered`, `redrawn`, `approximate`, `different`")]
    reason: Annotated[str, Meta(description="one line")]
    kind: Annotated[
        str,
        Meta(
            description="`single`: raced in the selection. In `combinations`: `left_out`, what the technique adds to"
            " the others; `total`, the proof of the whole recipe; `writable`, that of the recipe for `patch`;"
            " `cumulative`, only in older sessions"
        ),
    ]
    recipe: Annotated[dict[str, Setting], Meta(description="all that were enabled: technique to setting")]
    is_sound: Annotated[bool | None, Meta(description="whether the numerics passed; null: not observed or not raced")]
    proof: Annotated[str, Meta(description="the basis of the verdict on the numerics")]
    step_ms: Annotated[float | None, Meta(description="average step")]
    samples_per_s: Annotated[float | None, Meta(description="at that step")]
    batch_size: Annotated[int | None, Meta(description="samples in a step")]
    peak_bytes: Annotated[int | None, Meta(description="peak memory of the process and its children")]
    one_off_s: Annotated[float, Meta(description="start-up beyond the base's: compilation, worker start")]
    payback_steps: Annotated[int | None, Meta(description="steps until it has saved its cost; null: no cost, or never")]


class SpeedPart(msgspec.Struct, frozen=True):
    ratio: Annotated[float | None, Meta(description="base step over step: more than 1 is faster; null: not measured")]
    low: Annotated[float | None, Meta(description="lower end of its 95% interval; null: an estimate")]
    high: Annotated[float | None, Meta(description="upper end of its 95% interval; null: an estimate")]


class TuningPart(msgspec.Struct, frozen=True):
    """The basis of the verdicts."""

    recipe: Annotated[dict[str, Setting], Meta(description="what was kept: technique to setting")]
    noise: Annotated[SpeedPart, Meta(description="two equal trials against each other")]
    noise_note: Annotated[str, Meta(description="only in older sessions")]
    base_step_ms: Annotated[float, Meta(description="the unchanged script in the races; `step_ms` is the check's")]
    base_samples_per_s: Annotated[float, Meta(description="the unchanged script")]
    base_peak_bytes: Annotated[int | None, Meta(description="peak memory of the unchanged script")]
    ceiling_ms: Annotated[float | None, Meta(description="the step if input and compute never waited for each other")]
    candidate: Annotated[dict[str, Setting], Meta(description="if nothing was kept: the best recipe, not proven")]
    candidate_speed: Annotated[SpeedPart, Meta(description="of the candidate")]
    writable: Annotated[dict[str, Setting], Meta(description="what `patch` can write, if not all that was kept")]
    writable_speed: Annotated[SpeedPart, Meta(description="of what can be written")]
    num_rounds: Annotated[int, Meta(description="of all races")]
    num_discarded: Annotated[int, Meta(description="rounds that do not count, because other programs used the cores")]
    foreign_cores: Annotated[float, Meta(description="cores that other programs used in discarded rounds")]
    waited_s: Annotated[float, Meta(description="spent on waiting for other programs")]
    seconds_before: Annotated[float | None, Meta(description="the whole training, unchanged; null: length unknown")]
    seconds_after: Annotated[float | None, Meta(description="the whole training with the recipe")]
    seconds_spent: Annotated[float, Meta(description="on the races")]
    is_complete: Annotated[bool, Meta(description="false: interrupted, or ended early; `--resume` continues it")]
    notes: Annotated[list[str], Meta(description="remarks on how the tuning went")]


class HolderPart(msgspec.Struct, frozen=True):
    path: Annotated[str, Meta(description="inside the outermost module")]
    class_name: Annotated[str, Meta(description="of the module")]
    num_bytes: Annotated[int, Meta(description="alive at the peak, without the modules inside it")]
    kinds: Annotated[dict[str, int], Meta(description="kind to bytes")]


class LinePart(msgspec.Struct, frozen=True):
    where: Annotated[str, Meta(description="`file:line`; allocations of backward count for the forward's line")]
    source: Annotated[str, Meta(description="the text of that line")]
    num_bytes: Annotated[int, Meta(description="allocated by this line and alive at the peak")]
    kinds: Annotated[dict[str, int], Meta(description="kind to bytes")]


class MomentPart(msgspec.Struct, frozen=True):
    at_ms: Annotated[float, Meta(description="since the start of the observed step, under observation")]
    phase: Annotated[str, Meta(description="of the step")]
    kinds: Annotated[dict[str, int], Meta(description="kind to bytes alive")]


class BatchPart(msgspec.Struct, frozen=True):
    batch_size: Annotated[int, Meta(description="samples")]
    peak_bytes: Annotated[int, Meta(description="estimated: a fixed part and a part per sample, for each phase")]
    observed_bytes: Annotated[int | None, Meta(description="null: no step of this size was observed")]


class GrowthPart(msgspec.Struct, frozen=True):
    num_bytes: Annotated[int, Meta(description="that a step leaves behind and the next one does not free")]
    where: Annotated[str, Meta(description="`file:line` that made most of it, or empty")]


class MemoryPart(msgspec.Struct, frozen=True):
    """Kinds are those of `records.KINDS`; `parameters` includes the buffers."""

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
    moments: Annotated[list[MomentPart], Meta(description="over the step: the highest of each interval")]
    remedies: Annotated[list[Remedy], Meta(description="most first")]
    batches: Annotated[list[BatchPart], Meta(description="peak by batch size; empty: batches could not be split")]
    capacity_bytes: Annotated[int | None, Meta(description="available to tensors on this device")]
    largest_batch: Annotated[int | None, Meta(description="that fits in it, estimated")]
    growth: Annotated[GrowthPart | None, Meta(description="null: no growth")]
    reserved_bytes: Annotated[int, Meta(description="held by the device's caching allocator; 0 on the CPU")]
    split_bytes: Annotated[int, Meta(description="of those, free but in split blocks; 0 on the CPU")]


class TrialPart(msgspec.Struct, frozen=True):
    batch_size: Annotated[int, Meta(description="samples; 0: not known")]
    recipe: Annotated[dict[str, Setting], Meta(description="enabled techniques, with their settings")]
    is_held: Annotated[
        bool, Meta(description="whether the limit applied; false: the unchanged script, which others are raced against")
    ]
    outcome: Annotated[str, Meta(description="`ran`, `ran_out` of memory, `ended` too early to tell, or `failed`")]
    reason: Annotated[str, Meta(description="why it did not run")]
    peak_bytes: Annotated[int | None, Meta(description="peak memory, counted like the limit; null: not reached")]
    step_ms: Annotated[float | None, Meta(description="a step; null: not timed")]
    samples_per_s: Annotated[float | None, Meta(description="the rate; null: not timed")]
    ratio: Annotated[float | None, Meta(description="samples per second over those of the unchanged, unlimited script")]
    low: Annotated[float | None, Meta(description="lower end of its 95% interval; null: not known")]
    high: Annotated[float | None, Meta(description="upper end of its 95% interval; null: not known")]


class FittingPart(msgspec.Struct, frozen=True):
    limit_bytes: Annotated[int, Meta(description="CPU: of the process as a whole; else what torch reserves there")]
    limit_source: Annotated[str, Meta(description="where the limit comes from")]
    device: Annotated[str, Meta(description="whose memory is limited")]
    own_batch: Annotated[int, Meta(description="the script's")]
    own_fits: Annotated[bool, Meta(description="whether that runs within the limit")]
    largest: Annotated[int | None, Meta(description="batch that runs; null: not searched")]
    too_large: Annotated[int | None, Meta(description="the smallest batch that ran out; null: none did")]
    fastest: Annotated[int | None, Meta(description="batch, by samples per second; null: not raced")]
    recipe: Annotated[dict[str, Setting], Meta(description="what is kept")]
    parameter_bytes: Annotated[int, Meta(description="of the models; 0: not known")]
    trials: Annotated[list[TrialPart], Meta(description="every trial, in order")]
    seconds_spent: Annotated[float, Meta(description="in the trials")]
    notes: Annotated[list[str], Meta(description="remarks on how the search went")]


class Export(msgspec.Struct, frozen=True, rename={"training_time": "outlook"}):
    """The top level."""

    schema: Annotated[int, Meta(description="version of this document's schema")]
    slipstream: Annotated[str, Meta(description="version of slipstream that made the session")]
    command: Annotated[str, Meta(description="`check`, `tune`, `watch` or `memory`")]
    script: Annotated[list[str], Meta(description="as typed: path or `-m module`, then its arguments")]
    cwd: Annotated[str, Meta(description="where the command was started")]
    created: Annotated[str, Meta(description="ISO 8601")]
    ending: Annotated[Ending, Meta(description="how the script ended")]
    verdict: Annotated[str, Meta(description="one sentence")]
    warning: Annotated[str, Meta(description="such as a model on the CPU although there is a GPU; usually empty")]
    num_steps: Annotated[int, Meta(description="observed steps that the numbers are based on")]
    num_undisturbed: Annotated[
        int | None,
        Meta(description="of those, without load of other programs; fewer than 8 are too few"),
    ]
    num_disturbed: Annotated[int, Meta(description="observed steps during which other programs used the cores")]
    foreign_cores: Annotated[float, Meta(description="that other programs used during those")]
    is_inference: Annotated[bool, Meta(description="no backward pass was seen")]
    step_ms: Annotated[float | None, Meta(description="their median, in the check; null without steps")]
    step_low_ms: Annotated[float | None, Meta(description="lower end of its 95% interval")]
    step_high_ms: Annotated[float | None, Meta(description="upper end of its 95% interval")]
    samples_per_s: Annotated[float | None, Meta(description="from the batches themselves")]
    phases: Annotated[dict[str, float], Meta(description="phase to ms on the host; adds up to `step_ms`")]
    device_phases: Annotated[dict[str, float] | None, Meta(description="the same on the device's clock; null on a CPU")]
    ceilings: Annotated[CeilingsPart, Meta(description="step times if one resource were free; null: not measured")]
    bound: Annotated[str, Meta(description="`input`, `compute`, `cores`, `other` or `unknown`")]
    findings: Annotated[list[FindingPart], Meta(description="best first; empty: the run found nothing to gain")]
    stages: Annotated[list[StagePart], Meta(description="where input and other time goes, from stack samples")]
    evaluation: Annotated[EvaluationPart | None, Meta(description="validation and the like; null: none seen")]
    training_time: Annotated[
        OutlookPart | None, Meta(description="how long the training takes; null: its length is unknown")
    ]
    anatomy: Annotated[AnatomyPart | None, Meta(description="the operators of one step; null: not observed")]
    environment: Annotated[Environment, Meta(description="the machine, Python, torch; see below")]
    notes: Annotated[list[str], Meta(description="what could not be observed, what was disabled")]
    passed_through: Annotated[list[str], Meta(description="caches in which the script's writes are permanent")]
    written: Annotated[list[str], Meta(description="files that the script wrote during the run")]
    verdicts: Annotated[
        list[VerdictPart], Meta(description="of a tuning: one for each technique and setting; empty otherwise")
    ]
    combinations: Annotated[
        list[VerdictPart], Meta(description="of a tuning: recipes raced as a whole; empty otherwise")
    ]
    total: Annotated[SpeedPart | None, Meta(description="what was kept, together, against the base; null: no tuning")]
    tuning: Annotated[TuningPart | None, Meta(description="the tuning as a whole; null: no tuning")]
    memory: Annotated[MemoryPart | None, Meta(description="of `memory`: the live bytes of one step; null otherwise")]
    fitting: Annotated[
        FittingPart | None, Meta(description="of `tune --fit` and `--memory-limit`: what fits; null otherwise")
    ]
