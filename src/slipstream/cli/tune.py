"""slipstream tune: race the techniques that apply to the script, and write a recipe that is proved faster and sound."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
import msgspec

from slipstream.cli.fit import fit_until_interrupted, read_limit
from slipstream.cli.group import (
    SCRIPT_SETTINGS,
    Action,
    Refused,
    is_switched_off,
    num_ranks,
    read_script,
    refuse_shortage,
    require_training,
    script_argument,
)
from slipstream.cli.options import (
    HtmlCommand,
    html_options,
    no_network_option,
    require_network_namespace,
    typed_options,
)
from slipstream.cli.output import OutputFormats, aside, give, refuse_two_on_stdout
from slipstream.records import NumericsClass
from slipstream.supervise.signals import EndedBySignal
from slipstream.workflows.tune import CHECK_S, check_names, journal_of, seconds_of

if TYPE_CHECKING:
    from slipstream.records import Session
    from slipstream.report.terminal.live_tune import LiveTune


def _read_duration(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        return seconds_of(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _read_names(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """Parses a comma-separated list of techniques."""
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    try:
        check_names(names)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None
    return names


class Request(OutputFormats, frozen=True):
    """The options of the command."""

    script: list[str]
    budget_s: float | None = None  # None: the start-up and the step time of the script determine the budget
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    allow: NumericsClass = "approximate"
    check_s: float = CHECK_S
    recipe_path: Path = Path("slipstream.toml")
    use_overlay: bool = True
    is_offline: bool = False
    finds_batch: bool = False
    is_resumed: bool = False
    is_patchable: bool = False
    limit_bytes: int = 0  # 0: the option was not given


@click.command(
    "tune",
    cls=HtmlCommand,
    context_settings=SCRIPT_SETTINGS,
    options_metavar="[OPTIONS]",
    short_help="Find what makes the script faster, and prove it.",
)
@click.option(
    "--budget",
    "budget_s",
    callback=_read_duration,
    default=None,
    metavar="TIME",
    help="The time for the races, such as 90s, 5m or 1h.  [default: follows from the script]",
)
@click.option("--resume", "is_resumed", is_flag=True, help="Continue the last tuning of this script from its journal.")
@click.option("--patchable", "is_patchable", is_flag=True, help="Try only what slipstream patch can write.")
@click.option("--only", callback=_read_names, default="", metavar="A,B", help="Try only these techniques.")
@click.option("--without", callback=_read_names, default="", metavar="A,B", help="Do not try these techniques.")
@click.option(
    "--allow",
    type=click.Choice(get_args(NumericsClass)),
    default="approximate",
    show_default=True,
    help="Keep no technique that changes results more than this. The choices go from strict to loose.",
)
@click.option(
    "--seconds",
    "check_s",
    type=click.FloatRange(min=1),
    default=CHECK_S,
    show_default=True,
    metavar="S",
    help="The length of the check before the races.",
)
@click.option(
    "--fit",
    "finds_batch",
    is_flag=True,
    help="Find the largest batch that fits and the fastest one; race nothing else.",
)
@click.option(
    "--memory-limit",
    "limit_bytes",
    callback=read_limit,
    default=None,
    metavar="SIZE",
    help="Make the script's batch fit in SIZE, such as 6GiB. With --fit: find the batches that fit in SIZE.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), metavar="FILE", help="Write the result as JSON.")
@click.option("--markdown", "markdown_path", type=click.Path(path_type=Path), metavar="FILE", help="Write the table.")
@click.option(
    "--recipe",
    "recipe_path",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    default=Path("slipstream.toml"),
    show_default=True,
    metavar="FILE",
    help="The file for the recipe.",
)
@html_options
@click.option("--quiet", is_flag=True, help="Print only the summary and the table; show no progress.")
@click.option("--no-overlay", is_flag=True, help="Let the script write to the real file system.")
@no_network_option
@script_argument
def command(no_overlay: bool, no_network: bool, is_module: bool, script: tuple[str, ...], **options: Any) -> Action:
    """Find out which techniques make SCRIPT faster, and write them to slipstream.toml.

    The recipe is kept only if it is proved faster and its numerics are sound. Use this command once for a training,
    and again after larger changes. Afterwards, train with the result: slipstream run train.py --epochs 90

    \b
    slipstream tune train.py --epochs 90
    slipstream tune --budget 15m --markdown table.md train.py
    slipstream tune --html train.py                    with a report for the browser
    slipstream tune --only workers,compile -m package.train --config small.yaml
    slipstream tune --allow redrawn train.py           nothing that lowers precision
    slipstream tune --resume train.py                  continue the last tuning
    slipstream tune --fit train.py                     the largest batch that fits, and the fastest
    slipstream tune --memory-limit 6GiB train.py       make this batch fit, at the least cost

    After a short check, slipstream starts several copies of the script, each with another recipe. The copies take
    turns of a few steps. slipstream compares their speed turn by turn, and their losses and gradients step by step.
    Files that the copies write are discarded.

    After Ctrl-C, and where the time did not suffice for a proof, --resume continues. slipstream techniques lists what
    can be tried.

    Options of slipstream come before the script; everything after the script's name is passed to the script.
    """
    typed = read_script(script, is_module)
    if is_switched_off():
        raise Refused("SLIPSTREAM_DISABLE is set, so there is nothing to tune. Unset it.")
    if num_ranks() > 1:
        raise Refused(
            f"slipstream tune starts the script itself, in one process, and this is one of {num_ranks()} ranks"
            " (WORLD_SIZE). Tune the script without torchrun, on one device."
        )
    require_training("slipstream tune")
    refuse_two_on_stdout(*(options[name] for name in ("json_path", "markdown_path", "html")))
    require_network_namespace(no_network)
    request = Request(typed, use_overlay=not no_overlay, is_offline=no_network, options=typed_options(), **options)
    if request.finds_batch or request.limit_bytes:
        return functools.partial(fit_until_interrupted, request)
    return functools.partial(tune_until_interrupted, request)


def tune_until_interrupted(request: Request) -> int:
    """Runs the tuning and returns the exit code. During the check, Ctrl-C goes to the script. After that, Ctrl-C ends
    the command."""
    try:
        return _tune(request)
    except OSError as error:
        return refuse_shortage(error)
    except KeyboardInterrupt:
        _say("interrupted; no file was changed. To continue with what was found so far, add --resume.")
        return 130
    except EndedBySignal as ended:
        _say(f"ended by {ended.name}; {_kept_in_journal(request)}")
        return ended.exit_code


def _kept_in_journal(request: Request) -> str:
    journal = journal_of(request.script)
    no_recipe = f"no {request.recipe_path} was written"
    has_verdicts = journal.is_file() and len(journal.read_bytes().splitlines()) > 1  # the first line is the header
    if not has_verdicts:
        return f"nothing was found yet, and {no_recipe}. To start again, run the same command."
    kept = f"what was found so far is kept in {os.path.relpath(journal)}, and {no_recipe}."
    return f"{kept} To continue from there, add --resume."


def _tune(request: Request) -> int:
    from slipstream.report.terminal.live_check import LiveCheck
    from slipstream.report.terminal.live_tune import LiveTune
    from slipstream.supervise.trial_process import RefusalError
    from slipstream.tuning.options import TuneOptions
    from slipstream.tuning.trials import RaceError
    from slipstream.workflows.tune import NothingToTuneError, tune_script

    journal = str(journal_of(request.script))
    order = TuneOptions(
        request.budget_s,
        request.only,
        request.without,
        request.allow,
        journal,
        request.is_resumed,
        request.is_patchable,
    )
    live = LiveTune(sys.stderr, quiet=request.quiet)
    try:
        with live, aside(request.takes_stdout):
            if not sys.stderr.isatty():  # on a terminal, the check shows its own progress line
                live.start()
                live.note(f"check     about {request.check_s:.0f} s")
            session = tune_script(
                request.script,
                order,
                live,
                check_s=request.check_s,
                use_overlay=request.use_overlay,
                is_offline=request.is_offline,
                line=None if request.quiet else LiveCheck(),
                on_check=functools.partial(_show_check, live),
            )
    except NothingToTuneError as error:
        with aside(request.takes_stdout):
            return show_failed_check(error.session)
    except (RefusalError, RaceError) as error:
        _say(str(error))
        return 2
    return _give(msgspec.structs.replace(session, options=request.options), request, live.summary)


def _say(sentence: str) -> None:
    click.echo(f"slipstream: {sentence}", err=True)


def _show_check(live: LiveTune, session: Session) -> None:
    from slipstream.report.text.check import verdict

    if sys.stderr.isatty():
        live.start()
    live.note(f"check     {verdict(session)}")


def show_failed_check(session: Session) -> int:
    """Prints why nothing was tuned after the check, and returns the exit code. If the check saw no training, the words
    are those of `check`.

    If the script failed after some steps, its traceback was printed before, and one line says that the script ended.
    """
    from slipstream.cli.output import show
    from slipstream.launch.target import display_name
    from slipstream.numbers import plural
    from slipstream.supervise.exit_status import exit_code, remark

    sentence = remark(session)
    if session.ending.reason == "interrupted":
        sentence = "interrupted during the check; nothing was tuned."
    elif sentence or not session.steps:
        show(session, quiet=True)
    else:
        after = f"after {plural(len(session.steps), 'step')} with exit code {session.ending.exit_code}"
        sentence = (
            f"{display_name(session.script)} ended {after}, as it would without slipstream, so nothing was tuned."
        )
    if sentence:
        _say(sentence)
    return exit_code(session) or 2


def _give(session: Session, request: Request, summary: str) -> int:
    is_given = give(session, request, before_saving=functools.partial(_write_recipe, session, request))
    if was_interrupted(session):
        so_far = f"{summary} so far" if summary else "nothing was found yet"
        _say(f"interrupted; {so_far}. To continue from there: {_resume_command(request)}")
        return 130
    return 0 if is_given else 2


def _write_recipe(session: Session, request: Request) -> None:
    from slipstream.cli.run import run_command
    from slipstream.recipe.file import write_recipe

    tuning, path = session.tuning, request.recipe_path
    assert tuning is not None
    if tuning.recipe.choices:  # a proved recipe is written even if the tuning was interrupted after the proof
        path.parent.mkdir(parents=True, exist_ok=True)
        write_recipe(path, tuning, session)
        if not request.quiet:
            click.echo(f"\n Wrote {path}. Train with it: {run_command(request.script, path)}")
    elif was_interrupted(session):
        return
    elif not tuning.is_complete or tuning.candidate.choices:
        click.echo(f"\n Nothing was proved yet, so no {path} was written. Continue: {_resume_command(request)}")
    elif not request.quiet:
        stays = " The existing file was not changed." if path.is_file() else ""
        click.echo(f"\n Nothing was kept, so no {path} was written.{stays}")


def _resume_command(request: Request) -> str:
    from slipstream.report.text.tune import resume_command

    return resume_command(request.script, request.options)


def was_interrupted(session: Session) -> bool:
    return session.tuning is not None and session.tuning.was_interrupted
