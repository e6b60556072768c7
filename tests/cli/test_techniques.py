"""slipstream techniques and slipstream selftest."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from slipstream.cli.group import slipstream
from slipstream.cli.selftest import _test
from slipstream.techniques._core.catalogue import catalogue
from slipstream.testing.made_sessions import made_environment
from slipstream.testing.selftest import SelftestOutcome, SelftestPart, run_part, write_report


def test_the_list_and_one_technique() -> None:
    everything = CliRunner().invoke(slipstream, ["techniques"]).output
    assert all(f" {ident} " in everything for ident in catalogue())
    card = CliRunner().invoke(slipstream, ["techniques", "nothing"]).output
    assert "Nothing, the A/A control" in card and "identical: the same bits" in card
    unknown = CliRunner().invoke(slipstream, ["techniques", "warp_drive"])
    assert unknown.exit_code == 2 and "There is no technique 'warp_drive'. The techniques are: " in unknown.output


def test_the_seams_pass_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.md"
    assert _test("cpu", ["seams"], report) == 0, report.read_text()
    assert "All tests passed on cpu." in capsys.readouterr().out
    text = report.read_text()
    assert "| seams | the losses are the same | yes |" in text
    assert '"num_usable"' in text, "the report has the environment"


def test_a_missing_device_ends_the_selftest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _test("warp:0", ["seams", "nothing"], tmp_path / "report.md") == 1
    assert "nothing" not in capsys.readouterr().out, "no other part is tested"
    assert "**seams**, runs:" in (tmp_path / "report.md").read_text()


def test_a_part_that_crashes_or_hangs_is_an_outcome() -> None:
    [crashed] = run_part("warp_drive", "cpu").outcomes
    assert not crashed.is_ok and "no technique is called 'warp_drive'" in crashed.detail
    [hung] = run_part("seams", "cpu", limit_s=0.01).outcomes
    assert not hung.is_ok and "still running" in hung.detail


def test_the_report_begins_with_what_failed() -> None:
    parts = [
        SelftestPart("a", [SelftestOutcome("x", True)]),
        SelftestPart("b", [SelftestOutcome("y", False, "1 | 2\n3")]),
    ]
    lines = write_report(made_environment(), "cpu", parts).splitlines()
    assert lines[2:5] == ["1 of 2 checks hold on `cpu`.", "", "- **b**, y: 1 \\| 2 3"]


def test_only_refuses_an_unknown_name(tmp_path: Path) -> None:
    done = CliRunner().invoke(slipstream, ["selftest", "--only", "warp_drive"])
    assert done.exit_code == 2 and "there is no 'warp_drive'; there are: seams" in " ".join(done.output.split())
