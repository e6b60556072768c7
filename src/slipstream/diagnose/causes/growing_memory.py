"""Memory grows with every step because tensors, or whole autograd graphs, are kept alive. This is a risk of running out
of memory more than a loss of time.
"""

from __future__ import annotations

import re

from slipstream.diagnose.memory_growth import GrowthTrend, find_growth
from slipstream.diagnose.steps.rollout import acting_with_gradients
from slipstream.diagnose.steps.selection import training_loader
from slipstream.numbers import in_bytes
from slipstream.records import Finding, Leak, Session, Summary

_KEPT = re.compile(r"(?:\.(?:append|appendleft|add)\(|\+=\s*|\]\s*=\s*)(?P<what>[A-Za-z_][\w.]*)\s*\)?\s*(?:#.*)?$")
_NUMBER_BYTES = 16
HISTORY_KEEPER = "LBFGS"
ALIKE = 0.7
_NO_GRAPHS = "keep loss.item() of a single number, and .detach().cpu() copies of everything else that is needed later"
_LET_GO = "keep .detach().cpu() copies, or drop the tensors of earlier steps"


def find(session: Session, _summary: Summary) -> list[Finding]:
    growth = find_growth(session)
    if growth is None:
        return []
    has_graph = growth.graphs_per_step > 0
    fitting = [leak for leak in session.leaks if leak.has_graph == has_graph] or session.leaks
    # Among the leaks with about as many tensors, the one with the largest tensors fills the memory.
    most = max((one.num_tensors for one in fitting), default=0)
    fullest = [one for one in fitting if one.num_tensors >= ALIKE * most or _explains(one, growth)]
    leak = max(fullest, key=lambda one: (one.num_bytes, one.num_tensors, one.site is not None), default=None)
    if has_graph and leak is None and acting_with_gradients(session) is not None:
        return []  # The graph of an episode is alive until its backward pass, and episodes become longer in training.
    if not has_graph and leak is None and any(one.class_name == HISTORY_KEEPER for one in session.optimizers):
        return []  # Until its history is full, this optimizer keeps more tensors after every update.
    return [
        Finding(
            cause="growing_memory",
            title="Graphs are kept alive from step to step" if has_graph else "Memory grows with every step",
            evidence=_evidence(growth, leak),
            predicted_gain=1.0,
            change=_change(leak) if has_graph else _LET_GO,
            site=leak.site if leak else None,
            advice=_advice(growth)
            or (_values_advice(growth, leak) if has_graph else _cache_advice(session, growth, leak)),
        )
    ]


def _explains(leak: Leak, growth: GrowthTrend) -> bool:
    """Whether the values of these tensors are more than half of the growth."""
    return leak.num_bytes > 0.5 * growth.bytes_per_step * growth.num_steps > 0


def _evidence(growth: GrowthTrend, leak: Leak | None) -> str:
    parts: list[str] = []
    if leak is not None and leak.is_sum:
        parts.append("its graph")
    elif growth.graphs_per_step > 0:
        parts.append(f"{growth.graphs_per_step:.1f} more tensors with a graph")
    elif growth.tensors_per_step > 0:
        parts.append(f"{growth.tensors_per_step:.1f} more tensors")
    if growth.bytes_per_step > 0:
        parts.append(f"{in_bytes(growth.bytes_per_step)} more memory")
    held = f" {leak.name} holds {leak.num_tensors} of them." if leak else ""
    if leak is not None and leak.is_sum:
        held = f" {leak.name} is a sum of {leak.num_tensors} with their graphs."
    return f"Every step leaves {' and '.join(parts)}, over {growth.num_steps} steps.{held}"


def _change(leak: Leak | None) -> str:
    """The user's line, changed to keep a number or, if the tensors are larger, a tensor without its graph."""
    text = leak.site.text if leak and leak.site else ""
    found = _KEPT.search(text)
    is_number = leak is None or leak.is_sum or leak.num_bytes <= _NUMBER_BYTES * leak.num_tensors
    if leak is None or found is None:
        return "keep numbers, not tensors: losses.append(loss.item())" if is_number else _NO_GRAPHS
    end = found.end("what")
    return f"{text[:end]}{'.item()' if is_number else '.detach()'}{text[end:]}"


def _values_advice(growth: GrowthTrend, leak: Leak | None) -> str:
    """Advice if the values of the tensors fill the memory, so that dropping their graphs frees little memory."""
    if leak is None or not _explains(leak, growth):
        return ""
    return (
        f"The values themselves are {in_bytes(leak.num_bytes / leak.num_tensors)} each: keep few of them, or a number."
    )


def _cache_advice(session: Session, growth: GrowthTrend, leak: Leak | None) -> str:
    """Advice for a container that is filled by key, because it may be a cache.

    Whether the container stops growing is known only after the first epoch.
    """
    loader = training_loader(session)
    num_batches = (loader.num_batches or 0) if loader is not None else 0
    if leak is None or leak.site is None or "] =" not in leak.site.text or growth.num_steps >= num_batches:
        return ""
    whole = growth.bytes_per_step * num_batches
    held = f"it would hold {in_bytes(whole)} after {num_batches:,} batches"
    return f"If {leak.name} is a cache that fills in the first epoch: {held}."


def _advice(growth: GrowthTrend) -> str:
    if growth.steps_until_full is None:
        return ""
    return f"At this rate memory is full after another {growth.steps_until_full:,.0f} steps."
