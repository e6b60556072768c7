"""The computation of a footprint from synthetic allocations."""

from __future__ import annotations

import math

from slipstream.memory.accounting import Scene, account
from slipstream.memory.allocations import Allocation, AllocationTrace, Name
from slipstream.records import Site

SITES = [Site("/train.py", 3, "hidden = up(x)"), Site("/train.py", 4, "loss = f(hidden)")]
BACKWARD = [150, 160]


def make_scene(blocks: list[Allocation], first: list[Name], has_true_count: bool = False) -> Scene:
    """The lead-in lasts until 100, the step until 200, and its backward pass begins at 150."""
    trace = AllocationTrace(blocks, {0: 100, 1: 190}, BACKWARD)
    return Scene(trace, [first, []], 0, 200, SITES, [("", "Net"), ("up", "Linear")], has_true_count=has_true_count)


def test_kinds_by_lifetime_and_name() -> None:
    blocks = [
        Allocation(1, 10, 110, 170, "forward", "aten::mm", 1, 0),  # alive when backward begins
        Allocation(2, 20, 120, 130, "forward", "aten::add", 1, 0),  # freed before backward begins
        Allocation(3, 40, 155, 158, "backward", "MmBackward0", 1, 0),
        Allocation(4, 80, 105, math.inf, "input", "aten::stack"),
    ]
    scene = make_scene(blocks, [Name(900, 1000, "parameters", 1), Name(901, 500, "other")])
    scene.snaps[1] = [Name(4, 80, "inputs")]
    footprint = account(scene, "cpu", 8, 8, 5000)
    assert footprint.peak_bytes == 1000 + 500 + 80 + 10 + 40
    expected = {"parameters": 1000, "other": 500, "inputs": 80, "activations": 10, "temporary": 40}
    assert {kind: size for kind, size in footprint.kinds.items() if size} == expected
    assert (footprint.peak_phase, footprint.peak_operator, footprint.peak_site) == ("backward", "MmBackward0", SITES[0])
    assert sum(footprint.phases["forward"].values()) == 1000 + 500 + 80 + 10 + 20
    assert footprint.modules[0].path == "up" and footprint.modules[0].kinds["parameters"] == 1000
    assert [line.kinds for line in footprint.lines] == [{"activations": 10, "temporary": 40}]
    assert footprint.capacity_bytes == 1000 + 500 + 80 + 5000
    assert footprint.growth is None


def test_a_reused_address_keeps_its_names_apart() -> None:
    blocks = [
        Allocation(7, 10, 10, 90, "forward", "aten::mm", 1, 0),
        Allocation(7, 10, 95, math.inf, "backward", "MmBackward0", 1, 0),
    ]
    footprint = account(make_scene(blocks, [Name(7, 10, "gradients", 1)]), "cpu")
    assert footprint.kinds["gradients"] == 10 == footprint.peak_bytes


def test_a_freed_output_is_not_the_allocation_that_reused_its_address() -> None:
    blocks = [
        Allocation(7, 10, 110, 120, "forward", "aten::mm", 1, 0),
        Allocation(7, 10, 130, 170, "forward", "aten::sin", 0, 0),
        Allocation(8, 10, 125, 170, "forward", "aten::mm", 0, 0),
    ]
    scene = make_scene(blocks, [Name(900, 1000, "parameters", 1)])
    scene.trace.snaps |= {2: 115, 3: 127}
    scene.outputs = {1: (2, [7]), 0: (3, [8])}
    assert {module.path: module.output_bytes for module in account(scene, "cpu").modules} == {"up": 0, "": 10}


def test_allocations_left_by_the_previous_step() -> None:
    blocks = [Allocation(1, 64, 50, math.inf, "forward", "aten::mm", 1, 1), Allocation(2, 8, 110, 120, "forward")]
    growth = account(make_scene(blocks, [Name(1, 64, "other")]), "cpu").growth
    assert growth is not None and (growth.num_bytes, growth.site) == (64, SITES[1])
    freed = [Allocation(1, 64, 50, 140, "forward", "aten::mm", 1, 1), Allocation(2, 8, 110, 120, "forward")]
    assert account(make_scene(freed, []), "cpu").growth is None


def test_bytes_counted_only_by_a_caching_allocator() -> None:
    blocks = [Allocation(1, 10, 110, 120, "forward", total_bytes=1300, reserved_bytes=4096)]
    footprint = account(make_scene(blocks, [Name(9, 1000, "parameters", 1)], has_true_count=True), "cuda:0")
    assert footprint.unexplained_bytes == 290
    assert footprint.peak_bytes == 1300 and footprint.kinds["other"] == 290
    assert footprint.reserved_bytes == 4096


def test_the_cpu_reserves_nothing() -> None:
    """On the CPU some of torch's allocations report reserved bytes, but no allocator holds that memory."""
    blocks = [Allocation(1, 10, 110, 120, "forward", total_bytes=1300, reserved_bytes=4096)]
    assert account(make_scene(blocks, [Name(9, 1000, "parameters", 1)]), "cpu").reserved_bytes == 0
