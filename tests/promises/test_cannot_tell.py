"""`slipstream run` changes nothing: every zoo script prints, saves and exits as with plain python."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest
from command import SLIPSTREAM, start

from slipstream.testing.zoo import ZOO, Case

# Output that depends on the clock: the Hugging Face Trainer prints how long the training took.
CLOCKS = re.compile(r"'train_(runtime|samples_per_second|steps_per_second)': '?[\d.]+'?")
OURS = re.compile(r"^slipstream: .*\n", re.MULTILINE)
Outcome = tuple[int, str, str, bytes]
# To `run`, many scripts of the zoo are alike. `make test` uses one script of each kind, `make promises` uses all.
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
    return start(command, folder, OMP_NUM_THREADS="1")  # two scripts run at the same time


def finish(process: subprocess.Popen[str], folder: Path) -> tuple[Outcome, list[str]]:
    """Wait for the process. Returns what the script did, and the lines that slipstream printed."""
    out, err = process.communicate(timeout=150)
    weights = folder / "weights.pt"
    outcome = (
        process.returncode,
        CLOCKS.sub("", out),
        OURS.sub("", err).replace(str(folder), ""),
        weights.read_bytes() if weights.exists() else b"",
    )
    return outcome, OURS.findall(err)


# Techniques with the numerics class `identical`, each on a script to which it applies.
IDENTICAL = {
    "slow_decode": 'allocator = "keep"\nprefetch = 4\nbuffer_reuse = true\nfast_arrays = true\n',
    "healthy_mlp": "batched_fetch = true\n",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_run_changes_nothing(case: Case, tmp_path: Path) -> None:
    trains_alike(case, tmp_path)


@pytest.mark.parametrize("case", [case for case in ZOO if case.name in IDENTICAL], ids=lambda case: case.name)
def test_a_recipe_of_identical_techniques_changes_nothing(case: Case, tmp_path: Path) -> None:
    (tmp_path / "identical.toml").write_text(f"version = 1\n[recipe]\n{IDENTICAL[case.name]}")
    said = trains_alike(case, tmp_path, "--recipe", str(tmp_path / "identical.toml"))
    assert len(said) == 2, (
        "one line about the recipe and one at the end; a third would say that a technique was not applied"
    )


def trains_alike(case: Case, folder: Path, *options: str) -> list[str]:
    """Assert that the script trains under `run` as with python. Returns the lines that slipstream printed."""
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
            pytest.skip("two runs with plain python differ from each other")
    assert seen[:3] == expected[:3]
    assert seen[3] == expected[3], "the weights differ"
    return said
