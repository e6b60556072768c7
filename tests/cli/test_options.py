"""`--html` never overwrites the word that follows it by mistake, and the page opens only on a desktop."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner

from slipstream.cli import check, memory, report, tune
from slipstream.cli.options import BESIDE, typed_options
from slipstream.cli.output import is_desktop
from slipstream.diagnose import diagnose
from slipstream.store.sessions import save_session
from slipstream.testing.made_sessions import made_session


@pytest.mark.parametrize(
    ("args", "html", "script"),
    [
        (["train.py"], None, ("train.py",)),
        (["--html", "train.py", "--steps", "3"], BESIDE, ("train.py", "--steps", "3")),
        (["--html", "out/page.html", "train.py"], "out/page.html", ("train.py",)),
        (["--html", "-", "train.py"], "-", ("train.py",)),
        (["--html=page.htm", "train.py"], "page.htm", ("train.py",)),
        (
            ["--seconds", "5", "--html", "-m", "pkg.train", "--html", "x.html"],
            BESIDE,
            ("pkg.train", "--html", "x.html"),
        ),
        (["train.py", "--html", "x.html"], None, ("train.py", "--html", "x.html")),
        (["--json", "--html", "train.py"], None, ("train.py",)),
    ],
)
def test_the_script_is_never_mistaken_for_the_file(args: list[str], html: str | None, script: tuple[str, ...]) -> None:
    for command in (check.command, tune.command, memory.command):
        context = command.make_context(command.name, list(args))
        assert (context.params["html"], context.params["script"]) == (html, script)


def test_a_file_that_is_not_html_is_refused() -> None:
    for args in (["--html=train.py", "train.py"], ["--html=", "train.py"]):
        with pytest.raises(click.BadParameter, match=r"end in \.html"):
            check.command.make_context("check", args)


def test_options_are_stored_as_typed() -> None:
    context = check.command.make_context("check", ["--seconds", "5", "--html", "-m", "pkg.train", "--html", "-m"])
    with context:
        assert typed_options() == ["--seconds", "5", "--html"]


def test_report_writes_next_to_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    session = msgspec.structs.replace(diagnose(made_session(input_ms=40.0)), options=["--seconds", "5"])
    saved = save_session(session)
    runner = CliRunner()
    done = runner.invoke(report.command, ["--html", str(saved), "--quiet"])
    assert done.exit_code == 0, done.output
    page = saved.with_suffix(".html").read_text(encoding="utf-8")
    assert "slipstream check --seconds 5 train.py" in page
    done = runner.invoke(report.command, ["--html", "look/page.html"])
    assert done.exit_code == 0 and "Wrote look/page.html" in done.output
    assert (tmp_path / "look/page.html").read_text(encoding="utf-8") == page
    done = runner.invoke(report.command, [str(saved), "--html", "-"])
    assert done.output.startswith("<!doctype html>"), "standard output has only the page"
    (tmp_path / "file").write_text("")
    done = runner.invoke(report.command, ["--html", "file/page.html"])
    assert done.exit_code == 2 and "cannot be written" in done.output


@pytest.mark.parametrize(
    ("environment", "platform", "has_terminal", "expected"),
    [
        ({"DISPLAY": ":0"}, "linux", True, True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True, True),
        ({}, "linux", True, False),
        ({"DISPLAY": ":0"}, "linux", False, False),
        ({"DISPLAY": ":10", "SSH_CONNECTION": "1.2.3.4"}, "linux", True, False),
        ({"SSH_TTY": "/dev/pts/1"}, "darwin", True, False),
        ({"CI": "true"}, "darwin", True, False),
        ({}, "darwin", True, True),
        ({}, "win32", True, True),
    ],
)
def test_where_a_page_opens(environment: dict[str, str], platform: str, has_terminal: bool, expected: bool) -> None:
    assert is_desktop(environment, platform, has_terminal) is expected
