"""Builds trees of nodes from the profiler's flat events, one tree for each top-level operator or range. The trees show
what ran inside what, for which module, and for how long. The raw events of torch are read, because its Python events
take about a hundred times longer to build."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

MODULE = "slipstream::module::"  # range that our hooks open around a module's forward; the module's index follows
OWN = "slipstream::own"  # work of this package inside the step: excluded from the results
INPUT = "enumerate(DataLoader)"
OPTIMIZER = "Optimizer.step#"
BACKWARD = "autograd::engine::evaluate_function"


class Node:
    """One operator, autograd node or named range."""

    __slots__ = (
        *("name", "start_ns", "end_ns", "thread", "sequence", "forward_thread", "device_ns", "num_kernels"),
        *("children", "self_ns", "event", "module", "is_backward", "is_optimizer", "is_range", "flops"),
    )

    def __init__(self, name: str, start_ns: int, end_ns: int, thread: int = 1, event: Any = None) -> None:
        self.name = name
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.thread = thread
        self.event = event
        self.sequence = -1
        self.forward_thread = 0
        self.device_ns = 0  # time of the kernels that this node itself launched
        self.num_kernels = 0
        self.children: list[Node] = []
        self.self_ns = 0
        self.module = -1  # index of the module to whose forward pass the node, or its forward node, belongs
        self.is_backward = False
        self.is_optimizer = False
        # A named section of Python code, not an operator.
        self.is_range = name.startswith((MODULE, "Optimizer.", "ProfilerStep"))
        self.flops = 0

    @property
    def shapes(self) -> list[list[int]]:
        return self.event.shapes() if self.event is not None else []

    @property
    def values(self) -> list[Any]:
        """The arguments, with None in place of tensors."""
        return self.event.concrete_inputs() if self.event is not None else []

    def walk(self) -> Iterator[Node]:
        # This is a loop and not a recursion, because a graph can be deeper than Python's stack.
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))


class OperatorTrace:
    """Everything that ran in the observed step, without the work of the loader and of this package."""

    def __init__(self, roots: list[Node], has_device: bool) -> None:
        self.roots = roots
        self.has_device = has_device
        self.nodes = [node for root in roots for node in root.walk()]

    def cost_ns(self, node: Node) -> int:
        """Returns the node's device time if the step launched kernels, else its host time. Both exclude the children's
        time."""
        return node.device_ns if self.has_device else node.self_ns


def build_trace(events: Iterable[Any]) -> OperatorTrace:
    nodes, kernels = _sort_events(events)
    for ident, durations in kernels.items():
        if (node := nodes.get(ident)) is not None:
            node.device_ns = sum(durations)
            node.num_kernels = len(durations)
    return assemble_trace(nodes.values(), has_device=bool(kernels))


def assemble_trace(nodes: Iterable[Node], has_device: bool) -> OperatorTrace:
    roots = _nest(sorted(nodes, key=lambda node: (node.thread, node.start_ns, -node.end_ns)))
    roots = [kept for root in roots for kept in _keep(root)]
    _attribute(roots)
    return OperatorTrace(roots, has_device)


def _sort_events(events: Iterable[Any]) -> tuple[dict[int, Node], dict[int, list[int]]]:
    """Returns a node for each host event, by the event's id, and the durations of the kernels that each event
    launched."""
    nodes: dict[int, Node] = {}
    kernels: dict[int, list[int]] = {}
    for event in events:
        launcher = event.linked_correlation_id()
        if event.device_type().name != "CPU":
            # Ranges appear on the device's timeline too, but only kernels and copies are work.
            if launcher > 0 and not _ask(event, "is_user_annotation"):
                kernels.setdefault(launcher, []).append(event.duration_ns())
            continue
        if launcher > 0 or event.is_async() or _ask(event, "is_hidden_event"):
            continue
        start_ns = event.start_ns()
        node = Node(event.name(), start_ns, start_ns + event.duration_ns(), event.start_thread_id(), event)
        node.is_range = node.is_range or ("::" not in node.name and _ask(event, "is_user_annotation"))
        node.sequence = event.sequence_nr()
        node.forward_thread = event.fwd_thread_id()
        nodes[event.correlation_id()] = node
    return nodes, kernels


def _ask(event: Any, question: str) -> bool:
    """Calls a method of the event that the oldest supported version of torch may not have."""
    ask = getattr(event, question, None)
    return bool(ask()) if ask is not None else False


def _nest(nodes: list[Node]) -> list[Node]:
    roots: list[Node] = []
    stack: list[Node] = []
    for node in nodes:
        while stack and (stack[-1].thread != node.thread or stack[-1].end_ns < node.end_ns):
            stack.pop()
        (stack[-1].children if stack else roots).append(node)
        stack.append(node)
    for root in roots:
        for node in root.walk():
            inside_ns = sum(child.end_ns - child.start_ns for child in node.children)
            node.self_ns = max(0, node.end_ns - node.start_ns - inside_ns)
    return roots


def _keep(root: Node) -> list[Node]:
    """Returns the tree without the tensor work of the loader and of this package. Returns an empty list if the whole
    tree is work of the loader or of this package."""
    if root.name.startswith((INPUT, OWN)):
        return []
    for node in root.walk():
        # walk() reads the children after this line, so it never enters the subtrees that are removed here.
        node.children = [child for child in node.children if not child.name.startswith((INPUT, OWN))]
    return [root]


def _attribute(roots: list[Node]) -> None:
    """Sets every node's module and pass. The backward node of an operator has the operator's sequence number."""
    makers: dict[tuple[int, int], tuple[int, int]] = {}
    backward: list[Node] = []
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node.name.startswith(MODULE):
            node.module = int(node.name[len(MODULE) :])
        elif node.name.startswith(OPTIMIZER):
            node.is_optimizer = True
        elif node.name.startswith(BACKWARD):
            node.is_backward = True
            node.is_optimizer = False  # Lightning runs the whole step inside optimizer.step(closure)
            if node.module < 0:
                backward.append(node)
        if node.sequence >= 0 and not node.is_backward:
            # Operators without an autograd node have the sequence number of the next operator that has one. So of all
            # operators with this number, the latest one made the autograd node.
            key = (node.thread, node.sequence)
            if key not in makers or makers[key][0] <= node.start_ns:
                makers[key] = (node.start_ns, node.module)
        for child in node.children:
            child.module = node.module
            child.is_backward = node.is_backward
            child.is_optimizer = node.is_optimizer and not child.name.startswith(MODULE)
            stack.append(child)
    for node in backward:
        _, module = makers.get((node.forward_thread, node.sequence), (0, -1))
        for inner in node.walk():
            if inner.module < 0:
                inner.module = module
