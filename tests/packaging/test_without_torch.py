"""Saved sessions are read where torch is not installed; commands that run a script say that they need it."""

from __future__ import annotations

import json

import pytest
from installation import Installation, Measured

pytestmark = pytest.mark.timeout(900)  # the sessions are made with torch, and the machine may be busy


def test_torch_is_missing(torchless: Installation) -> None:
    """Otherwise the other tests prove nothing."""
    assert "No module named 'torch'" in torchless.run_python("-c", "import torch").stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["report"],
        ["report", "--quiet"],
        ["report", "--json", "out/report.json"],
        ["report", "--html", "out/report.html", "--no-open"],
        ["report", "--trace", "out/trace.json.gz"],
        ["history"],
        ["history", "--json"],
        ["compare"],
        ["compare", "--json"],
        ["techniques"],
        ["techniques", "workers"],
        ["cache"],
        ["check", "--help"],
        ["tune", "--help"],
    ],
    ids=" ".join,
)
def test_a_command_that_reads(torchless: Installation, measured: Measured, arguments: list[str]) -> None:
    done = torchless.slipstream(*arguments)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_an_export_whose_package_is_missing(torchless: Installation, measured: Measured) -> None:
    done = torchless.slipstream("report", "--tensorboard", "out/tensorboard")
    assert done.returncode == 2 and "pip install tensorboard" in done.stderr and "Traceback" not in done.stderr


def test_markdown(torchless: Installation, measured: Measured) -> None:
    """Only a tuning has it, and the latest session is one."""
    done = torchless.slipstream("report", "--markdown", "-")
    assert (done.returncode, done.stderr) == (0, "")
    assert "| technique" in done.stdout


def test_json_on_standard_output(torchless: Installation, measured: Measured) -> None:
    assert json.loads(torchless.slipstream("report", "--json", "-").stdout)["step_ms"]


def test_patch(torchless: Installation, measured: Measured) -> None:
    done = torchless.slipstream("patch", "--recipe", "recipe.toml", "train.py")
    assert done.returncode == 0, done.stderr
    assert "+optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "train.py"],
        ["run", "train.py"],
        ["tune", "train.py"],
        ["tune", "--fit", "train.py"],
        ["memory", "train.py"],
        ["selftest"],
    ],
    ids=" ".join,
)
def test_a_command_that_needs_torch(torchless: Installation, arguments: list[str]) -> None:
    done = torchless.slipstream(*arguments)
    assert done.returncode == 2, done.stderr
    assert "torch is not installed in this Python" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_prove_needs_torch(torchless: Installation, measured: Measured) -> None:
    done = torchless.slipstream("patch", "--prove", "--recipe", "recipe.toml", "train.py")
    assert done.returncode == 2
    assert "torch is not installed in this Python" in done.stderr and "Traceback" not in done.stderr


def test_machine_measures_the_rest(torchless: Installation) -> None:
    """The speed test needs torch for some of its measurements only, and says which are missing."""
    done = torchless.slipstream("machine", "--quick")
    assert done.returncode == 0, done.stderr
    assert "torch" in done.stdout and "not" in done.stdout
