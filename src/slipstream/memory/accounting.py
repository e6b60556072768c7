"""Computes a footprint from allocations and names: the kind of every byte, the time of the peak, and the module and
line that own the bytes."""

from __future__ import annotations

import bisect
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from slipstream.memory.allocations import Allocation, AllocationTrace, Name
from slipstream.records import KINDS, Footprint, Growth, LineBytes, ModuleBytes, Moment, Site

MAX_MODULES = 200
MAX_LINES = 50
MAX_MOMENTS = 160
_OLD = -math.inf
_STEP_OWNS = ("activations", "temporary", "other")  # kinds that a step creates and should free


class Scene(msgspec.Struct):
    """Everything that was observed."""

    trace: AllocationTrace
    snaps: list[list[Name]]
    first_snap: int  # the snap at the start of the observed step, which has all live storages
    end_ns: int
    sites: list[Site]
    modules: list[tuple[str, str]]  # path, class
    # Maps a module to the snap of its last return and to the addresses that it returned.
    outputs: dict[int, tuple[int, list[int]]] = {}
    has_true_count: bool = False  # whether the allocator also counts memory that the trace did not see


class Owned(msgspec.Struct, gc=False):
    """An allocation with its kind and owner."""

    block: Allocation
    kind: str


def account(scene: Scene, device: str, num_samples: int = 0, batch_size: int = 0, room_bytes: int = 0) -> Footprint:
    """Computes the footprint. `room_bytes` is the free memory of the device when the step ends."""
    start_ns = scene.trace.snaps[scene.first_snap]
    owned = list(_classify(scene, start_ns))
    unexplained = _unexplained(owned, start_ns) if scene.has_true_count else 0
    if unexplained:
        owned.append(Owned(Allocation(0, unexplained, _OLD, phase="other"), "other"))
    history = History(owned, start_ns, scene.end_ns)
    peak = history.peak
    alive = [one for one in owned if one.block.start_ns <= history.peak_ns < one.block.end_ns]
    return Footprint(
        device=device,
        num_samples=num_samples,
        batch_size=batch_size,
        peak_bytes=sum(peak.values()),
        peak_ms=(history.peak_ns - start_ns) / 1e6,
        peak_phase=history.peak_phase,
        peak_operator=history.peak_block.operator if history.peak_block else "",
        peak_site=_site(scene.sites, history.peak_block.line) if history.peak_block else None,
        step_ms=(scene.end_ns - start_ns) / 1e6,
        kinds=peak,
        phases=history.phases,
        moments=history.moments,
        modules=_by_module(alive, scene),
        lines=_by_line(alive, scene),
        growth=_growth(owned, scene, start_ns),
        capacity_bytes=history.total_bytes + room_bytes if room_bytes else 0,
        reserved_bytes=_reserved(owned, device),
        unexplained_bytes=unexplained,
    )


def _reserved(owned: list[Owned], device: str) -> int:
    """Returns the reserved bytes. On the CPU it returns 0, because the CPU's allocator reserves nothing. The number
    that some of torch's allocators report there means something else."""
    if device.startswith("cpu"):
        return 0
    return max((one.block.reserved_bytes for one in owned), default=0)


# --- kinds of allocations -------------------------------------------------------------------------------------------


def _classify(scene: Scene, start_ns: int) -> Iterator[Owned]:
    births: dict[int, list[Allocation]] = defaultdict(list)
    for block in scene.trace.blocks:
        births[block.address].append(block)
    named, strangers = _match(scene, births)
    for block in scene.trace.blocks:
        kind, module = named.get(id(block), ("", -1))
        block.module = module if module >= 0 else block.module
        yield Owned(block, kind or _kind_of(block, scene.trace.backward_ns, start_ns))
    yield from strangers


def _match(scene: Scene, births: dict[int, list[Allocation]]) -> tuple[dict[int, tuple[str, int]], list[Owned]]:
    """Returns the names of allocations, and the storages that no allocation of the trace explains. These storages are
    older than the trace, or come from other allocators."""
    named: dict[int, tuple[str, int]] = {}
    strangers: dict[int, Owned] = {}
    for number, names in enumerate(scene.snaps):
        time_ns = scene.trace.snaps.get(number)
        if time_ns is None:
            continue
        for name in names:
            block = _alive_at(births.get(name.address, ()), time_ns)
            if block is not None:
                if name.kind != "other":
                    named.setdefault(id(block), (name.kind, name.module))
            elif name.address not in strangers and _is_to_be_counted(number, name, scene):
                since = _OLD if number <= scene.first_snap else float(time_ns)
                strange = Allocation(name.address, name.num_bytes, since, phase="other", module=name.module)
                strangers[name.address] = Owned(strange, name.kind)
    return named, list(strangers.values())


def _is_to_be_counted(number: int, name: Name, scene: Scene) -> bool:
    """Whether a storage outside the trace counts. It counts if it was alive when the step began, or if it is an input
    of the step, such as a batch in shared memory."""
    return number == scene.first_snap or (number > scene.first_snap and name.kind == "inputs")


def _alive_at(blocks: Iterable[Allocation], time_ns: int) -> Allocation | None:
    return next((block for block in blocks if block.start_ns <= time_ns < block.end_ns), None)


def _kind_of(block: Allocation, backward_ns: list[int], start_ns: int) -> str:
    if block.phase == "forward":
        following = bisect.bisect_right(backward_ns, block.start_ns)
        if following < len(backward_ns) and block.end_ns > backward_ns[following]:
            return "activations"  # the block is alive during a backward pass
    if block.start_ns < start_ns <= block.end_ns and block.phase != "backward":
        return "other"  # the previous step left the block behind
    return "temporary" if block.end_ns < math.inf else "other"


