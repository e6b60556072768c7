"""slipstream tune: one real tuning, and made sessions for every output format and ending."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from click.testing import CliRunner

from slipstream.cli.group import slipstream
from slipstream.cli.tune import Request, _give, show_failed_check, tune_until_interrupted
from slipstream.recipe.file import read_recipe
from slipstream.records import Ending, Recipe, Session
from slipstream.store.sessions import latest, load_session, save_session
from slipstream.supervise.race import ENTRY
from slipstream.supervise.signals import EndedBySignal
from slipstream.testing.made_sessions import made_session
from slipstream.testing.made_verdicts import tuned
from slipstream.workflows.tune import journal_of

TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(64, 8)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(1_000_000):
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def session(here: Path) -> Session:
    (here / "train.py").write_text("print('training')\n")
    return tuned(msgspec.structs.replace(made_session(), cwd=str(here)))


def test_a_real_tuning_from_check_to_report(here: Path) -> None:
    (here / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "slipstream", "tune", "--budget", "4s", "--seconds", "5", "--only"]
    command += ["fused_optimizer,tf32", "--json", "out/tune.json", "--markdown", "out/tune.md", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    checks = [line for line in done.stderr.splitlines() if line.startswith(" check     ")]
    assert len(checks) == 2 and "about 5 s" in checks[0] and "a step" in checks[1]
    assert "Traceback" not in done.stderr
    document = json.loads((here / "out/tune.json").read_text())
    verdicts = {verdict["technique"]: verdict for verdict in document["verdicts"]}
    assert verdicts.keys() == {"fused_optimizer", "tf32"}
    assert verdicts["tf32"]["decision"] == "not_applicable" and verdicts["tf32"]["ratio"] is None
    assert verdicts["fused_optimizer"]["decision"] in ("kept", "rejected", "unsure")
    assert set(document["total"]) == {"ratio", "low", "high"} and document["step_ms"] > 0
    kept = verdicts["fused_optimizer"]["decision"] == "kept"
    assert (here / "slipstream.toml").exists() == kept
    assert "| as it is |" in (here / "out/tune.md").read_text()
    assert "relative to base" in done.stdout
    path = latest(here)
    assert path is not None and load_session(path).command == "tune"


def is_trial(process: psutil.Process) -> bool:
    try:
        return ENTRY in process.cmdline()
    except psutil.Error:  # it has ended
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="the processes are found through /proc")
def test_after_an_interruption_no_process_is_left_and_the_session_is_saved(here: Path, survivors: Any) -> None:
    (here / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "slipstream", "tune", "--budget", "60s", "--seconds", "4"]
    command += ["--only", "fused_optimizer,cpu_threads", "train.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True)
    assert process.stderr is not None
    checks = (line for line in process.stderr if line.startswith(" check     "))
    assert next(checks) and next(checks)  # the announcement and the result: the races begin
    while not any(map(is_trial, psutil.Process(process.pid).children())):
        time.sleep(0.05)  # other children only find out whether overlays are possible
    below = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the whole group too
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted; " in err and "slipstream tune --resume --budget 60s" in err and "Traceback" not in out + err
    assert not survivors(below)
    assert not (here / "slipstream.toml").exists() and latest(here) is not None


@pytest.mark.parametrize("kept", [True, False])
def test_a_terminated_tuning_says_what_was_kept_and_how_to_continue(
    here: Path, kept: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    request = Request(["train.py"])
    journal = journal_of(request.script)

    def end(_: Request) -> int:
        if kept:
            journal.parent.mkdir(parents=True)
            journal.write_text("{}\n{}\n")
        raise EndedBySignal(signal.SIGTERM)

    monkeypatch.setattr("slipstream.cli.tune._tune", end)
    assert tune_until_interrupted(request) == 143
    [line] = capsys.readouterr().err.splitlines()
    assert (
        line.startswith("slipstream: ended by SIGTERM; ")
        and ("add --resume" if kept else "run the same command") in line
    )
    assert (os.path.relpath(journal) in line) == kept


def test_the_recipe_is_written_to_the_given_file(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    request = Request(["train.py"], recipe_path=Path("recipes/cpu.toml"), json_path=Path("t.json"))
    assert _give(session, request, "") == 0
    file = read_recipe(Path("recipes/cpu.toml"))
    assert session.tuning is not None and file.recipe == session.tuning.recipe
    assert file.base_step_ms == session.tuning.base_step_ms and file.script == ["train.py"]
    out = capsys.readouterr().out
    assert "Wrote recipes/cpu.toml. Train with it: slipstream run --recipe recipes/cpu.toml train.py" in out
    assert "Saved as .slipstream/sessions/" in out


def test_without_a_kept_technique_no_recipe_is_written(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    assert session.tuning is not None
    nothing = msgspec.structs.replace(session.tuning, recipe=Recipe(), total=None)
    session = msgspec.structs.replace(session, tuning=nothing)
    assert _give(session, Request(["train.py"]), "") == 0
    assert not Path("slipstream.toml").exists()
    assert "Nothing was kept, so no slipstream.toml was written." in capsys.readouterr().out
    Path("slipstream.toml").write_text("by hand")
    assert _give(session, Request(["train.py"]), "") == 0
    assert Path("slipstream.toml").read_text() == "by hand"
    assert "The existing file was not changed." in capsys.readouterr().out


def test_an_interrupted_tuning_saves_its_session_and_says_how_to_continue(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    assert session.tuning is not None
    proved = session.tuning.recipe
    broken = msgspec.structs.replace(
        session.tuning, is_complete=False, was_interrupted=True, recipe=Recipe(), total=None, candidate=proved
    )
    assert _give(msgspec.structs.replace(session, tuning=broken), Request(["train.py"]), "2 kept") == 130
    assert not Path("slipstream.toml").exists() and latest() is not None
    assert (
        "interrupted; 2 kept so far. To continue from there: slipstream tune --resume train.py"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("is_proved", [True, False])
def test_a_tuning_that_ended_early_writes_what_was_proved(
    session: Session, capsys: pytest.CaptureFixture[str], is_proved: bool
) -> None:
    assert session.tuning is not None and session.tuning.recipe.choices
    early = msgspec.structs.replace(session.tuning, is_complete=False)
    if not is_proved:
        early = msgspec.structs.replace(early, recipe=Recipe(), total=None, candidate=early.recipe)
    assert _give(msgspec.structs.replace(session, tuning=early), Request(["train.py"]), "") == 0
    assert Path("slipstream.toml").exists() == is_proved
    nothing = "Nothing was proved yet, so no slipstream.toml was written. Continue: slipstream tune --resume train.py"
    assert (nothing in capsys.readouterr().out) != is_proved


def test_the_command_that_continues_repeats_the_options(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    assert session.tuning is not None
    early = msgspec.structs.replace(
        session.tuning, is_complete=False, recipe=Recipe(), total=None, candidate=session.tuning.recipe
    )
    options = ["--recipe", "recipes/cpu.toml", "--without", "compile"]
    request = Request(["train.py"], recipe_path=Path("recipes/cpu.toml"), options=["--resume", *options])
    assert _give(msgspec.structs.replace(session, tuning=early, options=request.options), request, "") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("slipstream tune --resume --recipe recipes/cpu.toml --without compile train.py") == 2


def test_quiet_prints_the_summary_and_the_table(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    assert _give(session, Request(["train.py"], quiet=True), "") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "as fast" in lines[0] and lines[-1].startswith(" ceiling")


def test_a_format_that_cannot_be_written_does_not_prevent_the_others(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    request = Request(["train.py"], json_path=Path("train.py/x.json"), markdown_path=Path("t.md"))
    assert _give(session, request, "") == 2
    assert Path("slipstream.toml").exists() and Path("t.md").exists()
    assert "'train.py'" in capsys.readouterr().err


def test_report_shows_a_tuning_again(session: Session) -> None:
    save_session(session)
    again = CliRunner().invoke(slipstream, ["report", "--markdown", "again.md", "--json", "again.json"])
    assert again.exit_code == 0, again.output
    assert "1.61x as fast" in again.output and "workers=2" in again.output
    assert Path("again.md").read_text().startswith("**")
    assert json.loads(Path("again.json").read_text())["total"]["ratio"] == 1.61
    save_session(made_session())
    os.utime(latest() or "", (2**31, 2**31))
    refused = CliRunner().invoke(slipstream, ["report", "--markdown", "-"])
    assert refused.exit_code == 2 and "only a tuning has a table" in refused.output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--budget", "soon", "train.py"], "'soon' is not a duration. Write it like 90s, 5m or 1h."),
        (["--budget", "-5m", "train.py"], "'-5m' is not a duration"),
        (["--budget", "0s", "train.py"], "'0s' is not a duration"),
        (["--only", "warp_drive", "train.py"], "there is no technique 'warp_drive'; the techniques are: "),
        (["--without", "nothing", "train.py"], "there is no technique 'nothing'"),
        (["--allow", "anything", "train.py"], "identical"),
        (["missing.py"], "There is no file 'missing.py'"),
        (["--bugdet", "5m", "train.py"], "'--budget'"),
        (["--recipe", ".", "train.py"], "is a directory"),
        ([], "Which script?"),
    ],
)
def test_bad_input_gives_a_message_and_exit_code_2(session: Session, args: list[str], words: str) -> None:
    done = CliRunner().invoke(slipstream, ["tune", *args])
    assert done.exit_code == 2
    assert words in " ".join(done.output.split()) and "Traceback" not in done.output


def test_several_ranks_and_slipstream_disable_are_refused(session: Session) -> None:
    ranks = CliRunner(env={"WORLD_SIZE": "2"}).invoke(slipstream, ["tune", "train.py"])
    assert ranks.exit_code == 2 and "one of 2 ranks" in ranks.output
    off = CliRunner(env={"SLIPSTREAM_DISABLE": "1"}).invoke(slipstream, ["tune", "train.py"])
    assert off.exit_code == 2 and "SLIPSTREAM_DISABLE" in off.output


def test_help_has_the_main_facts() -> None:
    text = CliRunner().invoke(slipstream, ["tune", "--help"]).output
    for piece in (
        "slipstream tune --budget 15m --markdown table.md train.py",
        "--resume",
        "--allow",
    ):
        assert piece in text
    overview = CliRunner().invoke(slipstream, ["--help"]).output
    assert "slipstream tune train.py" in overview and "selftest" in overview


def test_a_script_that_fails_is_not_tuned(here: Path) -> None:
    (here / "train.py").write_text("raise SystemExit(7)")
    command = [sys.executable, "-m", "slipstream", "tune", "--seconds", "1", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 7
    assert "before any step" in done.stdout and "Traceback" not in done.stderr


def test_a_script_that_raises_in_its_training_is_not_tuned(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = msgspec.structs.replace(session, ending=Ending("interrupted", 130, 2.0))
    assert show_failed_check(broken) == 130
    assert capsys.readouterr() == ("", "slipstream: interrupted during the check; nothing was tuned.\n")
    raised = msgspec.structs.replace(session, ending=Ending("raised", 1, 2.0))
    assert show_failed_check(raised) == 1
    said = capsys.readouterr()
    assert f"ended after {len(session.steps)} steps with exit code 1" in said.err and "nothing was tuned" in said.err
    assert said.out == ""
