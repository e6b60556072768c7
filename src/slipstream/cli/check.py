"""slipstream check: observe a script while it trains and report where its time goes.

`slipstream memory` also uses `run_check`, which runs one trial and shows a progress line meanwhile.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from slipstream.cli.group import (
    SCRIPT_SETTINGS,
    Action,
    plain_python_instead,
    read_script,
    refuse_shortage,
    script_argument,
)
from slipstream.cli.options import (
    HtmlCommand,
    SpeedGate,
    gate_options,
    html_options,
    judge,
    no_network_option,
    read_gate,
    require_network_namespace,
    typed_options,
)
from slipstream.cli.output import OutputFormats, aside, give, refuse_two_on_stdout
from slipstream.records import Session
from slipstream.supervise.check import CheckOptions, supervise

if TYPE_CHECKING:
    from slipstream.records import Session


@click.command(
    "check",
    cls=HtmlCommand,
    context_settings=SCRIPT_SETTINGS,
    options_metavar="[OPTIONS]",
    short_help="Find where the time goes, and what would help.",
)
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
    help="Save torch's own profile of three steps as a Chrome trace; a name that ends in .gz is compressed.",
)
@click.option("--quiet", is_flag=True, help="Print only the verdict and one line for each finding; show no progress.")
@click.option("--no-overlay", is_flag=True, help="Let the script write to the real file system.")
@no_network_option
@click.option("--forget-downloads", is_flag=True, help="First delete the files that earlier checks downloaded.")
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
    no_network: bool,
    forget_downloads: bool,
    is_module: bool,
    script: tuple[str, ...],
) -> Action | None:
    """Observe SCRIPT for about a minute and report where its time goes.

    The report names the cause of each slowdown, the line of your code that is responsible, and what to do about it.
    Start here if you do not know why a training is slow.

    \b
    slipstream check train.py --epochs 90
    slipstream check --steps 200 -m package.train --config small.yaml
    slipstream check --seconds 30 --json result.json train.py

    The script runs unchanged and is stopped as soon as enough steps were observed. Files that it writes are discarded.

    Options of slipstream come before the script; everything after the script's name is passed to the script.

    \b
    With a report for the browser:
      slipstream check --html train.py
    On a build server, exit with 3 if the step is slower than at commit main:
      slipstream check --baseline main --fail-under 0.95 train.py
    """
    if forget_downloads:
        from slipstream.sandbox.downloads import forget_downloads as forget

        forget(Path.cwd())
        if not script:
            return None
    typed = read_script(script, is_module)
    if (action := plain_python_instead("check", typed)) is not None:
        return action
    refuse_two_on_stdout(json_path, html)
    result = CheckRequest(
        json_path=json_path,
        html=html,
        no_open=no_open,
        quiet=quiet,
        options=typed_options(),
        gate=read_gate(baseline, fail_under, typed),
    )
    require_network_namespace(no_network)
    order = CheckOptions(typed, steps or 0, seconds, not no_overlay, no_network, profile=str(torch_profile or ""))
    return functools.partial(_check_until_interrupted, order, result)


def _check_until_interrupted(order: CheckOptions, result: CheckRequest) -> int:
    """Runs the check and returns the exit code. While the script runs, Ctrl-C goes to the script. Before and after
    that, Ctrl-C ends the command."""
    try:
        return _check(order, result)
    except OSError as error:
        return refuse_shortage(error)
    except KeyboardInterrupt:
        return 130


class CheckRequest(OutputFormats, frozen=True):
    gate: SpeedGate | None = None


def _check(order: CheckOptions, result: CheckRequest) -> int:
    from slipstream.diagnose import diagnose
    from slipstream.store.sessions import save_session
    from slipstream.supervise.trial_process import RefusalError

    try:
        session = run_check(order, result)
    except RefusalError as error:
        click.echo(f"slipstream: {error}", err=True)
        return 2
    try:
        session = diagnose(session)
    except Exception:
        save_session(session)  # an error in slipstream must not lose what was measured
        raise
    return _give(session, result)


def _give(session: Session, result: CheckRequest) -> int:
    from slipstream.supervise.exit_status import exit_code, remark

    is_given = give(session, result, remark(session))
    code = exit_code(session) or (0 if is_given else 2)
    return code or (judge(result.gate, session, is_aside=result.takes_stdout) if result.gate is not None else 0)


def run_check(order: CheckOptions, forms: OutputFormats) -> Session:
    """Runs one trial of `check` or `memory` and returns its session, without a diagnosis. Raises RefusalError if the
    script was not run."""
    from slipstream.report.terminal.live_check import LiveCheck

    with aside(forms.takes_stdout):
        session = supervise(order, None if forms.quiet else LiveCheck())
    return msgspec.structs.replace(session, options=forms.options)