def _unexplained(owned: list[Owned], start_ns: int) -> int:
    """Returns the bytes that the allocator counts at the first allocation of the step, minus the known bytes."""
    births = [one.block for one in owned if one.block.start_ns >= start_ns and one.block.total_bytes]
    if not births:
        return 0
    first = min(births, key=lambda block: block.start_ns)
    known = sum(o.block.num_bytes for o in owned if o.block.start_ns <= first.start_ns < o.block.end_ns)
    return max(0, first.total_bytes - known)


# --- live bytes over time -------------------------------------------------------------------------------------------


class History:
    """Live bytes by kind, change by change, from the start of the step to its end."""

    def __init__(self, owned: list[Owned], start_ns: int, end_ns: int) -> None:
        self._start_ns, self._end_ns = start_ns, end_ns
        self._now: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self.total_bytes = self._most = 0
        self._phase = "other"
        self._slots: dict[int, tuple[int, Moment]] = {}
        self.peak: dict[str, int] = {}
        self.peak_ns: float = start_ns
        self.peak_phase = "other"
        self.peak_block: Allocation | None = None
        self.phases: dict[str, dict[str, int]] = {}
        for one in owned:
            if one.block.start_ns < start_ns <= one.block.end_ns:
                self._add(one.kind, one.block.num_bytes)
        self._look(start_ns, None)
        for time_ns, is_birth, one in sorted(_changes(owned, start_ns, end_ns), key=lambda change: change[:2]):
            self._add(one.kind, one.block.num_bytes if is_birth else -one.block.num_bytes)
            if is_birth:
                self._phase = one.block.phase
                self._look(time_ns, one.block)

    @property
    def moments(self) -> list[Moment]:
        return [self._slots[slot][1] for slot in sorted(self._slots)]

    def _add(self, kind: str, num_bytes: int) -> None:
        self._now[kind] += num_bytes
        self.total_bytes += num_bytes

    def _look(self, time_ns: float, block: Allocation | None) -> None:
        if self.total_bytes > self._most:
            self._most = self.total_bytes
            self.peak, self.peak_ns = dict(self._now), time_ns
            self.peak_phase, self.peak_block = self._phase, block
        if self.total_bytes > sum(self.phases.get(self._phase, {}).values()):
            self.phases[self._phase] = dict(self._now)
        slot = int((time_ns - self._start_ns) / max(1, self._end_ns - self._start_ns) * (MAX_MOMENTS - 1))
        if slot not in self._slots or self.total_bytes > self._slots[slot][0]:
            at_ms = (time_ns - self._start_ns) / 1e6
            self._slots[slot] = (self.total_bytes, Moment(at_ms, self._phase, [self._now[kind] for kind in KINDS]))


def _changes(owned: list[Owned], start_ns: int, end_ns: int) -> Iterator[tuple[float, bool, Owned]]:
    for one in owned:
        if start_ns <= one.block.start_ns <= end_ns:
            yield one.block.start_ns, True, one
        if start_ns <= one.block.end_ns <= end_ns:
            yield one.block.end_ns, False, one


# --- owners -----------------------------------------------------------------------------------------------------------


def _by_module(alive: list[Owned], scene: Scene) -> list[ModuleBytes]:
    sums: dict[int, Counter[str]] = defaultdict(Counter)
    for one in alive:
        if one.block.module >= 0:
            sums[one.block.module][one.kind] += one.block.num_bytes
    ranked = sorted(sums, key=lambda module: -sums[module].total())[:MAX_MODULES]
    inside = {scene.modules[module][0] for module in ranked}
    # Modules without bytes of their own, which contain modules with bytes.
    holders = {path[:at] for path in inside for at, letter in enumerate(path) if letter == "."} - inside
    ranked += [module for module, (path, _) in enumerate(scene.modules) if path in holders]
    saved = {one.block.address: one.block for one in alive if one.kind == "activations"}
    return [
        ModuleBytes(*scene.modules[module], dict(sums[module]), _output_bytes(scene, module, saved))
        for module in ranked
    ]


def _output_bytes(scene: Scene, module: int, saved: dict[int, Allocation]) -> int:
    """Returns how many bytes of a module's last output are saved. A later allocation may have the same address, and
    does not count."""
    number, addresses = scene.outputs.get(module, (-1, []))
    time_ns = scene.trace.snaps.get(number, 0)
    blocks = [saved[address] for address in set(addresses) if address in saved]
    return sum(block.num_bytes for block in blocks if block.start_ns <= time_ns)


def _by_line(alive: list[Owned], scene: Scene) -> list[LineBytes]:
    sums: dict[int, Counter[str]] = defaultdict(Counter)
    for one in alive:
        if one.block.line >= 0 and one.kind in (*_STEP_OWNS, "inputs"):
            sums[one.block.line][one.kind] += one.block.num_bytes
    ranked = sorted(sums, key=lambda line: -sums[line].total())[:MAX_LINES]
    return [LineBytes(scene.sites[line], dict(sums[line])) for line in ranked]


def _growth(owned: list[Owned], scene: Scene, start_ns: int) -> Growth | None:
    """Returns what the allocations of the previous step still hold at the end of this step. They were alive for a whole
    step, so they are taken as memory that is never freed."""
    kept = [
        one.block
        for one in owned
        if _OLD < one.block.start_ns < start_ns and one.block.end_ns > scene.end_ns and one.kind in _STEP_OWNS
    ]
    if not kept:
        return None
    lines: Counter[int] = Counter()
    for block in kept:
        lines[block.line] += block.num_bytes
    return Growth(sum(block.num_bytes for block in kept), len(kept), _site(scene.sites, lines.most_common(1)[0][0]))


def _site(sites: list[Site], line: int) -> Site | None:
    return sites[line] if 0 <= line < len(sites) else None
