"""slipstream machine saves its result, shows it again and as JSON, and refuses bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from slipstream.cli.group import slipstream
from slipstream.cli.machine import _test
from slipstream.machine.speedtest import run
from slipstream.records import Reading, SpeedTest
from slipstream.store.sessions import known_speedtest, load_speedtest, save_speedtest
from slipstream.testing.made_sessions import made_environment

TEST = SpeedTest(
    "2026-01-01T00:00:00+00:00",
    made_environment(),
    [
        Reading("disk_cold", 550.0, "MB/s"),
        Reading("decode_scaling", 0.9, "of one core each"),
        Reading("import_torch", 1700.0, "ms"),
        Reading("multiply_fp32", 60.0, "GFLOP/s"),
        Reading("multiply_bf16", 5.0, "GFLOP/s"),
    ],
    21.0,
    notes=["Decoding images was not measured: [bold]no."],
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_measures_saves_and_shows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(run.SpeedtestRun, "run", lambda self: TEST)  # other tests cover the measurements
    assert _test(True, Path.cwd(), False, False) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "disk, cold 550 MB/s 400 to 8,000" in shown and "90% each" in shown and "1.7 s up to 8 s" in shown
    assert "bf16 is 12x slower than fp32 on the CPU" in shown and "[bold]no." in shown
    assert load_speedtest() == TEST
    assert _test(False, Path.cwd(), True, True) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["readings"][0]["usual_low"] == 400 and told["remarks"] and told["environment"]["cpu"] == "made"


def test_a_saved_test_may_be_missing_or_damaged(capsys: pytest.CaptureFixture[str]) -> None:
    assert _test(False, Path.cwd(), False, True) == 2
    assert "Make one: slipstream machine" in capsys.readouterr().err
    save_speedtest(TEST).write_bytes(b"broken")
    assert _test(False, Path.cwd(), False, True) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert known_speedtest() is None, "a check continues without it"
    save_speedtest(TEST)
    assert known_speedtest() == TEST


def test_a_missing_folder_is_refused() -> None:
    done = CliRunner().invoke(slipstream, ["machine", "--folder", "nowhere"])
    assert done.exit_code == 2 and "nowhere" in done.output
