"""Memory grows step by step because tensors, or whole graphs, are kept alive. A risk more than a matter of speed."""

from __future__ import annotations

from slipstream.diagnose.growth import Growth, find_growth
from slipstream.diagnose.wording import size
from slipstream.records import Finding, Leak, Session, Summary


def find(session: Session, _summary: Summary) -> list[Finding]:
    growth = find_growth(session)
    if growth is None:
        return []
    leak = max(session.leaks, key=lambda one: one.num_tensors, default=None)
    has_graph = growth.graphs_per_step > 0
    return [
        Finding(
            cause="growing_memory",
            title="Graphs are kept alive from step to step" if has_graph else "Memory grows with every step",
            evidence=_evidence(growth, leak),
            predicted_gain=1.0,
            change=_change(leak) if has_graph else "keep .detach().cpu() copies, or let go of what earlier steps made",
            site=leak.site if leak else None,
            advice=_advice(growth),
        )
    ]


def _evidence(growth: Growth, leak: Leak | None) -> str:
    parts: list[str] = []
    if growth.graphs_per_step > 0:
        parts.append(f"{growth.graphs_per_step:.1f} more tensors with a graph")
    elif growth.tensors_per_step > 0:
        parts.append(f"{growth.tensors_per_step:.1f} more tensors")
    if growth.bytes_per_step > 0:
        parts.append(f"{size(growth.bytes_per_step)} more memory")
    held = f" {leak.name} holds {leak.num_tensors} of them." if leak else ""
    return f"Every step leaves {' and '.join(parts)}, over {growth.num_steps} steps.{held}"


def _change(leak: Leak | None) -> str:
    text = leak.site.text if leak and leak.site else ""
    for closing in (".append(loss)", "+= loss"):
        if closing in text:
            return text.replace(closing, closing.replace("loss", "loss.item()"))
    return "keep numbers, not tensors: losses.append(loss.item())"


def _advice(growth: Growth) -> str:
    if growth.steps_until_full is None:
        return ""
    return f"At this rate memory is full after another {growth.steps_until_full:,.0f} steps."
