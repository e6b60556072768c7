"""`slipstream.tune(function)`, and what it refuses before anything runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import slipstream
from slipstream.records import Session
from slipstream.testing.made_sessions import made_session
from slipstream.testing.made_verdicts import tuned
from slipstream.workflows.tune import INSIDE, Tuned, journal_of, seconds_of, with_trials


def train() -> None:
    raise AssertionError("only trials call this function")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("5m", 300), ("1h", 3600), ("1.5h", 5400), ("45", 45), ("0.5m", 30)]
)
def test_durations(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "5 parsecs", "-1s", "0", "nan", "inf", "5mm"])
def test_a_bad_duration_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration\. Write it like 90s, 5m or 1h"):
        seconds_of(text)


def test_importing_the_tuning_package_does_not_hide_the_function() -> None:
    import slipstream.tuning.options

    assert slipstream.tuning.options.TuneOptions().budget_s is None
    with pytest.raises(ValueError, match="'soon' is not a duration"):
        slipstream.tune(train, budget="soon")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"only": ["warp_drive"]}, "there is no technique 'warp_drive'"),
        ({"allow": "anything"}, "the classes are: identical, reordered"),
    ],
)
def test_a_wrong_option_is_an_error_before_anything_runs(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        slipstream.tune(train, **options)


FUNCTION = """
import torch, slipstream

def train():
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(1_000_000):
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

if __name__ == "__main__":
    tuned = slipstream.tune(train, budget="4s", only=["fused_optimizer"], seconds=4, recipe="recipes/a.toml")
    verdicts = [one.decision for one in tuned.tuning.verdicts if one.technique == "fused_optimizer"]
    print("verdicts", verdicts, tuned.recipe_path)
"""


def test_a_function_is_raced(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(FUNCTION)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    said = re.search(r"verdicts \['(kept|rejected|unsure)'\] (.*)", done.stdout)
    assert said is not None, done.stdout
    assert ("kept" in said[1]) == (tmp_path / "recipes" / "a.toml").is_file() == (said[2] != "None")


def test_tuning_inside_a_trial_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INSIDE, "1")
    with pytest.raises(ValueError, match='Put the call under `if __name__ == "__main__":`'):
        slipstream.tune(train)


def test_the_journal_depends_on_the_script_and_its_arguments(tmp_path: Path) -> None:
    paths = {
        journal_of(script, tmp_path)
        for script in (["train.py"], ["train.py", "--epochs", "3"], ["-m", "pkg.train"], ["other/train.py"])
    }
    assert len(paths) == 4
    assert all(path.parent == tmp_path / ".slipstream/journals" for path in paths)
    assert journal_of(["train.py"], tmp_path) in paths
    assert journal_of(["-m", "train", "-v"], tmp_path).name.startswith("train-")


def test_the_result_prints_as_a_report() -> None:
    session: Session = tuned(made_session())
    shown = Tuned(session, Path("train.py"), Path("slipstream.toml"))
    assert str(shown.recipe) == "workers=2 + channels_last"
    assert "1.61x as fast" in str(shown) and repr(shown) == str(shown)
    assert "<table>" in shown._repr_html_()


def test_files_that_trials_wrote_permanently_are_listed_once(tmp_path: Path) -> None:
    session = msgspec.structs.replace(made_session(), cwd=str(tmp_path), written=["log.txt"], notes=["one"])
    tuning = tuned(session).tuning
    assert tuning is not None
    both = with_trials(msgspec.structs.replace(session, tuning=tuning), ["two"], ["/srv/model.pt", "/srv/model.pt"])
    assert with_trials(session, [], [], "--no-overlay").no_overlay == "--no-overlay" and not both.no_overlay
    assert both.written == ["log.txt", "/srv/model.pt"] and both.notes == ["one", "two"] and both.tuning == tuning
