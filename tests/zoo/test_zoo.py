"""The zoo: the first finding is the planted cause at the planted line, and healthy scripts have no findings."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream.diagnose.gain import CLEARLY
from slipstream.testing.zoo import HEALTHY, HERE, MARK, PLANTED, ZOO, Case

Check = Callable[..., dict[str, Any]]
# Scripts whose cause another script has too. They run only with SLIPSTREAM_EVERY, which `make promises` sets.
SECONDS = {
    *("no_workers", "no_workers_waiting", "too_few_workers", "too_many_workers"),
    *("slow_transform", "slow_transform_alone", "slow_collate", "no_loader_memmap", "many_threads", "denormal_tails"),
    *("healthy_mlp", "healthy_gan", "healthy_validation"),
}
IS_EVERY = "SLIPSTREAM_EVERY" in os.environ
# Causes that show only after many steps, after several epochs, or after the rehearsal of a remedy.
SLOW_TO_SHOW = {
    *("growing_memory", "worker_restart", "frequent_validation", "grad_in_evaluation"),
    *("slow_layout", "few_threads", "tiny_operations", "unfused_optimizer"),
}


def brief(checked: dict[str, Any]) -> str:
    """The text for a failed test: the ranking of the findings, and the facts that it is based on."""
    found = [
        f"{one['cause']} {one['where']} {one['predicted_gain']:.2f}: {one['evidence']}" for one in checked["findings"]
    ]
    facts = {name: checked[name] for name in ("num_steps", "step_ms", "phases", "ceilings", "bound", "notes")}
    return "\n".join([*found, str(facts)])


def chosen(cases: list[Case]) -> list[Case]:
    return [case for case in cases if IS_EVERY or case.name not in SECONDS]


@pytest.mark.parametrize("case", chosen(PLANTED), ids=lambda case: case.name)
def test_first_finding_is_the_planted_cause(case: Case, check: Check) -> None:
    """A short check on a shared machine can be disturbed, so the test fails only if a longer check is wrong too.

    If the planted cause has no effect on this machine, it must not be the first finding.
    """
    seconds = 6.0 if case.name in SLOW_TO_SHOW else 3.0
    for longer in (1, 2, 5):
        checked = check(case, seconds=longer * seconds)
        is_first = first_answer(case, checked) == (case.cause, case.file.name, case.line)
        if is_first == is_fault_here(case, checked):
            break
    is_fault = is_fault_here(case, checked)
    assert is_fault is not None, f"{case.remedy} was not rehearsed: {checked['notes']}"
    assert is_first == is_fault, brief(checked)
    if is_fault:
        first = next(one for one in checked["findings"] if one["cause"] == case.cause)
        assert first["predicted_gain"] >= 1.0
        assert first["evidence"] and first["change"]


def is_fault_here(case: Case, checked: dict[str, Any]) -> bool | None:
    """Whether the planted cause has an effect on this machine. None if that was not measured.

    Whether channels_last or a fused optimizer is faster depends on the processor. The rehearsal on a copy of the model
    decides it.
    """
    if checked["environment"]["num_usable"] < case.min_cores:
        return False
    if not case.remedy:
        return True
    raced = [one for one in checked["rehearsals"] if one.remedy == case.remedy]
    return raced[0].low >= CLEARLY if raced else None


# Whether these findings are right depends on the processor. Each is based on a rehearsal that measured its remedy.
REHEARSED = {
    "full_precision": "bf16",
    "unfused_optimizer": "fused_optimizer",
    "cpu_threads": "threads",
    "slow_layout": "channels_last",
    "denormals": "flush_denormals",
}


def unmeasured(checked: dict[str, Any]) -> list[dict[str, Any]]:
    """Findings, best first, without those whose remedy was measured on a copy of the model and was clearly faster."""
    faster = {one.remedy for one in checked["rehearsals"] if one.low >= CLEARLY}
    return [one for one in checked["findings"] if REHEARSED.get(one["cause"]) not in faster]


def first_answer(case: Case, checked: dict[str, Any]) -> tuple[str, str, int] | None:
    """Cause, file and line of the first finding, without other findings that depend on the processor."""
    others = unmeasured(checked)
    ranked = [one for one in checked["findings"] if one["cause"] == case.cause or one in others]
    if not ranked:
        return None
    file, _, line = ranked[0]["where"].rpartition(":")
    return ranked[0]["cause"], Path(file).name, int(line or 0)


@pytest.mark.parametrize("case", chosen(HEALTHY), ids=lambda case: case.name)
def test_healthy_scripts_have_no_findings(case: Case, check: Check) -> None:
    """A faster precision or layout that was measured on this processor is a correct finding and is allowed."""
    for seconds in (3.0, 10.0, 20.0):
        checked = check(case, seconds=seconds)
        if not unmeasured(checked):
            break
    assert checked["num_steps"] + checked["num_disturbed"] >= 5
    assert not unmeasured(checked), brief(checked)


def test_the_index_lists_every_script_of_the_folder() -> None:
    assert {path.stem for path in HERE.glob("*.py")} - {"__init__"} == {case.name for case in ZOO}
    for case in ZOO:
        assert case.file.read_text().count(MARK) == (case.kind == "planted"), case.name
        assert "slipstream" not in case.file.read_text(), case.name
