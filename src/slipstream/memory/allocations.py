"""Reads the allocations that torch's profiler recorded, and finds the lifetime, the module and the line of each. The
tree of events is read. The allocator itself reports these events, so memory that a kernel allocates internally is
included. On CUDA the allocator's history is read as well, because the tree lacks releases there."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from slipstream.memory.allocator_history import HistoryEntry
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


def read_trace(roots: Iterable[Any], device: str, history: Sequence[HistoryEntry] | None = None) -> AllocationTrace:
    """Returns the allocations on a device. `history` is the allocator's own history. Without a history, only the
    releases that the profiler saw are known. These are all releases on the CPU, and the releases inside operators on
    other devices."""
    reader = _Reader(device)
    reader.read(roots)
    reader.boundaries.sort()
    backward_ns = [start_ns for start_ns, phase in reader.boundaries if phase == "backward"]
    blocks = _pair(reader) if history is None else _pair_by_history(reader, history)
    return AllocationTrace(list(blocks), reader.snaps, backward_ns)


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


# The profiler may report an allocation up to this much before or after the allocator's own time.
_SKEW_NS: Final = 50_000
_GRANULE: Final = 512  # bytes; the allocator rounds sizes up to a multiple of this


def _pair_by_history(reader: _Reader, history: Sequence[HistoryEntry]) -> Iterator[Allocation]:
    """Takes all allocations and releases from the allocator's history, in the history's order. The profiler's events
    tell in which operator, module and line an allocation was made. The times of the history are shifted to the
    profiler's clock, and never decrease."""
    starts = [start_ns for start_ns, _ in reader.boundaries]
    seen = _match_history(reader, history)
    shifts = sorted(change[0] - history[at].time_ns for at, change in seen.items())
    shift_ns = shifts[len(shifts) // 2] if shifts else 0
    alive: dict[int, Allocation] = {}
    now_ns = 0
    for at, entry in enumerate(history):
        if entry.is_release:
            now_ns = max(now_ns, entry.time_ns + shift_ns)
            if (released := alive.pop(entry.address, None)) is not None:
                released.end_ns = max(now_ns, released.start_ns + 1)
            continue
        known = seen.get(at)
        if known is not None:
            now_ns = max(now_ns, known[0])
            block = _make_block(now_ns, known[1], known[2], reader, starts)
        else:
            now_ns = max(now_ns, entry.time_ns + shift_ns)
            num_bytes = -(-entry.num_bytes // _GRANULE) * _GRANULE
            unseen = _Unseen(entry.address, num_bytes)
            block = _make_block(now_ns, unseen, _Place(), reader, starts)
        alive[block.address] = block
        yield block


class _Unseen(msgspec.Struct, frozen=True):
    """An allocation that is only in the allocator's history, with the fields of the profiler's events."""

    ptr: int
    alloc_size: int
    total_allocated: int = 0
    total_reserved: int = 0


def _match_history(reader: _Reader, history: Sequence[HistoryEntry]) -> dict[int, tuple[int, Any, _Place]]:
    """Maps an index of the history to the profiler's event of the same allocation. An event between two allocations at
    the same address belongs to the first of the two."""
    times: dict[int, list[int]] = defaultdict(list)
    indices: dict[int, list[int]] = defaultdict(list)
    for at, entry in enumerate(history):
        if not entry.is_release:
            times[entry.address].append(entry.time_ns - _SKEW_NS)
            indices[entry.address].append(at)
    seen: dict[int, tuple[int, Any, _Place]] = {}
    for change in reader.changes:
        time_ns, facts, _ = change
        position = bisect.bisect_right(times.get(facts.ptr, []), time_ns) - 1
        if facts.alloc_size > 0 and position >= 0:
            seen.setdefault(indices[facts.ptr][position], change)
    return seen


def _make_block(time_ns: int, change: Any, place: _Place, reader: _Reader, starts: list[int]) -> Allocation:
    module, line = place.module, place.line
    if place.phase == "backward":
        _, made_in, made_at = reader.makers.get(place.sequence, (0, -1, -1))
        module, line = (module, line) if module >= 0 else (made_in, made_at if made_at >= 0 else line)
    phase = place.phase
    if not phase:  # not in the loader, backward pass or update: the forward pass, if a backward pass follows
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
