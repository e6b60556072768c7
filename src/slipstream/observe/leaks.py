"""Finds memory that grows from step to step: how much it grows, and which of the script's own variables keep tensors
alive. Reads the variables of the running frames and keeps no references to them."""

from __future__ import annotations

import gc
import itertools
import os
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from slipstream.records import Leak, Memory, Site
from slipstream.seams.user_code import is_user_code, make_site

_MIN_KEPT = 8
_LEAST_PACE = 0.25  # tensors per step; slower growth is assumed to be intended
_MAX_INSPECTED = 20_000
_MARK = "slipstream"  # key in the metadata of a graph node; the metadata is freed together with the node
_DEPTH = 3  # maximum nesting of containers, such as a list of records of lists
_NUMBERS = re.compile(r"\.(item|tolist)\(\)|\bfloat\(")
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
NUM_LOOKS = 6  # maximum number of counts of live tensors after a step that left tensors behind
_EPOCHS = 1.25  # after this many epochs a cache of every batch is full
_MOST_STEPS = 400  # maximum number of steps over which tensors are counted
_FEWEST_STEPS = 48


class MemoryGauge:
    """Reads the resident memory at the end of a step. A reading takes one or two microseconds."""

    def __init__(self) -> None:
        self._statm = _open_statm()

    def read(self, step: int, time_ns: int) -> Memory:
        return Memory(step, time_ns, self._resident_bytes(), _device_bytes())

    def read_with_tensors(self, step: int, time_ns: int) -> Memory:
        """Like `read`, but also counts live tensors. It iterates over every object, so use it only at the end of a
        block."""
        graphs, tensors = count_tensors(gc.get_objects())
        return Memory(step, time_ns, self._resident_bytes(), _device_bytes(), graphs, tensors)

    def _resident_bytes(self) -> int:
        if self._statm is not None:
            return int(os.pread(self._statm, 128, 0).split()[1]) * _PAGE
        import psutil

        return int(psutil.Process().memory_info().rss)

    def close(self) -> None:
        if self._statm is not None:
            os.close(self._statm)
            self._statm = None


def _open_statm() -> int | None:
    try:
        return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # not Linux
        return None


def _device_bytes() -> int:
    torch: Any = sys.modules["torch"]
    return int(torch.cuda.memory_allocated()) if torch.cuda.is_initialized() else 0


def count_tensors(objects: Iterable[Any]) -> tuple[int, int]:
    """Returns the number of tensors that hold a graph, and the number of all tensors."""
    torch: Any = sys.modules["torch"]
    tensors = [thing for thing in objects if type(thing) is torch.Tensor]
    return sum(tensor.grad_fn is not None for tensor in tensors), len(tensors)


