"""`tune --fit` and `tune --memory-limit`: parse the options, search for what fits in memory, and print the result."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

import click
import msgspec

from slipstream.cli.group import refuse_shortage
from slipstream.cli.output import aside, give
from slipstream.supervise.signals import EndedBySignal

if TYPE_CHECKING:
    from slipstream.cli.tune import Request
    from slipstream.records import Session
    from slipstream.report.terminal.live_tune import LiveTune


def read_limit(ctx: click.Context, param: click.Parameter, value: str | None) -> int:
    """Returns the number of bytes that `value` names, or 0 if the option was not given."""
    from slipstream.workflows.fit import bytes_of

    if value is None:
        return 0
    try:
        return bytes_of(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def fit_until_interrupted(request: Request) -> int:
    try:
        return _fit(request)
    except OSError as error:
        return refuse_shortage(error)
    except KeyboardInterrupt:
        _say("interrupted; no file was changed.")
        return 130
    except EndedBySignal as ended:
        _say(f"ended by {ended.name}; no file was changed. To measure again, run the same command again.")
        return ended.exit_code


def _fit(request: Request) -> int:
    from slipstream.cli.tune import show_failed_check
    from slipstream.fit.options import FIT_BUDGET_S, FitError, FitOptions
    from slipstream.report.terminal.live_check import LiveCheck
    from slipstream.report.terminal.live_tune import LiveTune
    from slipstream.supervise.trial_process import RefusalError
    from slipstream.workflows.fit import fit_script
    from slipstream.workflows.tune import NothingToTuneError

    order = FitOptions(
        limit_bytes=request.limit_bytes,
        finds_batch=request.finds_batch,
        budget_s=request.budget_s or FIT_BUDGET_S,
        only=request.only,
        without=request.without,
        allow=request.allow,
    )
    live = LiveTune(sys.stderr, quiet=request.quiet)
    try:
        with live, aside(request.takes_stdout):
            if not sys.stderr.isatty():
                live.start()
                live.note("observing the memory of a few steps")
            session = fit_script(
                request.script,
                order,
                live,
                use_overlay=request.use_overlay,
                is_offline=request.is_offline,
                line=None if request.quiet else LiveCheck(),
                on_seen=functools.partial(_show_seen, live),
            )
    except NothingToTuneError as error:
        with aside(request.takes_stdout):
            return show_failed_check(error.session)
    except (RefusalError, FitError) as error:
        _say(str(error))
        return 2
    return _give(msgspec.structs.replace(session, options=request.options), request)


def _show_seen(live: LiveTune, session: Session) -> None:
    from slipstream.report.text.memory import summarise

    if sys.stderr.isatty():
        live.start()
    live.note(f"memory    {summarise(session)}")


def _give(session: Session, request: Request) -> int:
    return 0 if give(session, request, before_saving=functools.partial(_write_recipe, session, request)) else 2


def _write_recipe(session: Session, request: Request) -> None:
    from slipstream.cli.run import run_command
    from slipstream.recipe.file import write_recipe
    from slipstream.workflows.fit import as_tuning

    assert session.fitting is not None
    path = request.recipe_path
    if session.fitting.recipe.choices:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_recipe(path, as_tuning(session.fitting), session)
        if not request.quiet:
            click.echo(f"\n Wrote {path}. Train with it: {run_command(request.script, path)}")
    elif not request.quiet:
        stays = " The existing file was not changed." if path.is_file() else ""
        click.echo(f"\n Nothing was kept, so no {path} was written.{stays}")


def _say(sentence: str) -> None:
    click.echo(f"slipstream: {sentence}", err=True)
