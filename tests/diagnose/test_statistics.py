import random
from statistics import median

from slipstream.diagnose.statistics import group_means, median_interval, rising_share, robust_slope


def test_groups_leave_out_a_cut_burst():
    assert group_means([1, 3, 1, 3, 9], 2) == [2, 2]
    assert group_means([5], 4) == [5]
    assert group_means([], 4) == []


def test_the_interval_has_its_nominal_coverage():
    rng = random.Random(0)
    for count in (9, 40, 700):
        hits = 0
        for _ in range(400):
            low, high = median_interval([rng.expovariate(1.0) for _ in range(count)])
            hits += low <= 0.6931 <= high
        assert hits >= 0.93 * 400, count


def test_the_interval_of_few_values_is_all_of_them():
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert median_interval([]) == (0.0, 0.0)


def test_one_jump_does_not_move_the_slope():
    points = [(float(i), 5.0 if i < 50 else 900.0) for i in range(100)]
    flat = [(float(i), 5.0 if i != 50 else 900.0) for i in range(100)]
    assert robust_slope(flat) == 0
    assert robust_slope([(float(i), 2.0 * i) for i in range(300)]) == 2.0
    assert rising_share([value for _, value in points]) < 0.5
    assert median([1, 2, 3]) == 2
