"""Checks a zoo script with the real command, and gives tests the result as JSON."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream.store.sessions import latest, load_session
from slipstream.testing.zoo import Case

Checked = dict[str, Any]


NUM_CORES = 2  # for every check, if the machine has them: some planted causes have no effect on 64 cores


def usable_cores() -> list[int]:
    """The cores that a check of the zoo may use."""
    return sorted(os.sched_getaffinity(0))[:NUM_CORES]


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., Checked]:
    """Runs `slipstream check` on a case, with arguments for its script. Fails on an unexpected exit code."""

    def checking(case: Case, *arguments: str, seconds: float = 6.0, options: tuple[str, ...] = ()) -> Checked:
        for package in case.needs:
            if importlib.util.find_spec(package) is None:  # an import would leave the hooks of the package behind
                pytest.skip(f"{package} is not installed")
        command = [sys.executable, "-m", "slipstream", "check", "--quiet", "--seconds", str(seconds), *options]
        result = subprocess.run(
            [*command, "--json", "out.json", str(case.file), *arguments],
            cwd=tmp_path,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            timeout=170,
            preexec_fn=lambda: os.sched_setaffinity(0, usable_cores()),
        )
        said = result.stdout + result.stderr
        assert result.returncode in (0, case.exit_code), said
        assert (tmp_path / "out.json").exists(), said
        document: Checked = json.loads((tmp_path / "out.json").read_text())
        assert "out of service" not in said and "switched off" not in said, said
        session = load_session(latest(tmp_path) or tmp_path)
        return {**document, "exit_code": result.returncode, "said": said, "rehearsals": session.rehearsals}

    return checking
