"""Memory that grows from step to step: how much, and which of the script's own variables keeps tensors alive.
Looks at the variables of the frames that are running; keeps hold of nothing."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from slipstream.records import Leak, Memory, Site
from slipstream.seams.place import is_user_code, make_site

_MIN_KEPT = 8
_MAX_LOOKED_AT = 20_000
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class MemoryGauge:
    """Resident memory at the end of a step, for a microsecond or two."""

    def __init__(self) -> None:
        self._statm = _open_statm()

    def read(self, step: int, time_ns: int) -> Memory:
        return Memory(step, time_ns, self._resident_bytes(), _device_bytes())

    def read_with_tensors(self, step: int, time_ns: int) -> Memory:
        """The same with live tensors counted: a walk over every object, for the end of a block."""
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
    """Tensors that hold a graph, and tensors."""
    torch: Any = sys.modules["torch"]
    tensors = [thing for thing in objects if type(thing) is torch.Tensor]
    return sum(tensor.grad_fn is not None for tensor in tensors), len(tensors)


def find_leaks(frame: FrameType | None, num_steps: int) -> list[Leak]:
    """Variables of the user's that hold more and more tensors. Only what grew about once a step counts."""
    leaks: dict[str, Leak] = {}
    wanted = max(_MIN_KEPT, num_steps // 4)
    for name, file, value in _user_variables(frame):
        count, num_bytes = _kept_in(value)
        if count < wanted:
            count, num_bytes = _chained(value), 0
        if count >= wanted and name not in leaks:
            leaks[name] = Leak(name, count, num_bytes, find_filling_line(file, name))
    return list(leaks.values())


def _kept_in(value: Any) -> tuple[int, int]:
    torch: Any = sys.modules["torch"]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, deque, set, tuple)):
        return 0, 0
    kept = [item for item in list(value)[:_MAX_LOOKED_AT] if isinstance(item, torch.Tensor) and not item.is_leaf]
    return len(kept), sum(tensor.numel() * tensor.element_size() for tensor in kept)


def _chained(value: Any) -> int:
    """How many additions hang on a tensor that is added up step by step with its graph (total += loss)."""
    torch: Any = sys.modules["torch"]
    node = value.grad_fn if isinstance(value, torch.Tensor) else None
    depth = 0
    while node is not None and node.name().startswith("AddBackward") and depth < _MAX_LOOKED_AT:
        depth += 1
        node = next((n for n, _ in node.next_functions if n is not None and n.name().startswith("AddBackward")), None)
    return depth


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
                    if name == "self" and hasattr(value, "__dict__"):
                        for key, inner in list(vars(value).items()):
                            yield f"self.{key}", file, inner
        frame = frame.f_back


def find_filling_line(file: str, name: str) -> Site | None:
    """The line that puts something into the variable."""
    try:
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    word = re.escape(name)
    filling = re.compile(
        rf"(?<![\w.]){word}\s*(\.(append|extend|add|appendleft|insert|update)\(|\[[^\]]*\]\s*=[^=]|\+=)"
    )
    for number, text in enumerate(lines, start=1):
        if filling.search(text):
            return make_site(file, number)
    return None
