"""A few steps under torch's own profiler, and their trace aligned with the trial's clock."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from slipstream.observe.anatomy.profile_excerpt import ProfileExcerpt
from slipstream.report.exports.torch_profile import profile_slices, read_profile
from slipstream.seams.host_clock import HostClock


def test_operators_are_at_the_right_time_in_the_trace(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, variables = nn.Linear(16, 16), dict(os.environ)
    excerpt = ProfileExcerpt(str(tmp_path / "profile.json"), HostClock())
    assert excerpt.start()
    start_ns = time.perf_counter_ns()
    for _ in range(3):
        model(torch.ones(4, 16)).sum().backward()
    end_ns = time.perf_counter_ns()
    profile = excerpt.stop(3)
    assert profile is not None and profile.num_steps == 3
    found = [one for one in profile_slices(profile, read_profile(profile)) if one["name"] == "aten::addmm"]
    assert len(found) == 3, "one per step, and all on the trial's clock"
    for one in found:
        assert start_ns - 1e7 < one["ts"] < one["ts"] + one["dur"] < end_ns + 1e7
    assert capfd.readouterr() == ("", ""), "nor a word of the profiler's"
    assert dict(os.environ) == variables


def test_an_excerpt_without_a_step_is_none(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    excerpt = ProfileExcerpt(str(path), HostClock())
    assert excerpt.start()
    assert excerpt.stop(0) is None and "more time with --seconds" in excerpt.reason and not path.exists()


def test_excerpt_gives_way_to_the_profiler_of_the_script(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    with torch.profiler.profile():
        waiting = ProfileExcerpt(str(path), HostClock())
        assert not waiting.start() and "itself uses torch's profiler" in waiting.reason
    excerpt = ProfileExcerpt(str(path), HostClock())
    assert excerpt.start()
    with torch.profiler.profile() as theirs:
        torch.ones(4) + 1
    assert excerpt.stop(1) is None and "during the step" in excerpt.reason and not path.exists()
    assert any(event.key == "aten::add" for event in theirs.key_averages())
    with torch.profiler.profile() as again:
        torch.ones(4) + 1
    assert any(event.key == "aten::add" for event in again.key_averages()), "nothing of ours is left"
