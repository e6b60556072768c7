"""The numerics of a recipe in words: what was compared, what agrees, or what is wrong."""

from __future__ import annotations

from slipstream.numbers import plural
from slipstream.records import Numerics, NumericsBasis, NumericsFault

_MISSING: dict[NumericsBasis, str] = {
    "no_loss": "no loss was seen",
    "no_common_step": "too few steps were seen in both trials",
    "no_gradient": "no gradient was seen in both trials",
    "no_control": "the rounding control did not run long enough to show what rounding does to this training",
    "no_seeds": "the controls with other seeds did not run long enough to show what chance does to this training",
    "no_time": "there was no time for the controls that this needs",
    "no_proof": "the trial that should have shown it did not reach a step",
}
_ROUNDING = {"fp32": "rounding", "tf32": "tf32 rounding", "fp16": "fp16 rounding", "bf16": "bf16 rounding"}


def describe_numerics(numerics: Numerics) -> str:
    """Returns the numerics as a clause: "bit-equal in 60 steps"."""
    if numerics.reason:  # a session of an older version
        return numerics.reason
    if numerics.is_sound is None:
        return _MISSING.get(numerics.basis) or _little_evidence(numerics)
    words = _fault(numerics, numerics.fault) if numerics.fault is not None else _agreement(numerics)
    if numerics.claimed == "identical" and not numerics.is_repeatable:
        return f"the script does not repeat itself bit for bit; within its rounding, {words}"
    return words


def as_error(share: float) -> str:
    """Returns a relative error in words: "3%" or "2e-06"."""
    if share < 5e-4:
        return f"{share:.0e}"
    return f"{share:.0%}" if share >= 0.095 else f"{100 * share:.2g}%"


def _agreement(numerics: Numerics) -> str:
    steps = plural(numerics.num_steps, "step")
    if numerics.basis == "bits":
        beyond = "" if numerics.claimed == "identical" else f", stricter than {numerics.claimed}"
        return f"bit-equal in {steps}{beyond}"
    if numerics.basis == "finite":
        return "changes the training by design; its losses are finite, and nothing else is checked"
    if numerics.basis == "curve":
        return f"the losses of {steps} are at the level of trainings with other seeds"
    rounding, horizon = _ROUNDING[numerics.precision], numerics.horizon_steps
    tensors = f"{_evidence(numerics)} and agree within {rounding}"
    if horizon is None:
        return f"{tensors}; losses agree in {steps}"
    if not horizon:
        return f"{tensors}; rounding dominates the losses from the start, but their mean agrees"
    return f"{tensors}; losses agree for {plural(horizon, 'step')}, after which rounding dominates this training"


def _evidence(numerics: Numerics) -> str:
    return f"{numerics.num_evidence:,} of {numerics.num_tensors:,} tensors are evidence"


def _little_evidence(numerics: Numerics) -> str:
    rounding = _ROUNDING[numerics.precision]
    return (
        f"{rounding} alone moves most gradients too far to compare them: only {_evidence(numerics)},"
        " and they make up less than half of the update"
    )


def _fault(numerics: Numerics, fault: NumericsFault) -> str:
    match fault.kind:
        case "not_finite_loss":
            return f"the loss is {fault.seen} at step {fault.step}, and the base's loss is {fault.allowed:.4g}"
        case "loss":
            return f"the loss differs first at step {fault.step}: {fault.seen!r} against {fault.allowed!r}"
        case "passes":
            seen, base = int(fault.seen), int(fault.allowed)
            return f"backward ran {seen} times in step {fault.step}, and {base} times in the base"
        case "weights":
            return f"weights or buffers differ after step {fault.step}, though the losses until then are the same"
        case "not_finite":
            return f"{_tensor(fault)} is not finite at step {fault.step}, but is finite in the base"
        case "missing":
            return f"{_tensor(fault)} is missing at step {fault.step}"
        case "extra":
            return f"{_tensor(fault)} exists at step {fault.step}, but not in the base"
        case "size":
            return f"{_tensor(fault)} has another size at step {fault.step}"
        case "error":
            return f"{_tensor(fault)} {_is(fault)} off by {_seen_and_allowed(numerics, fault)}"
        case "norm":
            return f"the size of {_tensor(fault)} is off by {_seen_and_allowed(numerics, fault)}"
        case "losses":
            where = f"in steps {fault.step} to {fault.last_step}"
            return f"losses differ from the base's by {fault.seen:.3g} {where}; rounding explains {fault.allowed:.3g}"
        case "level":
            where = f"in steps {fault.step} to {fault.last_step}"
            return f"the mean loss {where} differs by {fault.seen:.3g}; chance explains {fault.allowed:.3g}"
        case "metric":
            return (
                f"the printed {fault.name} at step {fault.step} differs by {fault.seen:.3g}; chance explains"
                f" {fault.allowed:.3g}"
            )


def _tensor(fault: NumericsFault) -> str:
    return f"the {fault.tensor} of {fault.name}" if fault.name else f"all {fault.tensor}s together"


def _is(fault: NumericsFault) -> str:
    return "is" if fault.name else "are"


def _seen_and_allowed(numerics: Numerics, fault: NumericsFault) -> str:
    rounding = _ROUNDING[numerics.precision]
    return f"{as_error(fault.seen)} at step {fault.step}; {rounding} explains at most {as_error(fault.allowed)}"
