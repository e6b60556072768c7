"""A step runs so many small operators that launching them from Python takes longer than their computation."""

from __future__ import annotations

from slipstream.diagnose.gain import gain_without
from slipstream.diagnose.hotspots import FEWEST_SAMPLES, hottest_line, phase_ms_of, total, watched_stacks
from slipstream.diagnose.input_path import granted_share
from slipstream.diagnose.operator_shares import compute_phases_ms
from slipstream.diagnose.source_hints import trainers_own
from slipstream.diagnose.steps.rollout import acting_with_gradients
from slipstream.diagnose.steps.selection import dissected_share, main_model
from slipstream.numbers import in_ms, in_percent
from slipstream.records import Anatomy, Finding, Session, Site, StackCount, Summary

FEWEST = 300  # Operators in a step. Small models have fewer.
TINY_MS = 0.020  # Mean time of an operator under the profiler
LAUNCH_MS = 0.008  # Time that Python, dispatcher and autograd need for one operator before it computes anything
LEAST_LAUNCH_MS = 0.002  # The same time on the fastest CPUs
# If even the fastest CPUs need more than this many usual steps to launch all operators of the profiled step, then the
# profiled step is not a usual one.
OTHER_KIND = 3.0
LEAST_SHARE = 0.4
SAVED = 0.6
LOSS_SAVED = (
    # Share saved by one expression over the batch in place of a loop over samples. A triplet loss was measured to
    # become 9 times faster.
    0.9
)
IN_ONE_CALL = "act under torch.no_grad(), and call the model once for all states before the backward pass"
NOT_WITH_STATE = "Do not do this if the model draws random numbers, as dropout does: a second call draws other numbers."
RECURRENT = ("RNN", "LSTM", "GRU")
RECURRENT_OPERATORS = ("aten::rnn_", "aten::lstm", "aten::gru")


def find(session: Session, summary: Summary) -> list[Finding]:
    anatomy, model = session.anatomy, main_model(session)
    loss_ms, in_loss = phase_ms_of(session, {"other": summary.phases.get("other", 0.0)}, _is_loss)
    forward_ms, backward_ms = summary.phases.get("forward", 0.0), summary.phases.get("backward", 0.0)
    if anatomy is None or compute_phases_ms(summary) + loss_ms < 0.5 * summary.step_ms:
        return []
    num_operators = round(anatomy.num_operators * dissected_share(session))
    if num_operators * LEAST_LAUNCH_MS > OTHER_KIND * summary.step_ms:
        return []  # The profiled step was one of a few long steps, so it does not describe the usual step.
    # In a script that acts with gradients, the time after a call of the model may be the environment's and not the
    # loss's.
    is_acting = acting_with_gradients(session) is not None
    is_of_loss = loss_ms > forward_ms and total(in_loss) >= FEWEST_SAMPLES and not is_acting
    if model is not None and model.is_compiled and not is_of_loss:
        return []
    mean_ms = _mean_ms(anatomy)
    # If other programs use the cores, launching operators takes longer.
    slower = 1 / granted_share(session, summary.ceilings)
    launching_ms = num_operators * (1 - _recurrent_share(anatomy)) * LAUNCH_MS * slower
    launching_ms = min(launching_ms, forward_ms + backward_ms + loss_ms)
    is_tiny = mean_ms <= TINY_MS * slower
    if summary.device_idle is not None:
        # Where the device is idle in forward and backward, it waits for launches.
        launching_ms = sum(summary.device_idle.get(phase, 0.0) for phase in ("forward", "backward"))
        is_tiny = True
    is_launching = launching_ms >= LEAST_SHARE * (compute_phases_ms(summary) + loss_ms)
    if num_operators < FEWEST or not is_tiny or not is_launching:
        return []
    # The backward pass also contains the operators of a loop in the loss. The loop's share of backward is assumed to
    # equal its share of forward and loss.
    looping_ms = loss_ms + backward_ms * loss_ms / (loss_ms + forward_ms) if is_of_loss else 0.0
    saved_ms = max(LOSS_SAVED * looping_ms, SAVED * launching_ms)
    one = "one operator over the whole tensor in place of the loop"
    site = _site(session, in_loss if is_of_loss else [])
    change = one if is_of_loss else f"{one}, or {_compiling(session, site)}"
    can_compile = not is_of_loss and not is_acting
    return [
        Finding(
            cause="tiny_operations",
            title="Thousands of tiny operations" if num_operators >= 2000 else "Hundreds of tiny operations",
            evidence=f"A step runs {num_operators:,} operators of {in_ms(mean_ms)} on average; launching them "
            f"takes about {in_percent(launching_ms / summary.step_ms)} of its {in_ms(summary.step_ms)}"
            + (f", and {in_ms(loss_ms)} are spent on the loss." if is_of_loss else "."),
            predicted_gain=gain_without(summary.step_ms, saved_ms),
            change=IN_ONE_CALL if is_acting else change,
            site=site,
            techniques=["compile"] if can_compile else [],
            settings={"compile": "True"} if can_compile else {},
            advice=NOT_WITH_STATE if is_acting else "",
        )
    ]


def _compiling(session: Session, site: Site | None) -> str:
    """The change that compiles the model; with a trainer, the trainer's own argument.

    A trainer calls methods of the model, and torch.compile(model) does not compile these methods.
    """
    own = "TrainingArguments(..., torch_compile=True)"
    keras = "model.compile(..., jit_compile=True)"
    return trainers_own(session, site, "", own, keras=keras) or "model = torch.compile(model)"


def _is_loss(stack: StackCount) -> bool:
    """Whether the sample is between forward and backward, in the user's lines or in code that these lines call."""
    return stack.stage == "loss" and bool(stack.file)


def _recurrent_share(anatomy: Anatomy) -> float:
    """The share of the model's time in torch's own recurrent layers.

    Their loop runs in C++, and compiling does not change them.
    """
    if not any(operator.name.startswith(RECURRENT_OPERATORS) for operator in anatomy.operators):
        return 0.0
    whole = sum(one.forward_ms + one.backward_ms for one in anatomy.modules)
    inside = [one for one in anatomy.modules if one.class_name in RECURRENT]
    return sum(one.forward_ms + one.backward_ms for one in inside) / whole if whole > 0 else 0.0


def _mean_ms(anatomy: Anatomy) -> float:
    count = sum(operator.count for operator in anatomy.operators)
    return sum(operator.self_cpu_ms for operator in anatomy.operators) / count if count else 0.0


def _site(session: Session, in_loss: list[StackCount]) -> Site | None:
    """The user's line with the most samples in the loss or, if `in_loss` is empty, in the forward pass.

    If no line was sampled, it is the line that calls the model.
    """
    hot = hottest_line(session, in_loss or watched_stacks(session, "main", ("forward",)))
    model = main_model(session)
    return hot.site if hot else model.site if model else None
