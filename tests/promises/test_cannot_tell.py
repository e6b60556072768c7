"""The script cannot tell: under `slipstream run` every zoo script prints, saves and exits as under bare python."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest
from command import SLIPSTREAM, start

from slipstream.testing.zoo import ZOO, Case

# What a clock decides: the Hugging Face Trainer prints how long it took.
CLOCKS = re.compile(r"'train_(runtime|samples_per_second|steps_per_second)': '?[\d.]+'?")
OURS = re.compile(r"^slipstream: .*\n", re.MULTILINE)
Outcome = tuple[int, str, str, bytes]
# For `run` the scripts are of a few shapes; `make test` takes one of each, `make promises` takes every one.
SHAPES = {
    "no_workers",
    *("lightning_no_workers", "transformers_slow_transform", "accelerate_slow_collate"),
    *("odd_own_iterator", "odd_spawned", "odd_compiled_step", "odd_inference"),
}
CASES = [case for case in ZOO if case.name in SHAPES or "SLIPSTREAM_EVERY" in os.environ]


def begin(prefix: list[str], case: Case, folder: Path) -> subprocess.Popen[str]:
    length = "2" if case.length_option == "--epochs" else "8"
    command = [*prefix, str(case.file), case.length_option, length, "--save", "weights.pt"]
    folder.mkdir()
    return start(command, folder, OMP_NUM_THREADS="1")  # two run side by side


def finish(process: subprocess.Popen[str], folder: Path) -> Outcome:
    out, err = process.communicate(timeout=150)
    weights = folder / "weights.pt"
    return (
        process.returncode,
        CLOCKS.sub("", out),
        OURS.sub("", err).replace(str(folder), ""),
        weights.read_bytes() if weights.exists() else b"",
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_script_cannot_tell(case: Case, tmp_path: Path) -> None:
    for package in case.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    bare = begin([SLIPSTREAM[0]], case, tmp_path / "bare")
    watched = begin([*SLIPSTREAM, "run"], case, tmp_path / "watched")
    expected, seen = finish(bare, tmp_path / "bare"), finish(watched, tmp_path / "watched")
    assert expected[0] == case.exit_code, expected[2]
    assert expected[3], "the script saved no weights"
    if seen != expected:
        again = finish(begin([SLIPSTREAM[0]], case, tmp_path / "again"), tmp_path / "again")
        if again != expected:
            pytest.skip("bare python does not equal bare python")
    assert seen[:3] == expected[:3]
    assert seen[3] == expected[3], "other weights"
