"""The row about an epoch's first batch: what it waits for, and how long."""

from __future__ import annotations

from io import StringIO

import msgspec
import pytest
from rich.console import Console

from slipstream.diagnose import diagnose
from slipstream.report.terminal.console import ConsoleStyle
from slipstream.report.terminal.stages import stage_lines
from slipstream.testing.made_sessions import made_loader, made_session, made_stack


def shown(persistent: bool, phase: str) -> str:
    """Every tenth step starts an epoch and takes 150 ms longer, in this phase."""
    stacks = [made_stack("transform", 15, 90, role="worker")]
    loader = made_loader(2, persistent_workers=persistent, num_batches=10)
    session = made_session(num_workers=2, loader=loader, work_ms=40, input_ms=20, stacks=stacks)
    steps = [
        msgspec.structs.replace(
            step,
            is_first_of_epoch=True,
            step_ms=step.step_ms + 150,
            phases={**step.phases, phase: step.phases[phase] + 150},
        )
        if step.index % 10 == 0
        else step
        for step in session.steps
    ]
    session = diagnose(msgspec.structs.replace(session, steps=steps))
    assert session.summary is not None
    ink = ConsoleStyle(Console(width=120, file=StringIO()))
    return "\n".join(line.plain for line in stage_lines(session, session.summary, ink))


@pytest.mark.parametrize(
    ("persistent", "why"), [(False, "the workers start"), (True, "the workers have no batch ready yet")]
)
def test_workers_that_stay_do_not_start(persistent: bool, why: str) -> None:
    text = shown(persistent, "input")
    assert "150 ms" in text and f"more for the first batch of an epoch: {why}" in text


def test_a_first_step_that_is_long_for_another_reason_waits_for_nobody() -> None:
    assert "first batch" not in shown(False, "other")
