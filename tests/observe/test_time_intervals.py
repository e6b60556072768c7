from __future__ import annotations

import random

from slipstream.observe.intervals import Interval, share_out


def test_time_belongs_to_the_innermost_interval() -> None:
    shares = share_out(
        [Interval(1, 9, "optimizer"), Interval(2, 5, "forward"), Interval(5, 8, "backward")], 0, 10, "other"
    )
    assert shares == {"other": 2, "optimizer": 2, "forward": 3, "backward": 3}


def test_everything_inside_apart_is_apart() -> None:
    shares = share_out([Interval(2, 8, "apart"), Interval(3, 5, "forward")], 0, 10, "other")
    assert shares == {"other": 4, "apart": 6}


def test_shares_add_up_whatever_the_intervals() -> None:
    draw = random.Random(0)
    for _ in range(500):
        intervals = []
        for _ in range(draw.randrange(12)):
            start = draw.uniform(-5, 105)
            intervals.append(Interval(start, start + draw.expovariate(0.1), draw.choice(["a", "b", "apart"])))
        shares = share_out(intervals, 0, 100, "rest")
        assert abs(sum(shares.values()) - 100) < 1e-9
        assert all(share >= 0 for share in shares.values())
