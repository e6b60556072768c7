"""Reads the allocations that torch's profiler recorded, and finds the lifetime, the module and the line of each. Only
the tree of events is read. The allocator itself reports these events, so memory that a kernel allocates internally is
included."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from slipstream.observe.anatomy.trace import BACKWARD, INPUT, MODULE, OPTIMIZER, OWN

LINE: Final = "slipstream::line::"  # a range around a call into torch; its name ends with the index of the user's line
SNAP: Final = "slipstream::snap::"  # a moment at which addresses got names; its name ends with the number of the snap
_ALLOCATION: Final = "[memory]"


class Allocation(msgspec.Struct, gc=False):
    """One allocation, from its creation to its release."""

    address: int
    num_bytes: int
    start_ns: float
    end_ns: float = math.inf
    phase: str = ""  # input, forward, backward, optimizer, other
    operator: str = ""
    module: int = -1
    line: int = -1
    total_bytes: int = 0  # the allocator's own total after this allocation
    reserved_bytes: int = 0


class Name(msgspec.Struct, frozen=True, gc=False):
    """The name of the storage at an address, at one moment."""

    address: int
    num_bytes: int
    kind: str
    module: int = -1


class AllocationTrace(msgspec.Struct):
    blocks: list[Allocation]
    snaps: dict[int, int]  # maps the number of a snap to its time
    backward_ns: list[int]  # the times at which nodes of the graph were evaluated, in order


class _Place(msgspec.Struct, frozen=True, gc=False):
    """The context of an event."""

    phase: str = ""
    operator: str = ""
    module: int = -1
    line: int = -1
    sequence: int = -1


class _Reader:
    def __init__(self, device: str) -> None:
        self._device = device
        self.snaps: dict[int, int] = {}
        # Maps a node of the graph to the time, module and line of the operator that created it.
        self.makers: dict[int, tuple[int, int, int]] = {}
        self.boundaries: list[tuple[int, str]] = []
        self.changes: list[tuple[int, Any, _Place]] = []

    def read(self, roots: Iterable[Any]) -> None:
        stack: list[tuple[Any, _Place]] = [(root, _Place()) for root in roots]
        while stack:
            event, place = stack.pop()
            name: str = event.name
            if name == _ALLOCATION:
                if _is_on(event.extra_fields.device, self._device):
                    self.changes.append((event.start_time_ns, event.extra_fields, place))
                continue
            if name.startswith(OWN):
                continue
            inner = self._enter(event, name, place)
            stack.extend((child, inner) for child in event.children)

    def _enter(self, event: Any, name: str, place: _Place) -> _Place:
        start_ns: int = event.start_time_ns
        replace = msgspec.structs.replace
        if name.startswith("slipstream::"):
            if name.startswith(MODULE):
                phase = "" if place.phase == "optimizer" else place.phase  # an optimizer's closure runs the model
                return replace(place, module=int(name[len(MODULE) :]), phase=phase, operator="")
            if name.startswith(LINE):
                return replace(place, line=int(name[len(LINE) :]), operator="")
            if name.startswith(SNAP):
                self.snaps[int(name[len(SNAP) :])] = start_ns
            return place
        for prefix, phase in ((INPUT, "input"), (OPTIMIZER, "optimizer"), (BACKWARD, "backward")):
            if name.startswith(prefix):
                self.boundaries.append((start_ns, phase))
                sequence = event.extra_fields.sequence_number if phase == "backward" else -1
                return replace(place, phase=phase, sequence=sequence, operator="")
        if place.phase != "backward":
            self._note_maker(event, start_ns, place)
        return place if place.operator else replace(place, operator=name)

    def _note_maker(self, event: Any, start_ns: int, place: _Place) -> None:
        """Stores which operator created a node of the graph. An operator that creates no node has the sequence number
        of the next operator that creates one. So the last operator with a number created the node."""
        sequence = getattr(event.extra_fields, "sequence_number", -1)
        if sequence >= 0 and (sequence not in self.makers or self.makers[sequence][0] <= start_ns):
            self.makers[sequence] = (start_ns, place.module, place.line)


def read_trace(roots: Iterable[Any], device: str) -> AllocationTrace:
    reader = _Reader(device)
    reader.read(roots)
    reader.boundaries.sort()
    backward_ns = [start_ns for start_ns, phase in reader.boundaries if phase == "backward"]
    return AllocationTrace(list(_pair(reader)), reader.snaps, backward_ns)


def _pair(reader: _Reader) -> Iterator[Allocation]:
    """Pairs allocations with releases. A release without an allocation belongs to memory older than the trace."""
    alive: dict[int, Allocation] = {}
    starts = [start_ns for start_ns, _ in reader.boundaries]
    for time_ns, change, place in sorted(reader.changes, key=lambda each: each[0]):
        if change.alloc_size > 0:
            block = _make_block(time_ns, change, place, reader, starts)
            alive[block.address] = block
            yield block
        elif (block_or_none := alive.pop(change.ptr, None)) is not None:
            block_or_none.end_ns = time_ns


def _make_block(time_ns: int, change: Any, place: _Place, reader: _Reader, starts: list[int]) -> Allocation:
    module, line = place.module, place.line
    if place.phase == "backward":
        _, made_in, made_at = reader.makers.get(place.sequence, (0, -1, -1))
        module, line = (module, line) if module >= 0 else (made_in, made_at if made_at >= 0 else line)
    phase = place.phase
    if not phase:  # outside of loader, backward pass and update it is the forward pass, if a backward pass follows
        following = bisect.bisect_right(starts, time_ns)
        is_forward = following < len(starts) and reader.boundaries[following][1] == "backward"
        phase = "forward" if is_forward or module >= 0 else "other"
    return Allocation(
        address=change.ptr,
        num_bytes=change.alloc_size,
        start_ns=time_ns,
        phase=phase,
        operator=place.operator,
        module=module,
        line=line,
        total_bytes=max(0, change.total_allocated),
        reserved_bytes=max(0, change.total_reserved),
    )


def _is_on(device: Any, wanted: str) -> bool:
    return str(device) == wanted or str(device) == wanted.partition(":")[0]
