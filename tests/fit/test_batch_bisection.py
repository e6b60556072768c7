"""The search for the largest batch with simulated memory use: lines, steps and curves."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from slipstream.fit.batch_bisection import BatchBisection, num_twos, step_at, suit


def search(held: Callable[[int], int], limit: int, search_state: BatchBisection) -> int:
    """Returns the number of attempts."""
    num_attempts = 0
    while (size := search_state.next_size()) is not None:
        num_attempts += 1
        assert num_attempts < 60
        if held(size) <= limit:
            search_state.ran(size, held(size))
        else:
            search_state.ran_out(size)
    return num_attempts


def truth(held: Callable[[int], int], limit: int) -> int:
    return max(size for size in range(1, 20_000) if held(size) <= limit)


@pytest.mark.parametrize("own", [1, 7, 32, 500])
@pytest.mark.parametrize("seed", range(8))
def test_finds_the_limit_of_a_line_within_one_percent(own: int, seed: int) -> None:
    draw = random.Random(seed)
    fixed, each = draw.randint(100, 10_000), draw.randint(5, 200)
    limit = fixed + each * draw.randint(2, 3000)
    search_state = BatchBisection(limit, own)
    num_attempts = search(lambda size: fixed + each * size, limit, search_state)
    true = truth(lambda size: fixed + each * size, limit)
    assert search_state.largest <= true < search_state.too_large
    assert search_state.too_large - search_state.largest <= step_at(search_state.largest)
    assert search_state.answer() <= search_state.largest and num_attempts <= 14
    assert fixed + each * search_state.answer() <= limit - 0.0025 * limit + each or search_state.answer() == 1


def test_a_right_forecast_needs_few_attempts() -> None:
    search_state = BatchBisection(10_000, 32, predicted=lambda size: 1000 + 10.0 * size)
    assert search(lambda size: 1000 + 10 * size, 10_000, search_state) <= 4
    assert search_state.largest >= 890 and search_state.too_large <= 910 and search_state.answer() == 896


def test_a_far_too_low_forecast_is_corrected_by_bisection() -> None:
    def held(size: int) -> int:  # a library uses another algorithm for more than 100 samples
        return 1000 + 10 * size + (4000 if size > 100 else 0)

    search_state = BatchBisection(5000, 32, predicted=lambda size: 1000 + 10.0 * size)
    search(held, 5000, search_state)
    assert search_state.largest == 100 and search_state.too_large in (101, 102)


def test_the_suitable_size_below_the_limit_is_tried_before_it_is_returned() -> None:
    search_state = BatchBisection(1, 8)
    search_state.ran(1000, 0)
    search_state.ran_out(1010)
    assert search_state.next_size() == 992 and search_state.answer() == 1000
    search_state.ran(992)
    assert search_state.next_size() is None and search_state.answer() == 992


def test_the_difference_between_two_starts_is_kept_free() -> None:
    search_state = BatchBisection(10_000, 100)
    search_state.ran(100, 2000)
    search_state.ran(100, 2300)
    search_state.ran(870, 10_000 - 1)
    search_state.ran_out(875)
    size = search_state.next_size()  # 10 bytes a sample, 300 bytes of spread
    assert size is not None and 832 <= size <= 840


def test_not_even_one_sample_fits() -> None:
    search_state = BatchBisection(10, 32, predicted=lambda size: 100.0 + size)
    search(lambda size: 100 + size, 10, search_state)
    assert search_state.largest == 0 and search_state.too_large == 1


def test_the_data_may_set_the_limit() -> None:
    search_state = BatchBisection(1 << 40, 32, most=777)
    search(lambda size: 10 * size, 1 << 40, search_state)
    assert search_state.largest == 777 and not search_state.is_bounded and search_state.answer() == 777


def test_a_size_that_fails_the_second_time_does_not_count() -> None:
    search_state = BatchBisection(1000, 10)
    search_state.ran(90, 990)
    search_state.ran(80, 880)
    search_state.ran_out(90)
    assert search_state.largest == 80 and search_state.too_large == 90
    assert search_state.next_size() not in (80, 90)


def test_multiples() -> None:
    found = [suit(size, least) for size, least in ((1, 1), (9, 9), (65, 64), (130, 128), (1000, 980), (99, 97))]
    assert found == [1, 9, 64, 128, 992, 98]
    assert [num_twos(size) for size in (1, 6, 8, 64, 256, 0)] == [1, 2, 8, 64, 64, 1]
