"""The search for the largest batch, on memory that is made up: lines, steps and curves."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from slipstream.memory.batch_bisection import BatchBisection, num_twos, step_at, suit


def search(held: Callable[[int], int], limit: int, edge: BatchBisection) -> int:
    """How many rides it took."""
    num_rides = 0
    while (size := edge.next_size()) is not None:
        num_rides += 1
        assert num_rides < 60
        if held(size) <= limit:
            edge.ran(size, held(size))
        else:
            edge.ran_out(size)
    return num_rides


def truth(held: Callable[[int], int], limit: int) -> int:
    return max(size for size in range(1, 20_000) if held(size) <= limit)


@pytest.mark.parametrize("own", [1, 7, 32, 500])
@pytest.mark.parametrize("seed", range(8))
def test_finds_the_edge_of_a_line_within_one_percent(own: int, seed: int) -> None:
    draw = random.Random(seed)
    fixed, each = draw.randint(100, 10_000), draw.randint(5, 200)
    limit = fixed + each * draw.randint(2, 3000)
    edge = BatchBisection(limit, own)
    num_rides = search(lambda size: fixed + each * size, limit, edge)
    true = truth(lambda size: fixed + each * size, limit)
    assert edge.largest <= true < edge.too_large
    assert edge.too_large - edge.largest <= step_at(edge.largest)
    assert edge.answer() <= edge.largest and num_rides <= 14
    assert fixed + each * edge.answer() <= limit - 0.0025 * limit + each or edge.answer() == 1


def test_a_right_forecast_needs_few_rides() -> None:
    edge = BatchBisection(10_000, 32, foretold=lambda size: 1000 + 10.0 * size)
    assert search(lambda size: 1000 + 10 * size, 10_000, edge) <= 4
    assert edge.largest >= 890 and edge.too_large <= 910 and edge.answer() == 896


def test_a_forecast_that_is_far_too_hopeful_is_mended_by_halving() -> None:
    def held(size: int) -> int:  # a library takes another path beyond 100 samples
        return 1000 + 10 * size + (4000 if size > 100 else 0)

    edge = BatchBisection(5000, 32, foretold=lambda size: 1000 + 10.0 * size)
    search(held, 5000, edge)
    assert edge.largest == 100 and edge.too_large in (101, 102)


def test_the_suitable_size_below_the_edge_is_tried_before_it_is_named() -> None:
    edge = BatchBisection(1, 8)
    edge.ran(1000, 0)
    edge.ran_out(1010)
    assert edge.next_size() == 992 and edge.answer() == 1000
    edge.ran(992)
    assert edge.next_size() is None and edge.answer() == 992


def test_what_two_starts_differ_by_is_kept_free() -> None:
    edge = BatchBisection(10_000, 100)
    edge.ran(100, 2000)
    edge.ran(100, 2300)
    edge.ran(870, 10_000 - 1)
    edge.ran_out(875)
    size = edge.next_size()  # 10 bytes a sample, 300 bytes of spread
    assert size is not None and 832 <= size <= 840


def test_not_even_one() -> None:
    edge = BatchBisection(10, 32, foretold=lambda size: 100.0 + size)
    search(lambda size: 100 + size, 10, edge)
    assert edge.largest == 0 and edge.too_large == 1


def test_data_may_end_before_memory_does() -> None:
    edge = BatchBisection(1 << 40, 32, most=777)
    search(lambda size: 10 * size, 1 << 40, edge)
    assert edge.largest == 777 and not edge.is_bounded and edge.answer() == 777


def test_what_fails_the_second_time_has_not_run() -> None:
    edge = BatchBisection(1000, 10)
    edge.ran(90, 990)
    edge.ran(80, 880)
    edge.ran_out(90)
    assert edge.largest == 80 and edge.too_large == 90
    assert edge.next_size() not in (80, 90)


def test_multiples() -> None:
    found = [suit(size, least) for size, least in ((1, 1), (9, 9), (65, 64), (130, 128), (1000, 980), (99, 97))]
    assert found == [1, 9, 64, 128, 992, 98]
    assert [num_twos(size) for size in (1, 6, 8, 64, 256, 0)] == [1, 2, 8, 64, 64, 1]
