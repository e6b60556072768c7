"""slipstream check: ride along a script and say where its time goes."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from slipstream.cli.commands import (
    SCRIPT_SETTINGS,
    Action,
    Refused,
    is_switched_off,
    num_ranks,
    read_script,
    script_argument,
)
from slipstream.cli.gate import Gate, gate_options, judge, read_gate
from slipstream.cli.html_option import HtmlCommand, html_options, typed_options

if TYPE_CHECKING:
    from slipstream.records import Session


@click.command("check", cls=HtmlCommand, context_settings=SCRIPT_SETTINGS, options_metavar="[OPTIONS]")
@click.option("--steps", type=click.IntRange(min=1), default=None, metavar="N", help="Stop after about N steps.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Stop about S seconds after the first step.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), metavar="FILE", help="Write the result as JSON.")
@html_options
@gate_options
@click.option(
    "--torch-profile",
    type=click.Path(path_type=Path, resolve_path=True),
    metavar="FILE",
    help="Keep torch's own profile of the observed step, a Chrome trace; .gz packs it.",
)
@click.option("--quiet", is_flag=True, help="The verdict and one line for each finding; no live line.")
@click.option("--no-overlay", is_flag=True, help="Let the script write to the real file system.")
@click.option("--forget-downloads", is_flag=True, help="First delete what earlier checks downloaded and kept.")
@script_argument
def command(
    steps: int | None,
    seconds: float,
    json_path: Path | None,
    html: str | None,
    no_open: bool,
    baseline: str | None,
    fail_under: float | None,
    torch_profile: Path | None,
    quiet: bool,
    no_overlay: bool,
    forget_downloads: bool,
    is_module: bool,
    script: tuple[str, ...],
) -> Action | None:
    """Ride along SCRIPT for about a minute and say where its time goes, which line is to blame, and what to do.

    \b
    slipstream check train.py --epochs 90
    slipstream check --steps 200 -m package.train --config small.yaml
    slipstream check --seconds 30 --json result.json train.py
    slipstream check --html train.py                   and a report to look at
    slipstream check --baseline main --fail-under 0.95 train.py      for a build server

    Options of slipstream come before the script; everything after it is the script's own. The script runs unchanged
    and is stopped when enough was seen. Files that it writes are thrown away.
    """
    if forget_downloads:
        from slipstream.runner.downloads import forget_downloads as forget

        forget(Path.cwd())
        if not script:
            return None
    typed = read_script(script, is_module)
    if is_switched_off():
        from slipstream.runner.launch import become_python

        return functools.partial(become_python, typed)
    if num_ranks() > 1:
        raise Refused(
            f"check rides with one process, and this is one of {num_ranks()} ranks (WORLD_SIZE). Check the script"
            " without torchrun, on one device; slipstream run passes through."
        )
    result = Result(typed_options(), json_path, html, no_open, quiet, read_gate(baseline, fail_under))
    profile = str(torch_profile or "")
    return functools.partial(_check_until_interrupted, typed, steps or 0, seconds, not no_overlay, profile, result)


def _check_until_interrupted(*order: Any) -> int:
    """Ctrl-C while the script rides is the script's; before and after that it is ours."""
    try:
        return _check(*order)
    except KeyboardInterrupt:
        return 130


class Result(msgspec.Struct, frozen=True):
    """How the user wants it."""

    options: list[str]  # as typed
    json_path: Path | None
    html: str | None
    no_open: bool
    quiet: bool
    gate: Gate | None = None


def _check(script: list[str], num_steps: int, seconds: float, use_overlay: bool, profile: str, result: Result) -> int:
    from slipstream.diagnose import diagnose
    from slipstream.report.live import LiveLine
    from slipstream.runner.storage import save_session
    from slipstream.runner.supervise import Order, RefusalError, supervise

    try:
        order = Order(script, num_steps, seconds, use_overlay, profile=profile)
        session = supervise(order, None if result.quiet else LiveLine())
    except RefusalError as error:
        click.echo(f"slipstream: {error}", err=True)
        return 2
    try:
        session = diagnose(msgspec.structs.replace(session, options=result.options))
    except Exception:
        save_session(session)  # a fault of ours must not cost the user the ride
        raise
    return _give(session, result)


def _give(session: Session, result: Result) -> int:
    """In every form that was asked for; one that fails does not cost the others."""
    from slipstream.cli.showing import export, export_html, noting, show, show_path
    from slipstream.runner.outcome import exit_code, remark
    from slipstream.runner.storage import save_session

    sentences, path = [remark(session)], None
    with noting(sentences):
        show(session, quiet=result.quiet)
    with noting(sentences):
        path = save_session(session)
        if not result.quiet:
            show_path(path)
    if result.json_path is not None:
        with noting(sentences):
            export(session, result.json_path)
    if result.html is not None:
        with noting(sentences):
            export_html(session, result.html, path, no_open=result.no_open, quiet=result.quiet)
    for sentence in filter(None, sentences):
        click.echo(f"slipstream: {sentence}", err=True)
    code = exit_code(session) or (2 if any(sentences) else 0)
    return code or (judge(result.gate, session) if result.gate is not None else 0)
