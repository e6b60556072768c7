"""The optimizer updates its tensors one by one, although one fused call could update all of them."""

from __future__ import annotations

import re
from collections import Counter

import msgspec

from slipstream.diagnose.gain import gain_without, rehearsal_of, rehearsed_gain, rehearsed_words
from slipstream.diagnose.hotspots import FEWEST_SAMPLES, hottest_line, phase_ms_of, total
from slipstream.diagnose.source_hints import place, with_argument
from slipstream.diagnose.steps.selection import main_optimizer
from slipstream.numbers import in_ms, in_percent, part_of_ms
from slipstream.records import Finding, Optimizer, Session, Summary

LEAST_SHARE = 0.08  # Share of the step
LEAST_GAIN = 1.05  # Nearly every script could fuse an update. A smaller gain is not reported.
# Largest ratio of the optimizer's time to the time of the rehearsed copy, whose data are in the CPU caches. The time
# beyond this ratio has another cause, which fusing does not remove.
COLDER = 3.0
SMALL = 20_000  # Values per tensor. For smaller tensors, calls cost more than arithmetic.
# Time per tensor of a slow update in a user's own class. Updates over lists (torch._foreach_*) are faster.
SLOW_US = 20.0
OWN_SAVED = 0.7  # Share saved of an update in a user's own class by the same arithmetic over lists
OF_TORCH = "torch.optim.swa_utils averages weights, and torch.nn.utils.clip_grad_norm_ limits gradients, over lists."
LOOP_SAVED = 0.6  # Share saved of a loop in the script itself, whose tensors were not counted


def find(session: Session, summary: Summary) -> list[Finding]:
    updates = _updates(session, summary)
    return _find_unfused(session, summary, updates) + (_find_own(summary, updates) or _find_loop(session, summary))


def _find_unfused(session: Session, summary: Summary, updates: list[tuple[Optimizer, float]]) -> list[Finding]:
    timed = [(one, spent_ms) for one, spent_ms in updates if one.can_fuse and not one.fused]
    optimizer_ms = sum(spent_ms for _, spent_ms in timed)
    if not timed or optimizer_ms < LEAST_SHARE * summary.step_ms:
        return []
    optimizer = timed[0][0]
    rehearsal = rehearsal_of(session, "fused_optimizer")
    if rehearsal is not None:
        gain = rehearsed_gain(summary, rehearsal, min(optimizer_ms, COLDER * len(timed) * rehearsal.now_ms))
        proof = f"fused, {rehearsed_words(rehearsal)}"
    else:
        saved = sum(spent_ms * _saved(one) for one, spent_ms in timed) / optimizer_ms
        gain = gain_without(summary.step_ms, optimizer_ms, saved)
        proof = f"this class has a fused implementation on {optimizer.device or 'this device'}"
    if gain < LEAST_GAIN:
        return []
    others = [place(one.site) for one, _ in timed[1:] if one.site and one.site != optimizer.site]
    takes = f"The {len(timed)} optimizers that could be fused take" if len(timed) > 1 else "The optimizer takes"
    most = (
        f"most of it in this one with its {optimizer.num_tensors}" if len(timed) > 1 else f"for {optimizer.num_tensors}"
    )
    return [
        Finding(
            cause="unfused_optimizer",
            title=f"{optimizer.class_name} is not fused",
            evidence=f"{takes} {part_of_ms(optimizer_ms, summary.step_ms)} a step "
            f"({in_percent(optimizer_ms / summary.step_ms)}){',' if len(timed) > 1 else ''} {most} tensors; {proof}.",
            predicted_gain=gain,
            change=_change(optimizer),
            advice=f"Change {' and '.join(dict.fromkeys(others))} in the same way." if others else "",
            site=optimizer.site,
            techniques=["fused_optimizer"],
            settings={"fused": "True"},
        )
    ]


