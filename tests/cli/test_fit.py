"""tune --fit and --memory-limit: bad input, and the output and files at the end."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from slipstream.cli.fit import _give
from slipstream.cli.group import slipstream
from slipstream.cli.tune import Request
from slipstream.recipe.file import read_recipe
from slipstream.records import Choice, FitAttempt, Fitting, Recipe, Speed
from slipstream.store.sessions import latest, load_session
from slipstream.testing.made_sessions import made_session
from slipstream.workflows.fit import as_tuning, bytes_of


@pytest.mark.parametrize("typed", ["six", "6", "-1GiB", "0MiB", "GiB", "1.2.3GB", "6 parsecs", "infGiB"])
def test_a_limit_that_is_no_size_is_refused(typed: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    done = CliRunner().invoke(slipstream, ["tune", "--memory-limit", typed, str(tmp_path / "train.py")])
    assert done.exit_code == 2 and "is not a size. Write it like 6GiB" in done.output


def test_sizes() -> None:
    typed = ("6GiB", "512MiB", "1.5GB", "2 gib", "3g", "10K")
    assert [bytes_of(one) for one in typed] == [6 << 30, 512 << 20, 1_500_000_000, 2 << 30, 3 << 30, 10 << 10]


def test_a_kept_recipe_is_written_and_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    recipe = Recipe((Choice("checkpointing", "half"),))
    attempts = [
        FitAttempt(32, is_held=False, step_ms=100.0, samples_per_s=320.0, rate=Speed(1.0, 1.0, 1.0)),
        FitAttempt(32, outcome="ran_out"),
        FitAttempt(32, recipe, peak_bytes=1 << 30, step_ms=118.0, rate=Speed(1 / 1.18, 0.82, 0.87, 12)),
    ]
    fitting = Fitting(1 << 30, "--memory-limit", "cpu", 32, False, attempts=attempts, recipe=recipe)
    session = msgspec.structs.replace(made_session(), cwd=str(tmp_path), command="tune", fitting=fitting)
    assert _give(session, Request(["train.py"], json_path=Path("out/fit.json"), markdown_path=Path("fit.md"))) == 0
    read = read_recipe(tmp_path / "slipstream.toml")
    assert read.recipe == recipe and read.base_step_ms == 100.0
    text = (tmp_path / "slipstream.toml").read_text()
    assert "fit in its memory" in text and "0.85x" in text
    assert json.loads(Path("out/fit.json").read_text())["fitting"]["recipe"] == {"checkpointing": "half"}
    saved = latest(tmp_path)
    assert saved is not None and load_session(saved).fitting == fitting


def test_another_batch_size_is_in_the_recipe_only_if_allowed() -> None:
    attempts = [FitAttempt(32, is_held=False, step_ms=9.0), FitAttempt(96, rate=Speed(1.2, 1.1, 1.3, 12))]
    fitting = Fitting(1 << 30, "--memory-limit", "cpu", 32, True, attempts=attempts, largest=96, fastest=96)
    assert not as_tuning(fitting).verdicts
    kept = as_tuning(msgspec.structs.replace(fitting, recipe=Recipe((Choice("batch_size", 96),))))
    assert kept.total == Speed(1.2, 1.1, 1.3, 12) and kept.verdicts[0].choice == Choice("batch_size", 96)
