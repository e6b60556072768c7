"""Bars fit their width for all numbers."""

import io

import pytest
from rich.console import Console

from slipstream.report.terminal import layout
from slipstream.report.terminal.console import ConsoleStyle


@pytest.fixture
def ink() -> ConsoleStyle:
    return ConsoleStyle(Console(file=io.StringIO(), width=80, color_system=None))


@pytest.mark.parametrize("width", [1, 7, 40])
def test_parts_fill_the_width_and_never_more(ink: ConsoleStyle, width: int) -> None:
    parts = {"input": 1 / 3, "forward": 1 / 3, "backward": 1 / 3}
    drawn = layout.stacked(parts, 1.0, width, ink)
    assert drawn.cell_len == width
    assert " " not in drawn.plain


def test_each_phase_has_a_character_of_its_own_without_colour(ink: ConsoleStyle) -> None:
    parts = {"input": 1.0, "transfer": 1.0, "forward": 1.0, "backward": 1.0, "optimizer": 1.0, "other": 1.0}
    assert len(set(layout.stacked(parts, 6.0, 6, ink).plain)) == 6


def test_an_empty_step_and_a_value_beyond_the_scale(ink: ConsoleStyle) -> None:
    assert layout.stacked({}, 0.0, 10, ink).plain == " " * 10
    assert layout.stacked({"input": -1.0}, 1.0, 10, ink).cell_len == 10
    assert layout.thin(5.0, 1.0, 10, ink, "").cell_len == 10
