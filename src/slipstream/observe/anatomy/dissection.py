"""Computes the anatomy from a trace: sums by kind of operator, by operator and by module, and the sizes that the
hardware handles badly. The result depends only on the nodes and modules."""

from __future__ import annotations

from collections import defaultdict

from torch import nn

from slipstream.observe.anatomy.attention import find_attentions
from slipstream.observe.anatomy.flops import FORMULAS, count_flops
from slipstream.observe.anatomy.modules import ModuleEntry
from slipstream.observe.anatomy.operators import classify, is_free, is_operator
from slipstream.observe.anatomy.trace import BACKWARD, MODULE, OPTIMIZER, Node, OperatorTrace
from slipstream.records import Anatomy, Misalignment, ModuleShare, Operator

MAX_OPERATORS = 20
MAX_MODULES = 30
TILE = 8  # a dimension that is a multiple of this number fills the last tile of a matrix unit
VOCABULARY_TILE = 64
VOCABULARY_LEAST = 1000


def dissect(
    trace: OperatorTrace,
    entries: list[ModuleEntry],
    step_ms: float,
    padding_share: float | None = None,
    denormal_share: float | None = None,
) -> Anatomy:
    _count(trace)
    model = [node for node in trace.nodes if not node.is_optimizer and not node.is_range]
    classes_ns: dict[str, int] = defaultdict(int)
    classes_flops: dict[str, int] = defaultdict(int)
    contraction_ns: dict[int, int] = defaultdict(int)
    for node in model:
        kind = classify(node.name)
        classes_ns[kind] += trace.cost_ns(node)
        classes_flops[kind] += node.flops
        if kind == "contraction":
            contraction_ns[node.module] += trace.cost_ns(node)
    optimizer_ns, optimizer_operators = _measure_updates(trace)
    return Anatomy(
        step_ms=step_ms,
        classes_ms={kind: spent / 1e6 for kind, spent in classes_ns.items()},
        classes_flops={kind: flops for kind, flops in classes_flops.items() if flops},
        num_operators=_count_launches(trace, model),
        flops=sum(classes_flops.values()),
        operators=_rank_operators(trace),
        modules=_rank_modules(trace, entries),
        attentions=find_attentions(trace, entries, MAX_MODULES),
        misalignments=find_misalignments(entries, contraction_ns, MAX_MODULES),
        padding_share=padding_share,
        denormal_share=denormal_share,
        optimizer_ms=optimizer_ns / 1e6,
        optimizer_operators=optimizer_operators,
    )


def _count(trace: OperatorTrace) -> None:
    """Counts FLOPs at the outermost operator that has a formula. The operators that it calls do the same work and are
    not counted again."""
    stack = list(trace.roots)
    while stack:
        node = stack.pop()
        if node.name in FORMULAS:
            node.flops = count_flops(node.name, node.shapes, node.values)
        else:
            stack.extend(node.children)


def _count_launches(trace: OperatorTrace, nodes: list[Node]) -> int:
    """Counts the kernels on a device or, on the CPU, the innermost operators that do work."""
    if trace.has_device:
        return sum(node.num_kernels for node in nodes)
    return sum(_is_launch(node) for node in nodes)


def _is_launch(node: Node) -> bool:
    if not is_operator(node.name) or is_free(node.name):
        return False
    return all(is_free(child.name) for child in node.children)


def _rank_operators(trace: OperatorTrace) -> list[Operator]:
    rows: dict[str, list[int]] = {}
    totals = _total_device_ns(trace)
    for node in trace.nodes:
        if node.is_range:
            continue
        row = rows.setdefault(node.name, [0] * 6)
        spent = (1, node.self_ns, node.end_ns - node.start_ns, node.device_ns, totals[id(node)], node.flops)
        for index, value in enumerate(spent):
            row[index] += value
    ranked = sorted(rows.items(), key=lambda item: -item[1][3 if trace.has_device else 1])[:MAX_OPERATORS]
    return [_make_operator(name, row) for name, row in ranked]


def _make_operator(name: str, row: list[int]) -> Operator:
    self_cpu, total_cpu, self_device, total_device = (spent / 1e6 for spent in row[1:5])
    return Operator(name, classify(name), row[0], self_cpu, total_cpu, self_device, total_device, flops=row[5])


def _total_device_ns(trace: OperatorTrace) -> dict[int, int]:
    totals: dict[int, int] = {}
    for node in reversed(trace.nodes):  # walk() yields children after their parents
        totals[id(node)] = node.device_ns + sum(totals[id(child)] for child in node.children)
    return totals