def _find_own(summary: Summary, updates: list[tuple[Optimizer, float]]) -> list[Finding]:
    """The finding for a user's own optimizer class that loops over many small tensors in Python.

    The class has no option to enable, but its loop can be replaced.
    """
    for one, spent_ms in updates:
        tensor_us = 1000 * spent_ms / max(1, one.num_tensors)
        gain = gain_without(summary.step_ms, spent_ms, OWN_SAVED)
        is_slow = tensor_us >= SLOW_US and one.num_parameters < SMALL * one.num_tensors
        if one.can_fuse or one.step_site is None or not is_slow or gain < LEAST_GAIN:
            continue
        return [
            Finding(
                cause="unfused_optimizer",
                title=f"{one.class_name} updates its tensors one by one",
                evidence=f"The optimizer takes {part_of_ms(spent_ms, summary.step_ms)} a step "
                f"({in_percent(spent_ms / summary.step_ms)}) for {one.num_tensors} tensors of "
                f"{one.num_parameters / one.num_tensors:,.0f} values on average: {in_ms(tensor_us / 1000)} each, most "
                "of it Python and the calls into torch.",
                predicted_gain=gain,
                change="lists in place of the loop: torch._foreach_mul_(averages, beta), torch._foreach_add_(...), ...",
                advice=f"Where torch.optim has the same update with fused=True, use that{_at(one)}.",
                site=one.step_site,
            )
        ]
    return []


def _find_loop(session: Session, summary: Summary) -> list[Finding]:
    """The finding for a loop over parameters outside all optimizers.

    Such a loop updates weights by hand, averages weights or scales gradients.
    """
    loop_ms, stacks = phase_ms_of(
        session, {"other": summary.phases.get("other", 0.0)}, lambda stack: stack.stage == "update"
    )
    gain = gain_without(summary.step_ms, loop_ms, LOOP_SAVED)
    hot = hottest_line(session, stacks)
    if hot is None or total(stacks) < FEWEST_SAMPLES or gain < LEAST_GAIN:
        return []
    return [
        Finding(
            cause="unfused_optimizer",
            title="A loop walks over the parameters one by one",
            evidence=f"{part_of_ms(loop_ms, summary.step_ms)} a step "
            f"({in_percent(loop_ms / summary.step_ms)}) go into a loop of the script over its parameters: several "
            "calls into torch for each, and every call reads and writes its memory again.",
            predicted_gain=gain,
            change="torch.optim with fused=True, or lists in place of the loop: torch._foreach_mul_(...), ...",
            advice=OF_TORCH if session.optimizers else "",
            site=hot.site,
        )
    ]


def _at(optimizer: Optimizer) -> str:
    return f" at {place(optimizer.site)}" if optimizer.site is not None else ""


def _updates(session: Session, summary: Summary) -> list[tuple[Optimizer, float]]:
    """All optimizers with their milliseconds per step, longest first.

    The times of several optimizers (GANs) are measured, because the larger one may step less often. If nothing was
    measured, or if there is only one optimizer, the largest optimizer gets the whole phase.
    """
    whole_ms, known = summary.phases.get("optimizer", 0.0), {one.ident: one for one in session.optimizers}
    spent_ns: Counter[int] = Counter()
    for event in session.events:
        if event.kind == "optimizer" and event.ident in known:
            spent_ns[event.ident] += event.end_ns - event.start_ns
    if len(known) < 2 or not spent_ns.total():
        main = main_optimizer(session)
        return [(main, whole_ms)] if main else []
    return [(known[ident], whole_ms * ns / spent_ns.total()) for ident, ns in spent_ns.most_common()]


def _saved(optimizer: Optimizer) -> float:
    """The share of the optimizer's time that fusing removes.

    With many small tensors nearly all of the time is overhead. With large tensors a fused update reads and writes
    memory once, and not once per operation. Adam has a dozen operations, and SGD has two or three.
    """
    walks_one_by_one = not optimizer.foreach and (optimizer.foreach is False or optimizer.device.startswith("cpu"))
    is_small = optimizer.num_parameters < SMALL * max(1, optimizer.num_tensors)
    if walks_one_by_one and is_small:
        return 0.8
    if "SGD" in optimizer.class_name:
        return 0.25
    return 0.6 if walks_one_by_one else 0.35


def _change(optimizer: Optimizer) -> str:
    """The change. An existing foreach argument is removed, because torch does not accept foreach and fused together."""
    site = optimizer.site
    if site is None:
        return f"{optimizer.class_name}(..., fused=True)"
    text = re.sub(r",?\s*\bforeach\s*=\s*(True|False|None)", "", site.text)
    return with_argument(msgspec.structs.replace(site, text=text), optimizer.class_name, "fused", "True")
