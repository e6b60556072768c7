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


def finish(process: subprocess.Popen[str], folder: Path) -> tuple[Outcome, list[str]]:
    """What the script did, and what was ours."""
    out, err = process.communicate(timeout=150)
    weights = folder / "weights.pt"
    outcome = (
        process.returncode,
        CLOCKS.sub("", out),
        OURS.sub("", err).replace(str(folder), ""),
        weights.read_bytes() if weights.exists() else b"",
    )
    return outcome, OURS.findall(err)


# Techniques that claim the same bits, each on a script where it has something to do.
IDENTICAL = {
    "slow_decode": 'allocator = "keep"\nprefetch = 4\nbuffer_reuse = true\nfast_arrays = true\n',
    "healthy_mlp": "batched_fetch = true\n",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_script_cannot_tell(case: Case, tmp_path: Path) -> None:
    trains_alike(case, tmp_path)


@pytest.mark.parametrize("case", [case for case in ZOO if case.name in IDENTICAL], ids=lambda case: case.name)
def test_script_cannot_tell_by_a_recipe_of_identical_techniques(case: Case, tmp_path: Path) -> None:
    (tmp_path / "identical.toml").write_text(f"version = 1\n[recipe]\n{IDENTICAL[case.name]}")
    said = trains_alike(case, tmp_path, "--recipe", str(tmp_path / "identical.toml"))
    assert len(said) == 2, "the recipe and the end, and nothing that could not be put in place"


def trains_alike(case: Case, folder: Path, *options: str) -> list[str]:
    """Under `run` as under python. Gives what slipstream said."""
    for package in case.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    bare = begin([SLIPSTREAM[0]], case, folder / "bare")
    watched = begin([*SLIPSTREAM, "run", *options], case, folder / "watched")
    expected, _ = finish(bare, folder / "bare")
    seen, said = finish(watched, folder / "watched")
    assert expected[0] == case.exit_code, expected[2]
    assert expected[3], "the script saved no weights"
    if seen != expected:
        again, _ = finish(begin([SLIPSTREAM[0]], case, folder / "again"), folder / "again")
        if again != expected:
            pytest.skip("bare python does not equal bare python")
    assert seen[:3] == expected[:3]
    assert seen[3] == expected[3], "other weights"
    return said