def _rank_modules(trace: OperatorTrace, entries: list[ModuleEntry]) -> list[ModuleShare]:
    forward_ns: dict[int, int] = defaultdict(int)
    backward_ns: dict[int, int] = defaultdict(int)
    forward_flops: dict[int, int] = defaultdict(int)
    backward_flops: dict[int, int] = defaultdict(int)
    classes_ns: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for node in trace.nodes:
        if node.module < 0 or node.is_optimizer:
            continue
        spent, flops = (backward_ns, backward_flops) if node.is_backward else (forward_ns, forward_flops)
        # On the host, a module's own Python code counts as well: the time of its range outside any operator.
        spent[node.module] += trace.cost_ns(node)
        flops[node.module] += node.flops
        if not node.is_range and not node.is_backward:
            classes_ns[node.module][classify(node.name)] += trace.cost_ns(node)
    seen = set(forward_ns) | set(backward_ns)
    ranked = sorted(seen, key=lambda module: -(forward_ns[module] + backward_ns[module]))[:MAX_MODULES]
    return [
        ModuleShare(
            path=entries[module].path,
            class_name=entries[module].class_name,
            forward_ms=forward_ns[module] / 1e6,
            flops=forward_flops[module],
            classes_ms={kind: spent / 1e6 for kind, spent in classes_ns[module].items()},
            backward_ms=backward_ns[module] / 1e6,
            backward_flops=backward_flops[module],
        )
        for module in ranked
    ]


def _measure_updates(trace: OperatorTrace) -> tuple[int, int]:
    """Returns the time and the number of operators (on a device: kernels) of optimizer steps. The forward and backward
    passes of a closure inside a step do not count."""
    passes = sorted(
        (node.start_ns, node.end_ns, node.name.startswith(MODULE))
        for node in trace.nodes
        if node.name.startswith((MODULE, BACKWARD))
    )
    spent_ns = num_operators = 0
    for update in trace.nodes:
        if not update.name.startswith(OPTIMIZER):
            continue
        spans = _closure_spans(passes, update)
        inner = [node for node in update.walk() if node.is_optimizer and not _is_within(node, spans)]
        num_operators += sum(node.num_kernels if trace.has_device else _is_launch(node) for node in inner)
        if trace.has_device:
            spent_ns += sum(node.device_ns for node in inner)
        else:
            spent_ns += update.end_ns - update.start_ns - sum(end - start for start, end in spans)
    return spent_ns, num_operators


def _closure_spans(passes: list[tuple[int, int, bool]], update: Node) -> list[tuple[int, int]]:
    """Returns one interval for each evaluation of the closure: from its first forward pass to the end of its last
    backward pass."""
    spans: list[tuple[int, int]] = []
    has_gone_back = True
    for start_ns, end_ns, is_forward in passes:
        if start_ns < update.start_ns or end_ns > update.end_ns:
            continue
        if is_forward and has_gone_back:
            spans.append((start_ns, end_ns))
        elif spans:
            spans[-1] = (spans[-1][0], max(spans[-1][1], end_ns))
        has_gone_back = not is_forward
    return spans


def _is_within(node: Node, spans: list[tuple[int, int]]) -> bool:
    return any(start <= node.start_ns < end for start, end in spans)


def find_misalignments(entries: list[ModuleEntry], contraction_ns: dict[int, int], limit: int) -> list[Misalignment]:
    """Returns the dimensions of linear layers and convolutions that only partly fill the last tile of a matrix unit.
    The layer with the largest share of the contraction time comes first. `contraction_ns` maps an index into the
    entries to the time of forward and backward together."""
    total_ns = sum(contraction_ns.values())
    vocabularies = {entry.module.num_embeddings for entry in entries if isinstance(entry.module, nn.Embedding)}
    found = []
    for index, entry in enumerate(entries):
        spent_ns = contraction_ns.get(index, 0)
        if not spent_ns:
            continue
        for dimension, size, tile in _list_dimensions(entry.module, vocabularies):
            if size > tile and size % tile:
                wanted = -(-size // tile) * tile
                share = spent_ns / total_ns
                found.append(Misalignment(entry.path, entry.class_name, dimension, size, wanted, share))
    return sorted(found, key=lambda misalignment: -misalignment.share)[:limit]


def _list_dimensions(module: nn.Module, vocabularies: set[int]) -> list[tuple[str, int, int]]:
    if isinstance(module, nn.Linear):
        is_head = module.out_features in vocabularies and module.out_features >= VOCABULARY_LEAST
        out_tile = VOCABULARY_TILE if is_head else TILE
        return [("in_features", module.in_features, TILE), ("out_features", module.out_features, out_tile)]
    # Grouped convolutions use other tiles.
    if isinstance(module, nn.modules.conv._ConvNd) and module.groups == 1:
        return [("in_channels", module.in_channels, TILE), ("out_channels", module.out_channels, TILE)]
    return []
