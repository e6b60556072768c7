"""slipstream history, slipstream compare, and --baseline of slipstream check. They need only session files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from slipstream.cli.group import Refused, slipstream
from slipstream.cli.options import EXIT_SLOWER, SpeedGate, judge, read_gate
from slipstream.diagnose import diagnose
from slipstream.records import Choice, Fitting, Recipe, Session, Speed, Tuning
from slipstream.store.sessions import load_session, save_session
from slipstream.testing.made_sessions import made_environment, made_footprint, made_session

replace = msgspec.structs.replace


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "150")
    tuning = Tuning(32.0, 1000.0, total=Speed(1.5, 1.4, 1.6), recipe=Recipe((Choice("workers", 2),)))
    sessions = [
        diagnose(made_session()),
        replace(diagnose(made_session()), script=["[red]evil\x1b[2J.py"], command="tune", tuning=tuning),
        diagnose(made_session(input_ms=30.0)),
    ]
    paths = [save_session(session) for session in sessions]
    for number, path in enumerate(paths):
        os.utime(path, (1_800_000_000 + number,) * 2)
    return paths


def call(*words: str) -> Result:
    return CliRunner().invoke(slipstream, list(words))


def test_history_lists_newest_first_and_escapes(saved: list[Path]) -> None:
    shown = call("history").output
    assert [line.split()[0] for line in shown.splitlines()[1:4]] == [path.stem for path in reversed(saved)]
    assert "1.50x (1.40–1.60)" in shown and "workers=2" in shown and "\x1b[2J" not in shown and "[red]evil" in shown
    assert "62 ms" in shown and "32 ms" in shown
    assert "The newest 1 session" in call("history", "--limit", "1").output
    only = call("history", "evil").output
    assert "evil" in only and "train.py" not in only
    told = json.loads(call("history", "--all", "--json").output)
    assert [one["name"] for one in told["sessions"]] == [path.stem for path in reversed(saved)]
    missing = call("history", "nothing.py")
    assert missing.exit_code == 2 and "No session of 'nothing.py'" in missing.output


def test_history_shows_the_results_of_memory_and_of_a_fit(saved: list[Path]) -> None:
    observed = replace(made_session(), command="memory", footprints=[made_footprint(32, 60_000_000)])
    fitting = Fitting(2**30, "--memory-limit", "cpu", 32, True, largest=1372)
    held = replace(fitting, own_fits=False, largest=None, recipe=Recipe((Choice("checkpointing", "half"),)))
    for session in (observed, *(replace(made_session(), command="tune", fitting=one) for one in (fitting, held))):
        save_session(session)
    shown = call("history").output
    assert "peak 76 MB" in shown and "batch of 1,372 fits" in shown and "fits with checkpointing=half" in shown
    compared = call("compare").output
    assert saved[2].stem in compared and saved[0].stem in compared, "compare skips sessions of memory and of a fit"


def damaged(data: bytes, how: str) -> bytes:
    content = msgspec.msgpack.decode(data)
    if how == "utf8":
        return data.replace(content["command"].encode(), b"\xff" * len(content["command"]))
    if how == "nested":
        assert data[0] == 0xDE  # a map with a length of two bytes
        number = int.from_bytes(data[1:3], "big") + 1
        return b"\xde" + number.to_bytes(2, "big") + data[3:] + b"\xa4evil" + b"\x91" * 200_000 + b"\xc0"
    changed = {
        "huge": lambda: content | {"summary": content["summary"] | {"num_steps": 2**64 - 1}},
        "year 9999": lambda: content | {"created": "9999-12-31T23:59:59-23:59"},
        "older, wrong types": lambda: content | {"schema": 1, "notes": [1], "tuning": [1, 2]},
        "empty": dict,
    }
    return msgspec.msgpack.encode(changed[how]())


@pytest.mark.parametrize("how", ["utf8", "nested", "huge", "year 9999", "older, wrong types", "empty"])
def test_one_bad_session_does_not_hide_the_others(saved: list[Path], how: str) -> None:
    """The newest session is damaged."""
    saved[2].write_bytes(damaged(saved[2].read_bytes(), how))
    os.utime(saved[2], (1_800_000_009,) * 2)
    for words in (["history"], ["history", "--json"]):
        shown = call(*words)
        assert shown.exit_code == 0 and all(path.stem in shown.output for path in saved), shown.output
    for words in (["report"], ["report", str(saved[2])], ["compare"], ["patch", "train.py"]):
        shown = call(*words)
        assert shown.exit_code in (0, 2) and isinstance(shown.exception, SystemExit | None), shown.output
        assert shown.exit_code == 0 or shown.output.startswith("slipstream: "), shown.output
    assert save_session(made_session()).is_file()


def test_history_with_things_that_are_no_sessions(saved: list[Path]) -> None:
    folder = saved[0].parent
    (folder / "a.msgpack").mkdir()
    os.mkfifo(folder / "b.msgpack")
    (folder / "c.msgpack").symlink_to("/dev/zero")
    (folder / os.fsdecode(b"\xff.msgpack")).write_bytes(saved[0].read_bytes())
    (folder / "bad.msgpack").write_bytes(b"nonsense")
    shown = call("history")
    assert shown.exit_code == 0 and "1 file could not be read as a session: bad" in shown.output
    for name in ("a", "b", "c"):
        refused = call("report", str(folder / f"{name}.msgpack"))
        assert refused.exit_code == 2 and isinstance(refused.exception, SystemExit), refused.output


def test_compare_by_default_and_by_name(saved: list[Path]) -> None:
    shown = " ".join(call("compare").output.split())
    assert "The step takes 1.92x as long" in shown and "mostly in input" in shown and "slipstream tune" in shown
    told = json.loads(call("compare", saved[2].stem, str(saved[0]), "--json").output)
    assert told["outcome"] == "faster" and told["before"] == saved[2].stem
    refused = call("compare", "nonsense", "latest")
    assert refused.exit_code == 2 and "is no session" in refused.output


@pytest.mark.parametrize(
    ("forward_ms", "cpu", "code", "words"),
    [
        (10.0, "made", 0, "passed: 1.00x as fast"),
        (11.0, "made", 0, "passed: 0.97x"),
        (14.0, "made", EXIT_SLOWER, "FAILED: 0.89x as fast"),
        (14.0, "another", EXIT_SLOWER, "on another machine"),
    ],
)
def test_the_gate(capsys: pytest.CaptureFixture[str], forward_ms: float, cpu: str, code: int, words: str) -> None:
    environment = replace(made_environment(), cpu=cpu)
    session = diagnose(made_session(forward_ms=forward_ms, environment=environment))
    assert judge(SpeedGate(diagnose(made_session()), "base", 0.95), session) == code
    said = capsys.readouterr().out
    assert words in said and said.count("\n") == 1


def test_the_gate_does_not_fail_a_build_on_a_busy_machine(capsys: pytest.CaptureFixture[str]) -> None:
    session = diagnose(made_session(forward_ms=14.0))
    assert session.summary is not None
    ceilings = replace(session.summary.ceilings, compute_ms=30.0, compute_cpu_ms=12.0)
    session = replace(session, summary=replace(session.summary, ceilings=ceilings))
    assert judge(SpeedGate(diagnose(made_session()), "base", 0.95), session) == 0
    said = capsys.readouterr().out
    assert "unsure, so the check does not fail: the machine was busy during this session." in said
    assert "0.89x as fast" in said and said.count("\n") == 1


def test_the_gate_does_not_fail_a_build_on_seven_steps(capsys: pytest.CaptureFixture[str]) -> None:
    gate = SpeedGate(diagnose(made_session()), "base", 0.95)
    assert judge(gate, diagnose(made_session(forward_ms=100.0, num_steps=7))) == 0
    assert "this session has only 7 undisturbed steps" in capsys.readouterr().out
    assert judge(gate, diagnose(made_session(forward_ms=100.0, num_steps=8))) == EXIT_SLOWER


def test_a_gate_without_steps_fails_and_a_bad_baseline_is_refused(saved: list[Path]) -> None:
    empty: Session = replace(load_session(saved[0]), summary=None)
    assert judge(SpeedGate(load_session(saved[0]), "base", 0.95), empty) == EXIT_SLOWER
    path = save_session(empty)
    with pytest.raises(Refused, match="has no training step"):
        read_gate(str(path), 0.9)
    gate = read_gate(saved[0].stem, None)
    assert gate is not None and gate.least == 0.95
    Path("train.py").write_text("raise SystemExit('it must not run')")
    assert "give --baseline" in call("check", "--fail-under", "0.9", "train.py").output
    refused = call("check", "--baseline", "nonsense", "train.py")
    assert refused.exit_code == 2 and "is no session" in refused.output


def test_it_needs_no_torch(saved: list[Path]) -> None:
    code = "import sys; sys.modules['torch'] = None; from slipstream.cli import main; main()"
    for words in (["history"], ["compare"], ["report", "--quiet"]):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "ms" in done.stdout, done.stderr
