"""The live line depends only on progress, time and width."""

import pytest

from slipstream.records import Progress
from slipstream.report.terminal.live_check import LiveCheck, live_line


def test_before_the_first_step() -> None:
    assert live_line(None, 3.2, 80) == "slipstream  waiting for the first step · 3.2 s"


def test_a_running_trial() -> None:
    line = live_line(Progress(42, "watch", 63.0, 0.41), 12.0, 100)
    assert line == "slipstream  ━━━━━╌╌╌╌╌╌╌  41% · 42 steps · watching · 63 ms a step · 12 s"


@pytest.mark.parametrize("width", [0, 1, 10, 30, 40, 60, 80])
@pytest.mark.parametrize("unicode", [True, False])
def test_it_never_reaches_the_edge(width: int, unicode: bool) -> None:
    line = live_line(Progress(123_456, "drain", 0.05, 1.7), 7200.0, width, unicode=unicode)
    assert len(line) < max(width, 1)
    assert unicode or line.isascii()


def test_it_remembers_the_last_progress() -> None:
    line = LiveCheck(unicode=True)
    line.take(Progress(1, "warmup", 5.0, 0.0))
    line.take(Progress(7, "kept", 5.0, 0.5))
    assert "7 steps · repeating stored batches" in line.text(2.0, 100)
