"""`slipstream check` on scripts whose limit on the device is known."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.diagnose.steps.undisturbed import has_headline
from slipstream.records import Session
from slipstream.store.sessions import latest, load_session
from slipstream.testing.device_zoo import CASES, DeviceCase

_BUSY = 0.25  # share of a step in which a device that is the limit may wait for a host that other programs slow down


def _check(case: DeviceCase, folder: Path) -> Session:
    command = [sys.executable, "-m", "slipstream", "check", "--quiet", "--seconds", "4", str(case.file)]
    environment = os.environ | {"SIMULATED_CUDA_COPY_GB_PER_S": str(case.copy_gb_per_s)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "switched off" not in done.stdout + done.stderr
    found = latest(folder)
    assert found is not None
    return load_session(found)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_limit_and_the_first_finding(case: DeviceCase, tmp_path: Path) -> None:
    session = _check(case, tmp_path)
    summary = session.summary
    assert summary is not None
    if session.environment.num_usable < 2:
        pytest.skip("on one core the simulated device and the host cannot run at the same time")
    if not has_headline(summary):
        pytest.skip("other programs used the cores in all steps, so the check itself says that the limit is not known")
    assert summary.device_phases is not None and summary.device_idle is not None
    assert summary.bound == case.bound, summary
    assert max(summary.phases, key=summary.phases.__getitem__) == case.phase, summary.phases
    idle = summary.device_idle
    if case.idle:
        assert max(idle, key=idle.__getitem__) in case.idle, idle
    else:
        assert sum(idle.values()) < _BUSY * summary.step_ms, idle
    found = [(finding.cause, finding.predicted_gain) for finding in session.findings]
    if case.causes:
        assert found and found[0][0] in case.causes, found
    else:
        assert all(gain <= case.gain for _, gain in found), found
