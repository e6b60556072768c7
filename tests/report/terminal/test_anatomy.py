"""What is reported about the one profiled step."""

from __future__ import annotations

import msgspec
import pytest

from slipstream.diagnose import diagnose
from slipstream.report.terminal.anatomy import achieved
from slipstream.testing.made_sessions import made_anatomy, made_session


@pytest.mark.parametrize(("operators_ms", "text"), [(28.0, "3 GFLOP at 100 GFLOP/s"), (90.0, "3 GFLOP")])
def test_a_step_three_times_as_long_as_the_others_has_no_rate(operators_ms: float, text: str) -> None:
    anatomy = msgspec.structs.replace(made_anatomy({"aten::mm": (20, operators_ms)}), flops=3 * 10**9)
    summary = diagnose(made_session(anatomy=anatomy)).summary  # forward and backward: 30 ms
    assert summary is not None and achieved(anatomy, summary) == text