def find_leaks(frame: FrameType | None, num_steps: int, before: LiveTensors | None = None) -> list[Leak]:
    """Returns the user's variables that hold more and more tensors. A container of tensors with a graph, or a running
    sum, counts if it has at least one tensor or term for every four steps. If an earlier snapshot `before` is given, it
    must also have grown since then, because every step may rebuild a list of results or a sum of many terms. A
    container of tensors without a graph counts only if it has grown since `before`, because it may hold data or be a
    filled cache."""
    leaks: dict[str, Leak] = {}
    wanted = max(_MIN_KEPT, num_steps // 4)
    for name, file, value in _user_variables(frame):
        kept = _kept_in(value)
        with_graph = [tensor for tensor in kept if not tensor.is_leaf]
        num_added = sum(1 for _ in _additions(value))
        if name in leaks:
            continue
        key = _fullest_key(value)
        if len(with_graph) >= wanted and (before is None or before.is_outgrown(name, len(kept), num_steps)):
            leaks[name] = Leak(name, len(with_graph), _size(with_graph), find_filling_line(file, name, key))
        elif num_added >= wanted and (before is None or before.is_continued(value)):
            leaks[name] = Leak(name, num_added, 0, find_filling_line(file, name), is_sum=True)
        elif before is not None and before.has_grown(name, len(kept), num_steps):
            site = find_filling_line(file, name, key)
            leaks[name] = Leak(name, len(kept), _size(kept), site, has_graph=False)
    return list(leaks.values())


class LiveTensors:
    """A snapshot of how many tensors each of the user's variables holds. For running sums the snapshot marks a node of
    the graph. If the mark is later found below newer additions, the same sum has grown. The mark needs no reference to
    the tensor."""

    def __init__(self, frame: FrameType | None, num_steps: int) -> None:
        self.num_steps = num_steps
        self._counts: dict[str, int] = {}
        for name, _, value in _user_variables(frame):
            self._counts.setdefault(name, len(_kept_in(value)))
            for node in itertools.islice(_additions(value), 1):
                node.metadata[_MARK] = num_steps

    def is_outgrown(self, name: str, count: int, num_steps: int) -> bool:
        return count - self._counts.get(name, 0) >= max(1, _LEAST_PACE * (num_steps - self.num_steps))

    def is_continued(self, value: Any) -> bool:
        below = itertools.islice(_additions(value), 1, None)
        return any(node.metadata.get(_MARK) == self.num_steps for node in below)

    def has_grown(self, name: str, count: int, num_steps: int) -> bool:
        passed = num_steps - self.num_steps
        return passed >= _MIN_KEPT and count - self._counts.get(name, 0) >= _LEAST_PACE * passed


_CONTAINERS: tuple[Any, ...] = (dict, list, deque, set, tuple)


def _kept_in(value: Any) -> list[Any]:
    """Returns the tensors in a container and in the containers inside it. Containers with a size limit are left out.
    Examples: a record for every step (history.append({"loss": loss})), a list for every name
    (history["loss"].append(loss))."""
    torch: Any = sys.modules["torch"]
    items = itertools.islice(_items(value, _DEPTH), _MAX_INSPECTED)
    return [item for item in items if isinstance(item, torch.Tensor)]


def _fullest_key(value: Any) -> str:
    """Returns the key of a dictionary of lists whose list holds the most tensors, and "" for any other value."""
    parts = dict.items(value) if isinstance(value, dict) else ()
    counts = {key: len(_kept_in(part)) for key, part in parts}
    fullest = max(counts, key=lambda key: counts[key], default="")
    return fullest if isinstance(fullest, str) and counts.get(fullest) else ""


def _items(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, deque) and value.maxlen is not None:
        return
    base = next((kind for kind in _CONTAINERS if isinstance(value, kind)), None)
    if base is None:
        return
    # A subclass's own methods may do anything. For example, transformers' mappings import every model when they are
    # read.
    for item in dict.values(value) if base is dict else base.__iter__(value):
        yield item
        if depth > 1:
            yield from _items(item, depth - 1)


def _size(tensors: list[Any]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _additions(value: Any) -> Iterator[Any]:
    """Yields the addition nodes in the graph of a running sum (total += loss), the latest first."""
    torch: Any = sys.modules["torch"]
    node = value.grad_fn if isinstance(value, torch.Tensor) else None
    for _ in range(_MAX_INSPECTED):
        if node is None or not node.name().startswith("AddBackward"):
            return
        yield node
        node = next((n for n, _ in node.next_functions if n is not None and n.name().startswith("AddBackward")), None)


def _user_variables(frame: FrameType | None) -> Iterator[tuple[str, str, Any]]:
    seen: set[int] = set()
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_code(file):
            for variables in (frame.f_locals, frame.f_globals):
                for name, value in list(variables.items()):
                    if id(value) in seen or name.startswith("__"):
                        continue
                    seen.add(id(value))
                    yield name, file, value
                    if name == "self" or is_user_class(type(value)):
                        for key, inner in list(getattr(value, "__dict__", {}).items()):
                            yield f"{name}.{key}", file, inner
        frame = frame.f_back


def is_user_class(kind: type) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ == "__main__" or (file is not None and is_user_code(file))


def find_filling_line(file: str, name: str, key: str = "") -> Site | None:
    """Returns the line that adds to the variable, or None. Lines that add to `key` are preferred. Of several lines the
    first one that does not add a plain number is returned."""
    try:
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    # For example, the attribute log.losses is called self.losses in the methods of its class.
    names = {name, f"self.{name.rpartition('.')[2]}"} if "." in name else {name}
    word = f"(?:{'|'.join(map(re.escape, sorted(names)))})"
    filling = re.compile(
        rf"(?<![\w.]){word}\s*((\[[^\]]*\]\s*)?\.(append|extend|add|appendleft|insert|update)\("
        rf"|\[[^\]]*\]\s*\+?=[^=]|\+=)"
    )
    texts = {number: text.partition("#")[0] for number, text in enumerate(lines, start=1)}
    found = [number for number, text in texts.items() if filling.search(text)]
    of_key = [number for number in found if key and re.search(rf"\[\s*['\"]{re.escape(key)}['\"]\s*\]", texts[number])]
    of_tensors = [number for number in of_key or found if not _NUMBERS.search(texts[number])]
    return make_site(file, (of_tensors or of_key or found)[0]) if found else None


class LeakFollowUp:
    """Follows up a step that left tensors behind. Counts live tensors at intervals, until their number stops growing or
    all counts are made. A cache fills up and stops growing; a leak does not."""

    def __init__(self, num_batches: int | None) -> None:
        """`num_batches`: batches per epoch of the loader, if it has an end."""
        wanted = min(_MOST_STEPS, max(_FEWEST_STEPS, int(_EPOCHS * (num_batches or 0))))
        self.every = -(-wanted // (NUM_LOOKS - 1))  # steps between two counts
        self._counts: list[int] = []

    def look(self, step: int, time_ns: int) -> Memory:
        # Tensors in reference cycles are not leaked. A collection may delay this run, because the results of the run
        # are discarded.
        gc.collect()
        gauge = MemoryGauge()
        try:
            seen = gauge.read_with_tensors(step, time_ns)
        finally:
            gauge.close()
        self._counts.append(seen.num_tensors)
        return seen

    @property
    def is_over(self) -> bool:
        """Whether counting is finished: after a fixed number of counts, or earlier if two in a row found no growth."""
        return len(self._counts) >= NUM_LOOKS or (len(self._counts) >= 3 and max(self._counts[-2:]) <= self._counts[-3])
