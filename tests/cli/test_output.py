"""With `-` as a file, standard output has that document and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner

from slipstream.cli import check, report
from slipstream.cli.options import SpeedGate
from slipstream.cli.output import OutputFormats, aside, give
from slipstream.diagnose import diagnose
from slipstream.records import Session
from slipstream.store.sessions import save_session
from slipstream.testing.made_sessions import made_session
from slipstream.testing.made_verdicts import tuned


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.chdir(tmp_path)
    return tuned(diagnose(made_session(input_ms=40.0)))


@pytest.mark.parametrize(("name", "begins"), [("json_path", "{"), ("markdown_path", "**"), ("html", "<!doctype html>")])
def test_only_the_document_is_on_standard_output(
    session: Session, capfd: pytest.CaptureFixture[str], name: str, begins: str
) -> None:
    value = "-" if name == "html" else Path("-")
    assert (
        give(session, OutputFormats(**{name: value}), "one sentence", lambda: click.echo("Wrote slipstream.toml"))
        is False
    )
    out, err = capfd.readouterr()
    assert out.startswith(begins)
    for told in ("relative to base", "Wrote slipstream.toml", "Saved as", "slipstream: one sentence"):
        assert told in err, "the report and the rest are on standard error"
        assert f" {told}" not in out or told == "relative to base"
    if name == "json_path":
        assert json.loads(out)["step_ms"] > 0


def test_messages_about_other_files_go_to_standard_error(session: Session, capfd: pytest.CaptureFixture[str]) -> None:
    forms = OutputFormats(json_path=Path("-"), html="page.html", no_open=True)
    assert give(session, forms) is True
    out, err = capfd.readouterr()
    assert json.loads(out) and "Wrote page.html" in err and Path("page.html").is_file()


def test_output_of_child_processes_is_redirected_too(capfd: pytest.CaptureFixture[str]) -> None:
    program = [sys.executable, "-c", "print('from the script')"]
    with aside():
        subprocess.run(program, check=True)
        os.write(1, b"from us\n")
    os.write(1, b"the document\n")
    out, err = capfd.readouterr()
    assert out == "the document\n" and err.split("\n")[:2] == ["from the script", "from us"]
    with aside(False):
        os.write(1, b"as ever\n")
    assert capfd.readouterr().out == "as ever\n"


def test_the_gate_prints_to_standard_error(session: Session, capfd: pytest.CaptureFixture[str]) -> None:
    seen = msgspec.structs.replace(session, command="check", tuning=None)
    result = check.CheckRequest(json_path=Path("-"), gate=SpeedGate(seen, "before", 0.95))
    assert check._give(seen, result) == 0
    out, err = capfd.readouterr()
    assert json.loads(out) and "before" in err


@pytest.mark.parametrize(
    ("args", "begins"),
    [
        (["--json", "-"], "{"),
        (["--markdown", "-"], "**"),
        (["--trace", "-"], "{"),
        (["--json", "-", "--trace", "trace.json"], "{"),
    ],
)
def test_report(session: Session, args: list[str], begins: str) -> None:
    saved = save_session(session)
    done = CliRunner().invoke(report.command, [str(saved), *args])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(begins) and "Wrote" not in done.stdout
    if begins == "{":
        json.loads(done.stdout)


def test_two_documents_are_refused(session: Session) -> None:
    saved = save_session(session)
    done = CliRunner().invoke(report.command, [str(saved), "--json", "-", "--markdown", "-"])
    assert done.exit_code == 2 and "only one document" in done.output and "{" not in done.stdout
